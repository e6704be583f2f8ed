"""Record of a run's charges and flags. The run's certificate is issued from this record."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.charging.budget import Reserved
from coordinator.rounds import Lost, Round
from vfl.certificate import certify
from vfl.errors import LedgerError
from vfl.inference import Inference
from vfl.inference.covariance import inference_of
from vfl.launch.run.result import Result, numbers, told
from vfl.messages import Tally
from vfl.planning import Plan
from vfl.solvers.releases.labels import asked_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.charging.budget import Budget
    from coordinator.coordinator import Outcome
    from coordinator.rounds import Log
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger import Statement
    from vfl.solvers.protocol import Released
    from vfl.solvers.releases.labels import LabelCounts
    from vfl.types import Vector


GIVEN_UP = (
    "party {party!r} was lost during the run and left out: the model's coefficients of its columns are 0, and releases "
    "that were charged for it before stay charged"
)


FIRST = 3
"""Number of first queries whose releases are kept, since they hold knots of curves, column moments or the labels' histogram."""


def counts_among(plan: Plan, released: Sequence[Released]) -> tuple[LabelCounts, Vector, float] | None:
    """Return the histogram of the labels from the first releases of a run; None if the run released no histogram.

    The result is (statistic, noisy counts (BINS,), standard deviation of their noise).
    """
    if not plan.problem.loss.quadratic or plan.solver.sealed or not getattr(plan.solver, "label_share", None):
        return None
    schedule = plan.solver.schedule(plan.problem)
    query = next(schedule)
    for values in released[plan.n_before :]:
        if isinstance(query, Tally):
            found = asked_by(query)
            return None if found is None else (found[0], values[0], found[1])
        query = schedule.send(values)
    return None


class Witness:
    """Recorder of the releases in one process of a run. At the end the recorder issues the certificate.

    budget : account that the run charges. log : releases of the run's earlier processes.
    federation : `Federation.stated` of the federation of organisations; None for a run of one operator.
    """

    def __init__(self, budget: Budget, log: Log, federation: Mapping[str, str] | None = None) -> None:
        self._budget, self._federation = budget, federation
        self._charged: Counter[Event] = Counter()
        self._lost: set[ReleaseKey] = set()
        self._first: dict[int, Released] = {k: u for k, u in enumerate(log.released[:FIRST]) if u is not None}
        self._all: list[Released | None] | None = list(log.released)
        self._flags = dict.fromkeys(log.flags)

    def note(self, event: object) -> None:
        """Count the charges of a round or of a lost attempt. From a reservation, keep the flags."""
        if isinstance(event, Plan) and event.problem.inference is None:
            self._all = None
        elif isinstance(event, Reserved):
            self._flags.update(dict.fromkeys(event.flags))
        elif isinstance(event, Lost):
            # Seeded noise repeats a release under the charged key, at no further cost.
            self._charged.update(charged for key, charged in event.charges if key not in self._lost)
            self._lost.update(key for key, _ in event.charges)
        elif isinstance(event, Round):
            self._charged.update(charged for key, charged in event.charges if key not in self._lost)
            if event.number < FIRST:
                self._first[event.number] = event.released
            if self._all is not None:
                self._all.append(None if event.refused else event.released)

    def result(self, outcome: Outcome) -> Result:
        """Return the result of the run, with an unsigned certificate."""
        plan, statement = outcome.plan, outcome.statement
        # In a run on subsamples, the first releases describe the first subsample, not all records.
        first = tuple(released for _, released in sorted(self._first.items())) if plan.subsamples is None else ()
        coordinates = plan.problem.layout.names
        certificate = certify(
            plan,
            statement,
            model=numbers(outcome.w, coordinates),
            findings=told(outcome.findings),
            charged={} if statement is None else self._charges(statement),
            released=first,
            books=outcome.books,
            run=self._budget.run,
            account=self._budget.account(plan.job),
            flags=(*self._flags, *(GIVEN_UP.format(party=party) for party in outcome.left)),
            federation=self._federation,
            knots=outcome.knots,
        )
        moments = first[plan.n_before] if certificate.moments_digest else ()
        found = counts_among(plan, first)
        labels = None if found is None else found[1]
        result = Result(
            plan.job, certificate, outcome.w, coordinates, outcome.findings, moments, labels, knots=outcome.knots
        )
        if outcome.fits and statement is not None and not statement.stopped_early:
            own = [replace(result, w=w).original for w in outcome.fits]
            return result.with_inference(
                Inference.between(tuple(result.original), np.array([[*one.values()] for one in own]))
            )
        if self._all is None or outcome.left:
            return result
        return result.with_inference(inference_of(plan, self._all[plan.n_before :], result.original))

    def _charges(self, statement: Statement) -> Mapping[Event, int]:
        """Return the run's charges: those counted here, or the ledger's if it also holds charges of earlier processes."""
        if self._charged.total() == statement.releases:
            return self._charged
        if self._budget.ledger is None:
            raise LedgerError("a budget in memory charged other releases than were made: the result is not certified")
        from vfl.certificate.verification import charges

        return charges(self._budget.ledger, self._budget.run)
