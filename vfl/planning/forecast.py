"""Expected quality of a model, from public facts and declared guesses, before any budget is spent.

`left` is the share of what the columns can explain that a model misses: 0 for the best linear model, 1 for a constant one.

    left = (a·E + p/2n) / G     logistic loss, E the error of descent (vfl.solvers.rules.recommend), a = 0.15 nats, its signal
    left = max(1, ¼/R²)·E + (p/n)·(1 − R²)/R²        squared loss, whose E was stated for R² = ¼

E is what noise, steps and the cap leave; the second term is the sampling error of the records. G is the gain of the best
linear model over a constant one, for classes with normal scores: with z = Φ⁻¹(AUC) the margins of a class have variance 2z².

    AUC = Φ(√(1 − left)·z)      loss = H − (1 − left)·G      R² = (1 − left)·R²_best

H is the entropy of the labels. The range holds nine of ten of 100 simulated runs of SkGD from which LOW to CHANCE were chosen;
the page "Choosing" compares forecasts and outcomes on problems that the rule was not fitted on. Where noise outweighs the
signal, runs stop early: their loss exceeded that of a constant model by at most WORSE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl import markup
from vfl.arguments import require_number
from vfl.errors import SpecificationError
from vfl.planning.public_problem import problem_of
from vfl.solvers.rules.recommend import recommendation

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.problem import Problem

LOW, HIGH = 0.3, 2.0
"""Range of `left`: 1 − exp(−LOW·left), which stays below 1, to HIGH·left."""
WORSE = 0.1
"""Largest excess of the loss over that of a constant model, in nats, or of the squared error, in shares of the
labels' variance."""
CHANCE = 1.6
"""Standard deviations of the part that a random direction shares with the best one."""
GAIN_LOW, GAIN_HIGH = 0.9, 1.15
"""Range of the gain G around that of normal scores."""
NATS, VARIANCE = 0.15, 0.25
"""Signal for which the error of descent was stated: nats of logistic loss, share of the labels' variance."""
SIGNALS = {"logistic": (0.65, 0.85), "squared": (0.1, 0.5)}
"""Guesses of AUC and of R² of the best linear model where the caller gives none: a weak and a strong signal."""
NAMES = {"logistic": "AUC", "squared": "R²"}
ENOUGH = 0.1
"""Records are enough where a model misses no more than this share."""
NOISE = 0.6
"""A model that misses more than this share is called noise."""
MOST = 10**9

