"""Plan of a tuning run, from public facts alone: the cost, the factor on the noise, and a forecast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vfl.planning import plan as make_plan
from vfl.planning import run_plan
from vfl.privacy.ledger import Accounting
from vfl.privacy.ledger.composition import epsilon_of, plan_cost
from vfl.solvers.rules.recommend import ENOUGH, recommendation

if TYPE_CHECKING:
    from vfl.apps.tuning.candidates import Tuning
    from vfl.base.problem import Problem
    from vfl.planning import Plan

PARTIES = "a party that keeps its own ledger counts all trials by composition: {times:.3g} times the cost of one"


@dataclass(frozen=True, eq=False, repr=False)
class TunePlan:
    """Plan of a tuning run, with every open option decided. n_records : n, held-out records included."""

    tuning: Tuning
    n_records: int

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """Plan of each trial (training of one candidate)."""
        return self.tuning.plans(self.n_records)

    @cached_property
    def factor(self) -> float:
        """Noise of a trial divided by the noise of the first candidate, trained alone at the same ε."""
        return float(self._alone.mu or 0.0) / self.tuning.budgets[0]

    @cached_property
    def _alone(self) -> Problem:
        """Problem of the first candidate, trained alone."""
        return make_plan(self.tuning.jobs[0], self.n_records).problem

    @cached_property
    def in_ledger(self) -> float:
        """ε of a single run that uses as much of a ledger's budget as the tuning run does. A ledger adds up μ²."""
        cost = plan_cost(self.tuning.events, Accounting.GDP)
        return epsilon_of(Accounting.GDP, cost, float(self.tuning.delta or 1.0))

    @property
    def default_probably_wins(self) -> bool:
        """True if better options would probably gain less than the noise of a trial costs.

        In all measured problems with a signal-to-noise ratio ρ = μn/p of 10 or more, no choice of options beat the default
        options by more than the deviation between runs (vfl.solvers.rules.recommend).
        """
        return self._ratio >= ENOUGH

    @property
    def _ratio(self) -> float:
        problem = self.plans[0].problem
        return problem.n_records * self.tuning.budgets[0] / problem.layout.n_coordinates

    @property
    def forecast(self) -> str:
        """Forecast in words: the prospects of a candidate against the default options, and the losses to expect."""
        alone, trial = (recommendation(problem).left for problem in (self._alone, self.plans[0].problem))
        cost = f"a trial has {self.factor:.3g} times the noise of a run alone"
        if alone is not None and trial is not None:
            cost = f"a run alone is expected to leave {alone:.2g} of the loss, a trial {trial:.2g}"
        if self.default_probably_wins:
            return (
                f"the defaults alone would probably win: at a signal-to-noise ratio of {self._ratio:.3g} no options "
                f"were ahead of them in measured runs, and {cost}"
            )
        return (
            f"open: at a signal-to-noise ratio of {self._ratio:.3g} the rules for the defaults are weak, and noise "
            f"dominates; {cost}, so a choice pays only if a candidate gains more than that"
        )

    def _lines(self) -> run_plan.Lines:
        tuning, m, a = self.tuning, len(self.tuning.jobs), self.tuning.inclusion
        trial, stated = tuning.trial_epsilon, f"ε = {tuning.epsilon:.4g} at δ = {tuning.delta:.3g}"
        lines = [
            (
                "choose",
                f"the best of {m} by {tuning.score}; each is considered with probability {a}/{a + 1}, in secret",
            ),
            ("privacy", f"{stated} for every record (replace one), all trials together"),
            ("noise", f"{self.factor:.3g} times that of one candidate alone: a trial is a run of ε = {trial:.4g}"),
            ("", PARTIES.format(times=m)),
            (
                "ledger",
                f"a ledger counts the tuning run as a run of ε = {self.in_ledger:.4g}, whole, before the first trial",
            ),
            ("score", self.plans[0].evaluations[0].explain()),
            ("cost", f"all {m} are trained: about {sum(plan.seconds for plan in self.plans):.2g} s of rounds"),
        ]
        for number, (job, plan) in enumerate(zip(tuning.jobs, self.plans, strict=True), 1):
            lines.append((f"{number} of {m}", f"{difference(tuning.jobs[0], job)}: {plan.messages} messages"))
        lines += [("flag", flag) for flag in tuning.flags]
        return (*lines, ("forecast", self.forecast))

    def __str__(self) -> str:
        return run_plan.text(self._title(), self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return run_plan.html(self._title(), self._lines())

    def _title(self) -> str:
        return f"tune of job {self.tuning.jobs[0].name!r}: {len(self.tuning.jobs)} candidates, n = {self.n_records:,}"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {
            "n_records": self.n_records,
            "candidates": [
                {"change": difference(self.tuning.jobs[0], job), "digest": trial.digest}
                for job, trial in zip(self.tuning.jobs, self.tuning.trials, strict=True)
            ],
            "score": self.tuning.score,
            "inclusion": self.tuning.inclusion,
            "epsilon": self.tuning.epsilon,
            "flags": list(self.tuning.flags),
            "delta": self.tuning.delta,
            "trial_epsilon": self.tuning.trial_epsilon,
            "noise_factor": self.factor,
            "ledger_epsilon": self.in_ledger,
            "default_probably_wins": self.default_probably_wins,
            "forecast": self.forecast,
        }


def difference(first: Any, job: Any) -> str:
    """Return, in words, the options in which a candidate differs from the first candidate."""
    one, other = _flat(first.to_dict()), _flat(job.to_dict())
    changes = [
        f"{name} = {other.get(name, 'default')}" for name in sorted(one | other) if one.get(name) != other.get(name)
    ]
    return ", ".join(changes) or "the job as it is"


def _flat(plain: dict[str, Any], within: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= _flat(value, f"{within}{name}.") if isinstance(value, dict) else {f"{within}{name}": value}
    return flat
