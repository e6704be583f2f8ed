"""Budget of one data set in a ledger, and the reservations of its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.errors import BudgetError, BudgetExceeded, LedgerError
from vfl.privacy.ledger.codec import Head, Kind, as_json, canonical, encode
from vfl.privacy.ledger.composition import USABLE, Accounting, accounting_for, epsilon_of, plan_cost
from vfl.privacy.ledger.durable import Draft
from vfl.privacy.ledger.reservation import Preview, Statement, adjacency_of
from vfl.privacy.spending import require_adjacency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger.composition import Plan
    from vfl.privacy.ledger.durable import SqliteLedger
    from vfl.privacy.ledger.state import LedgerState, Run, Scope


class DatasetBudget:
    """Budget of one data set. A plan is granted if it fits the cap on ε together with all other charges and reservations.

    Implements `Account`. Picklable.

    unit : what the guarantee protects, 'record' or 'person' (Job.unit). Costs for different units do not add up, so a data set
        has one unit.
    """

    def __init__(self, ledger: SqliteLedger, dataset: str, unit: str = "record") -> None:
        self.ledger = ledger
        self.dataset = dataset
        self.unit = unit

    def preview(self, plan: Plan) -> Preview:
        """Return the cost of a plan at present. Nothing is recorded or reserved."""
        adjacency_of(plan)
        with self.ledger.read() as state:
            return self._preview(state.scope(self.dataset), plan)

    def require_room(self, plan: Plan) -> None:
        """Raise BudgetExceeded if a plan does not fit at present. plan : a lower bound on the plan of the run."""
        preview = self.preview(plan)
        if not preview.fits:
            raise BudgetExceeded(_refusal(self.dataset, preview, "at least "))

    def reserve(self, plan: Plan, *, job: str, run: str) -> DatasetReservation:
        """Reserve the whole plan, durably. Even after a crash, the plan counts in full until the run is settled or refunded.

        Raises BudgetExceeded if the plan does not fit. Raises BudgetError for a data set without a cap, and for a run that
        has already reserved (use `resume`). Raises PrivacyError for an adjacency that is not the data set's.
        """
        adjacency_of(plan)

        def decide(state: LedgerState) -> list[Draft]:
            scope = state.scope(self.dataset)
            for event, _ in plan:
                require_adjacency(event, scope.adjacency)
            if other := next((run.unit for run in scope.runs.values() if run.unit != self.unit), None):
                raise BudgetError(
                    f"data set {self.dataset!r} counts each {other}, and this job protects each {self.unit}, so that their ε "
                    "do not add up: give the job a data set of its own (another policy's ledger, at a party)"
                )
            if run in state.dataset_of:
                raise BudgetError(f"run {run!r} reserved before: continue it with: vfl resume, or take a new run id")
            preview = self._preview(scope, plan)
            if not preview.fits:
                raise BudgetExceeded(_refusal(self.dataset, preview))
            body = {
                "job": job,
                "unit": self.unit,
                "accounting": preview.accounting,
                "units": f"{plan_cost(plan, Accounting(preview.accounting)):x}",
                "plan": [[as_json(event), count] for event, count in plan],
            }
            return [Draft(self.dataset, Kind.RESERVE, run, canonical(body))]

        self.ledger.write(decide)
        return DatasetReservation(self, run, 1)

    def resume(self, run: str, *, job: str, head: Head | None = None) -> DatasetReservation:
        """Take over a run's reservation. The process that held the reservation before can no longer charge it.

        For every key in `charged()` the release may have been made, so repeat that release under a new attempt. For a settled
        run, `settle` returns the statement again and `charge` raises BudgetError.

        head : head of the hash chain, as noted at the checkpoint.

        Raises LedgerError if the chain does not contain `head`. Raises BudgetError for an unknown run or another job.
        """
        if head is not None:
            self.ledger.require(head)
        epoch = 0

        def decide(state: LedgerState) -> list[Draft]:
            nonlocal epoch
            account = state.run(self.dataset, run).account
            if account.job != job:
                raise BudgetError(f"run {run!r} was reserved for another job: resume with the job file it began with")
            epoch = account.epoch + account.open
            return [Draft(self.dataset, Kind.RESUME, run, "{}")] if account.open else []

        self.ledger.write(decide)
        return DatasetReservation(self, run, epoch)

    def _preview(self, scope: Scope, plan: Plan) -> Preview:
        way = scope.accounting or accounting_for(plan)
        asked = plan_cost(plan, way)
        free = scope.free(way)
        return Preview(
            cap=scope.epsilon,
            delta=scope.delta,
            spent=epsilon_of(way, scope.committed, scope.delta),
            asked=epsilon_of(way, asked, scope.delta),
            left=min(scope.epsilon, epsilon_of(way, free, scope.delta)),
            fits=asked <= free,
            accounting=way.value,
            scope=_covers(scope, scope.epsilon, scope.delta),
        )


class DatasetReservation:
    """Reservation of one run. Implements `Reservation`. Picklable, but only the process that resumed last may charge."""

    def __init__(self, account: DatasetBudget, run: str, epoch: int) -> None:
        self.account = account
        self._run = run
        self._epoch = epoch

    @property
    def run(self) -> str:
        """Id of the run that holds the reservation."""
        return self._run

    def charge(self, items: Sequence[tuple[ReleaseKey, Event]]) -> None:
        """Record all charges or none of them, on disk before the call returns; see `Reservation.charge`."""
        dataset, name, ledger = self.account.dataset, self._run, self.account.ledger

        def decide(state: LedgerState) -> list[Draft]:
            scope = state.scope(dataset)
            account = state.run(dataset, name).account
            account.require_open(self._epoch)
            for _, event in items:
                require_adjacency(event, scope.adjacency)
            return [Draft(dataset, Kind.CHARGE, name, encode(event), key) for key, event in account.uncharged(items)]

        ledger.write(decide)

    def charged(self) -> frozenset[ReleaseKey]:
        """Return the keys of the releases charged so far; an empty set after settling."""
        with self.account.ledger.read() as state:
            return frozenset(state.run(self.account.dataset, self._run).account.charged)

    def settle(self, *, stopped_early: bool = False) -> Statement:
        """Close the reservation and free its uncharged part for other runs. Repeated calls return the same statement."""

        def decide(state: LedgerState) -> list[Draft]:
            found = state.run(self.account.dataset, self._run)
            if found.ended in ("settled", "stopped early"):
                return []
            found.account.require_open(self._epoch)
            body = {
                "spent": f"{found.allowance.spent:x}",
                "releases": found.account.count,
                "stopped_early": bool(stopped_early),
            }
            return [Draft(self.account.dataset, Kind.SETTLE, self._run, canonical(body))]

        self.account.ledger.write(decide)
        with self.account.ledger.read() as state:
            return _statement(state.scope(self.account.dataset), state.run(self.account.dataset, self._run))

    def refund(self) -> None:
        """Cancel a reservation without charges, for which no noise was drawn. Raises BudgetError if there are charges."""

        def decide(state: LedgerState) -> list[Draft]:
            account = state.run(self.account.dataset, self._run).account
            account.require_open(self._epoch)
            if account.count:
                raise BudgetError(f"run {self._run!r} was charged, so it may have drawn noise: settle it instead")
            return [Draft(self.account.dataset, Kind.REFUND, self._run, "{}")]

        self.account.ledger.write(decide)


def _refusal(dataset: str, preview: Preview, bound: str = "") -> str:
    left = "nothing" if preview.left < USABLE else f"ε = {preview.left:.4g}"
    return (
        f"data set {dataset!r} has spent or reserved ε = {preview.spent:.4g} of its ε = {preview.cap:.4g} at δ = "
        f"{preview.delta:.3g}; the plan asks for {bound}ε = {preview.asked:.4g} and {left} is left; lower epsilon or passes, "
        f"settle runs that ended, or raise the cap with: vfl ledger cap LEDGER {dataset} --epsilon E --delta "
        f"{preview.delta:.3g}"
    )


def _covers(scope: Scope, epsilon: float, delta: float) -> str:
    return (
        f"all jobs on data set {scope.dataset!r} that are charged to the same ledger are together under its cap, "
        f"ε = {epsilon:.6g} at δ = {delta:.3g}"
    )


def _statement(scope: Scope, run: Run) -> Statement:
    if run.head is None or run.cap is None:
        raise LedgerError(f"run {run.account.run!r} is not settled")
    allowance = run.allowance
    spent, reserved = (
        epsilon_of(allowance.accounting, units, allowance.delta) for units in (allowance.spent, allowance.reserved)
    )
    return Statement(
        delta=allowance.delta,
        adjacency=scope.adjacency,
        accounting=allowance.accounting.value,
        spent=spent,
        reserved=reserved,
        releases=run.account.count,
        stopped_early=run.ended == "stopped early",
        scope=_covers(scope, *run.cap),
        entries=run.head.seq,
        head=run.head.hash,
        flags=tuple(map(str, run.revisions)),
    )