_normal = NormalDist()
_nodes, _weights = np.polynomial.hermite_e.hermegauss(60)


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a measure, with the best value possible and the value of a constant model."""

    low: float
    high: float
    best: float
    constant: float

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True, slots=True, repr=False)
class Forecast:
    """Expected quality of a model of a job. Computed from public facts and guesses; no data are touched.

    n_records : of the training. epsilon : of the job; None without privacy.
    measures : {"auc" | "r2" | "loss": range} for the weaker to the stronger guessed signal; {} for losses without a rule.
    missed : (strong, weak) share of what the columns can explain that is expected to be missed, for either signal.
    needed : (strong, weak) records that the training needs to miss a tenth; None where no number is enough.
    positives : guessed share of positive labels; None without classes. signal : guessed AUC or R² of the best linear model.
    guessed : names of the guesses that the caller did not give.
    """

    n_records: int
    epsilon: float | None
    measures: Mapping[str, Range]
    missed: tuple[float, float]
    needed: tuple[int | None, int | None]
    positives: float | None
    signal: tuple[float, float] | None
    guessed: tuple[str, ...] = field(default=())

    @property
    def noise(self) -> bool:
        """True if the model is expected to be mostly noise, even with the stronger signal."""
        return self.missed[0] > NOISE

    @property
    def lines(self) -> tuple[str, ...]:
        """The forecast in words."""
        words = []
        if self.noise:
            words.append(
                f"NOISE: {self._records} are too few {self._budget}{self._of}: the model would tell next to nothing"
            )
        elif self.missed[1] > NOISE:
            words.append(f"a weak signal would be lost in noise with {self._records} {self._budget}")
        if self.measures:
            words.append(", ".join(f"{said(name)} {range_}" for name, range_ in self.measures.items()) + self._given)
        else:
            words.append(f"{max(0.0, 1 - self.missed[0]):.0%} of what the columns can explain would be learnt")
        return (*words, self._needs)

    @property
    def _records(self) -> str:
        return f"{self.n_records:,} record{'s' if self.n_records != 1 else ''}"

    @property
    def _budget(self) -> str:
        return "without privacy" if self.epsilon is None else f"at ε = {self.epsilon:g}"

    @property
    def _of(self) -> str:
        if self.signal is None:
            return ""
        return f" for a signal of {said('auc' if self.positives is not None else 'r2')} {self.signal[1]:.3g} or less"

    @property
    def _given(self) -> str:
        if self.signal is None:
            return ""
        name = "auc" if self.positives is not None else "r2"
        weak, strong = self.signal
        best = f"{weak:.3g}" if weak == strong else f"{weak:.3g} to {strong:.3g}"
        given = f", where the best linear model has {said(name)} {best}"
        return (
            given if self.positives is None else f"{given} and a share {self.positives:.3g} of the labels is positive"
        )

    @property
    def _needs(self) -> str:
        strong, weak = (None if n is None else _rounded(n) for n in self.needed)
        if strong is None:
            return "no number of records is enough to learn nine tenths of it"
        if weak is None or weak == strong:
            return f"about {strong:,} records learn nine tenths of it {self._budget}"
        return f"about {strong:,} records learn nine tenths of a strong signal {self._budget}, {weak:,} of a weak one"

    def __str__(self) -> str:
        return "\n".join((f"forecast for {self._records} {self._budget}", *(f"  {line}" for line in self.lines)))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        title = f"Forecast for {self._records} {self._budget}"
        return markup.whole(markup.line(title, strong=True), *map(markup.line, self.lines))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        ranges = {
            name: {"low": r.low, "high": r.high, "best": r.best, "constant": r.constant}
            for name, r in self.measures.items()
        }
        return {
            "n_records": self.n_records,
            "epsilon": self.epsilon,
            "noise": self.noise,
            "measures": ranges,
            "missed": list(self.missed),
            "records_needed": list(self.needed),
            "positives": self.positives,
            "signal": None if self.signal is None else list(self.signal),
            "guessed": list(self.guessed),
        }


def forecast(
    job: Job,
    n_records: int,
    *,
    positives: float | None = None,
    signal: float | tuple[float, float] | None = None,
) -> Forecast:
    """Return the expected quality of a job's model at n records. Reads no data and spends no budget.

    n_records : n, held-out records included.
    positives : guess of the share of positive labels; None is ½.
    signal : guess of the AUC (classes) or R² (numbers) that the best linear model reaches without noise on these columns, or
        a weak and a strong one; None is 0.65 to 0.85, and 0.1 to 0.5. Guess from public knowledge: a guess that was read
        from the records is not private.

    Raises SpecificationError.
    """
    problem = problem_of(job, n_records)
    name = problem.loss.name
    share = _share(positives) if problem.loss.classification else None
    if positives is not None and share is None:
        raise SpecificationError(
            f"positives is the share of positive labels, and {name} loss has no classes: leave it out"
        )
    signals = _signals(name, signal)
    open_ = (("positives", share is not None and positives is None), ("signal", signal is None))
    guessed = tuple(guess for guess, left in open_ if left) if signals is not None else ()

    def missed(at: Problem) -> tuple[float, float]:
        n, p, error = at.n_records, at.layout.n_coordinates, descent(at, job.solver.name)
        weak, strong = (_missed(n, p, error, value, share) for value in signals or (None, None))
        return strong, weak

    whole = job.on_all_records()  # a split of many records takes long to count

    def needed(which: int) -> int | None:
        return _least(lambda n: missed(problem_of(whole, n))[which] <= ENOUGH)

    return Forecast(
        n_records=problem.n_records,
        epsilon=None if job.privacy is None else job.privacy.epsilon,
        measures={} if signals is None else _measures(problem, descent(problem, job.solver.name), signals, share),
        missed=missed(problem),
        needed=(needed(0), needed(1)),
        positives=share if signals is not None else None,
        signal=signals,
        guessed=guessed,
    )


def _share(positives: float | None) -> float:
    if positives is None:
        return 0.5
    require_number("positives", positives)
    if not 0.0 < positives < 1.0:
        raise SpecificationError(f"positives is a share between 0 and 1, not {positives!r}")
    return float(positives)


def _signals(name: str, signal: float | tuple[float, float] | None) -> tuple[float, float] | None:
    """Return a weak and a strong signal; None for losses without a rule."""
    if name not in SIGNALS:
        if signal is not None:
            raise SpecificationError(
                f"signal is the AUC or R² of the best model; {name} loss has no rule for it: leave it out"
            )
        return None
    values = SIGNALS[name] if signal is None else tuple(signal) if isinstance(signal, Sequence) else (signal, signal)
    low = 0.5 if name == "logistic" else 0.0
    for value in values:
        require_number("signal", value)
    if len(values) != 2 or not low < values[0] <= values[1] < 1.0:
        raise SpecificationError(
            f"signal is the {NAMES[name]} of the best model, above {low:g} and below 1, or a pair of a weak and a strong one, "
            f"not {signal!r}"
        )
    return float(values[0]), float(values[1])


def gain_of(auc: float, share: float) -> tuple[float, float]:
    """Return (H, G): the loss of a constant model, and the gain of the best one if the scores of both classes are normal."""
    z = _normal.inv_cdf(auc)
    base, half, spread = math.log(share / (1.0 - share)), z * z, math.sqrt(2.0) * z
    losses = (
        share * np.logaddexp(0.0, -(base + half + spread * _nodes)),
        (1.0 - share) * np.logaddexp(0.0, base - half + spread * _nodes),
    )
    entropy = -share * math.log(share) - (1.0 - share) * math.log1p(-share)
    return entropy, entropy - float((_weights / _weights.sum()) @ (losses[0] + losses[1]))


def _missed(n: int, p: int, error: float, signal: float | None, share: float | None) -> float:
    """Return `left` by the rule; it may exceed 1. error : expected error of descent."""
    if signal is None:
        return error
    if share is None:
        return max(1.0, VARIANCE / signal) * error + p / n * (1.0 - signal) / signal
    return (NATS * error + p / (2.0 * n)) / gain_of(signal, share)[1]


def descent(problem: Problem, solver: str) -> float:
    """Return the expected error of a solver, from 0 to 1; that of the best one if there is no rule for it."""
    candidates = recommendation(problem).candidates
    name = "SkGD" if solver == "CD" else solver
    return next((c.left for c in candidates if c.solver == name), candidates[0].left)


def expected(job: Job, n_records: int, signal: float, positives: float | None) -> dict[str, Range]:
    """Return the ranges of the measures of a job at n records, for one guess of the signal; see `forecast`."""
    problem = problem_of(job, n_records)
    error = descent(problem, job.solver.name)
    return ranges(problem.n_records, problem.layout.n_coordinates, error, signal, positives)


def _measures(problem: Problem, error: float, signals: tuple[float, float], share: float | None) -> dict[str, Range]:
    n, p = problem.n_records, problem.layout.n_coordinates
    low, high = (ranges(n, p, error, signal, share) for signal in signals)
    return {
        name: Range(
            min(low[name].low, high[name].low),
            max(low[name].high, high[name].high),
            high[name].best,
            high[name].constant,
        )
        for name in low
    }


def ranges(n: int, p: int, error: float, signal: float, share: float | None) -> dict[str, Range]:
    """Return the ranges of the measures for n records and p coordinates if the best linear model has this signal.

    error : expected error of descent (`descent`). share : of positive labels; None without classes.
    """
    left = _missed(n, p, error, signal, share)
    low, high = -math.expm1(-LOW * left), HIGH * left
    if share is None:
        return {"r2": Range(max(-WORSE, signal * (1.0 - high)), signal * (1.0 - low), signal, 0.0)}
    z, (entropy, gain) = _normal.inv_cdf(signal), gain_of(signal, share)
    chance = min(1.0, CHANCE / math.sqrt(p))
    least = math.sqrt(1.0 - high) if high < 1.0 else -chance
    most = max(math.sqrt(1.0 - low), chance * high / (1.0 + high))
    return {
        "auc": Range(_normal.cdf(least * z), _normal.cdf(most * z), signal, 0.5),
        "loss": Range(
            max(0.0, entropy - GAIN_HIGH * gain + low * gain),
            min(entropy - GAIN_LOW * gain + high * gain, entropy + WORSE),
            entropy - gain,
            entropy,
        ),
    }


def _least(enough: Any) -> int | None:
    """Return about the least n for which `enough` holds, to a twentieth; None if none up to MOST is."""
    if not enough(MOST):
        return None
    low, high = 1, MOST
    while high > low + 1 and high > 1.05 * low:
        middle = math.isqrt(low * high) if high > 4 * low else (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _rounded(n: int) -> int:
    """Return n rounded up to two digits."""
    unit = int(10 ** max(0, len(str(n)) - 2))
    return -(-n // unit) * unit


def said(name: str) -> str:
    """Return the name of a measure for readers."""
    return {"auc": "AUC", "r2": "R²"}.get(name, name)
