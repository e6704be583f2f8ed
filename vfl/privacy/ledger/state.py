"""State of a ledger, rebuilt by applying its entries in order.

One code validates new entries, verifies stored entries and answers queries about the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from vfl.base.documents import parse_json
from vfl.base.types import Adjacency
from vfl.errors import BudgetError, LedgerError, VflError
from vfl.privacy.events import Event, ReleaseKey
from vfl.privacy.ledger.account import Account, Allowance
from vfl.privacy.ledger.codec import Entry, Head, Kind, broken, decode, from_json, genesis, link
from vfl.privacy.ledger.composition import Accounting, capacity, plan_cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Revision:
    """Change of a data set's cap after releases on the data set were charged.

    The earlier cap no longer bounds the releases, since the new cap may depend on released values.

    seq, recorded : number and time of the entry that sets the new cap. releases : number of charges on the data set before the
        change. epsilon, delta : the new cap. epsilon_before, delta_before : the earlier cap.
    """

    dataset: str
    seq: int
    recorded: str
    releases: int
    epsilon_before: float
    delta_before: float
    epsilon: float
    delta: float

    def __str__(self) -> str:
        return (
            f"the cap of data set {self.dataset!r} was changed after {self.releases} release{'s' * (self.releases != 1)} "
            f"(entry {self.seq}), from ε = {self.epsilon_before:.6g} at δ = {self.delta_before:.3g} to "
            f"ε = {self.epsilon:.6g} at δ = {self.delta:.3g}: the earlier cap no longer limits what all trainings on it "
            "release together"
        )

    @property
    def mark(self) -> dict[str, Any]:
        """Field of the cap's entry that marks the entry as a change after releases."""
        return {
            "releases": self.releases,
            "epsilon": self.epsilon_before.hex(),
            "delta": self.delta_before.hex(),
        }


@dataclass(slots=True)
class Scope:
    """Account of one named data set: adjacency, cap, and the runs that reserved plans on the data set.

    capacity : cap in units, for each accounting. The value is stored when the cap is set, so that machines and versions whose
        results differ in the last digit agree on which plans fit.
    accounting : fixed by the owner or by the first reservation; None before.
    closed : units spent by all closed runs.
    runs, open : {id: run} of all runs, and of the open ones.
    revisions : changes of the cap after releases, in order.
    """

    dataset: str
    adjacency: Adjacency
    epsilon: float
    delta: float
    capacity: Mapping[Accounting, int]
    accounting: Accounting | None
    closed: int = 0
    runs: dict[str, Run] = field(default_factory=dict)
    open: dict[str, Run] = field(default_factory=dict)
    revisions: tuple[Revision, ...] = ()

    def revision(self, entry: int, recorded: str, epsilon: float, delta: float) -> Revision | None:
        """Return the `Revision` that a new cap means; None before the first release, and if the cap is unchanged."""
        releases = sum(run.account.count for run in self.runs.values())
        if not releases or (epsilon, delta) == (self.epsilon, self.delta):
            return None
        return Revision(self.dataset, entry, recorded, releases, self.epsilon, self.delta, epsilon, delta)

    @property
    def spent(self) -> int:
        """Cost of all charges, in units of μ² or ρ."""
        return self.closed + sum(run.allowance.spent for run in self.open.values())

    def free(self, accounting: Accounting) -> int:
        """Return the cost in units that a plan may still reserve."""
        return self.capacity[accounting] - self.committed

    @property
    def committed(self) -> int:
        """Units that count against the cap: those spent by closed runs and those reserved by open runs."""
        return self.closed + sum(run.allowance.reserved for run in self.open.values())


@dataclass(slots=True)
class Run:
    """Reservation of one run.

    unit : 'record' or 'person', of which the guarantee protects each.
    ended : '' while the run is open, then 'settled', 'stopped early' or 'refunded'. head : chain head after the run's end.
    cap : (ε, δ) of the data set at the run's end. revisions : changes of the cap after releases, up to the run's end.
    """

    account: Account
    allowance: Allowance
    unit: str
    ended: str = ""
    head: Head | None = None
    cap: tuple[float, float] | None = None
    revisions: tuple[Revision, ...] = ()


class LedgerState:
    """State after some first entries of a ledger. `apply` raises LedgerError for an entry that contradicts earlier entries."""

    def __init__(self, identity: str) -> None:
        self.seq = 0
        self.hash = genesis(identity)
        self.scopes: dict[str, Scope] = {}
        self.dataset_of: dict[str, str] = {}
        self.notes: dict[str, Head] = {}

    @property
    def head(self) -> Head:
        """Head of the chain."""
        return Head(self.seq, self.hash.hex())

    def catch_up(self, rows: Iterable[tuple[Entry, bytes]]) -> None:
        """Verify and apply entries. The first of `rows` is the entry that was applied last, and must be unchanged."""
        rows = iter(rows)
        if self.seq:
            entry, digest = next(rows, (None, b""))
            if entry is None or entry.seq != self.seq or digest != self.hash:
                raise broken(
                    self.seq, "an entry read before is gone: the file was replaced by an older copy or another ledger"
                )
        for entry, digest in rows:
            if entry.seq != self.seq + 1:
                raise broken(self.seq + 1, "it is missing")
            if link(self.hash, entry) != digest:
                raise broken(entry.seq, "its hash does not follow from its content and the entry before it")
            self.apply(entry, digest)

    def apply(self, entry: Entry, digest: bytes) -> None:
        """Apply one entry. The caller has checked its hash."""
        try:
            handle = getattr(self, f"_{Kind(entry.kind)}")  # one method per kind, such as _reserve
        except ValueError:
            raise broken(entry.seq, f"its kind {entry.kind!r} is unknown") from None
        try:
            handle(entry)
        except LedgerError as error:
            raise broken(entry.seq, str(error)) from error
        except (VflError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise broken(entry.seq, f"it does not follow from the entries before it ({error})") from error
        self.seq, self.hash = entry.seq, digest
        if entry.kind in (Kind.SETTLE, Kind.REFUND):
            self.run(entry.dataset, entry.run).head = self.head

    def scope(self, dataset: str) -> Scope:
        """Return the account of a data set. Raises BudgetError if the data set has no cap yet."""
        scope = self.scopes.get(dataset)
        if scope is None:
            raise BudgetError(
                f"the ledger has no data set {dataset!r}, so nothing may be spent on it: its data owner sets a cap with: "
                f"vfl ledger cap LEDGER {dataset} --epsilon E --delta D"
            )
        return scope

    def run(self, dataset: str, run: str) -> Run:
        """Return a run's reservation. Raises BudgetError if the data set has no reservation with this id."""
        found = self.scope(dataset).runs.get(run)
        if found is None:
            raise BudgetError(
                f"run {run!r} reserved nothing from data set {dataset!r} in this ledger: "
                "resume with the ledger it began with"
            )
        return found

    def _cap(self, entry: Entry) -> None:
        body = parse_json(entry.body)
        adjacency = Adjacency(body["adjacency"])
        epsilon, delta = float.fromhex(body["epsilon"]), float.fromhex(body["delta"])
        accounting = Accounting(body["accounting"]) if body["accounting"] else None
        recorded = {way: int(body["capacity"][way], 16) for way in Accounting}
        if any(units > capacity(way, epsilon, delta) * (1 + Fraction(1, 10**9)) for way, units in recorded.items()):
            raise LedgerError("its capacity is more than its ε and δ allow")
        scope = self.scopes.get(entry.dataset)
        if scope is None:
            self.scopes[entry.dataset] = Scope(entry.dataset, adjacency, epsilon, delta, recorded, accounting)
            return
        if adjacency != scope.adjacency or (scope.runs and accounting != scope.accounting):
            raise LedgerError("it changes the adjacency or the accounting of the data set")
        if accounting is not None and scope.committed > recorded[accounting]:
            raise LedgerError("it sets a cap below what is spent")
        revision = scope.revision(entry.seq, entry.recorded, epsilon, delta)
        if "revises" in body and body["revises"] != (revision.mark if revision else None):
            raise LedgerError("it hides a change of the cap after releases, or states another change")
        if revision is not None:
            scope.revisions += (revision,)
        scope.epsilon, scope.delta, scope.capacity, scope.accounting = epsilon, delta, recorded, accounting

    def _reserve(self, entry: Entry) -> None:
        scope = self.scope(entry.dataset)
        body = parse_json(entry.body)
        accounting = Accounting(body["accounting"])
        units = plan_cost([(from_json(event), count) for event, count in body["plan"]], accounting)
        if (
            entry.run in self.dataset_of
            or scope.accounting not in (None, accounting)
            or units != int(body["units"], 16)
        ):
            raise LedgerError("it does not follow from the entries before it")
        if scope.committed + units > scope.capacity[accounting]:
            raise LedgerError("it reserves more than the cap")
        scope.accounting = accounting
        allowance = Allowance(accounting, units, scope.delta)
        run = Run(Account(body["job"], entry.run, allowance), allowance, body["unit"])
        scope.runs[entry.run] = scope.open[entry.run] = run
        self.dataset_of[entry.run] = entry.dataset

    def _resume(self, entry: Entry) -> None:
        account = self.run(entry.dataset, entry.run).account
        account.require_open()
        account.epoch += 1

    def _charge(self, entry: Entry) -> None:
        key, event = charged(entry)
        account = self.scopes[entry.dataset].open[entry.run].account
        if key in account.charged:
            raise LedgerError("it charges a release twice")
        account.allowance.check((event,))
        account.record(((key, event),))

    def _settle(self, entry: Entry) -> None:
        scope, run = self.scope(entry.dataset), self.run(entry.dataset, entry.run)
        body = parse_json(entry.body)
        run.account.require_open()
        if int(body["spent"], 16) != run.allowance.spent or body["releases"] != run.account.count:
            raise LedgerError("it does not add up to the charges before it")
        self._close(scope, run, "stopped early" if body["stopped_early"] else "settled")

    def _refund(self, entry: Entry) -> None:
        run = self.run(entry.dataset, entry.run)
        run.account.require_open()
        if run.account.count:
            raise LedgerError("it refunds a reservation that was charged")
        self._close(self.scope(entry.dataset), run, "refunded")

    def _close(self, scope: Scope, run: Run, how: str) -> None:
        run.account.close()
        run.ended = how
        run.cap, run.revisions = (scope.epsilon, scope.delta), scope.revisions
        scope.closed += run.allowance.spent
        del scope.open[run.account.run]

    def _note(self, entry: Entry) -> None:
        body = parse_json(entry.body)
        self.notes[body["chain"]] = Head(body["seq"], body["hash"])


def charged(entry: Entry) -> tuple[ReleaseKey, Event]:
    """Return the release key and the event in the entry of a charge."""
    if entry.round is None or entry.part is None or entry.attempt is None:
        raise LedgerError("a charge names no release")
    return ReleaseKey(entry.round, entry.part, entry.attempt), decode(entry.body)
