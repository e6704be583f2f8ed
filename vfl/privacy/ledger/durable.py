"""Durable ledger of all releases on an owner's data sets. Jobs use the ledger through `DatasetBudget`, one per data set."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from vfl.base import markup
from vfl.base.documents import parse_json
from vfl.base.types import Adjacency
from vfl.errors import BudgetError, SpecificationError
from vfl.privacy.events import of_run
from vfl.privacy.ledger.codec import FORMAT, Entry, Head, Kind, broken, canonical, link
from vfl.privacy.ledger.composition import USABLE, Accounting, capacity, epsilon_of
from vfl.privacy.ledger.sqlite import SqliteStore
from vfl.privacy.ledger.state import LedgerState, charged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vfl.privacy.accountants import Accountant
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger.sqlite import Rows
    from vfl.privacy.ledger.state import Revision, Scope

    AnyAccountant = TypeVar("AnyAccountant", bound=Accountant)


class Draft(NamedTuple):
    """Entry without number and hash, which the hash chain adds."""

    dataset: str
    kind: Kind
    run: str
    body: str
    key: ReleaseKey | None = None


@dataclass(frozen=True, slots=True)
class RunBalance:
    """State of one run in the account of a data set.

    status : 'open', 'settled', 'stopped early' or 'refunded'. reserved, spent : ε at the cap's δ.
    """

    run: str
    job: str
    status: str
    reserved: float
    spent: float
    releases: int


@dataclass(frozen=True, slots=True, repr=False)
class Balance:
    """Account of a data set. Every ε is at `delta`, rounded up. Values of ε do not add up; the ledger adds μ² or ρ.

    spent : ε of all charges. committed : ε of all charges of closed runs and of all open reservations together.
    left : ε of the largest plan that still fits. accounting : 'gdp', 'zcdp', or '' before the first reservation.
    revisions : changes of the cap that were made after releases.
    """

    dataset: str
    adjacency: Adjacency
    epsilon: float
    delta: float
    accounting: str
    spent: float
    committed: float
    left: float
    runs: tuple[RunBalance, ...]
    revisions: tuple[Revision, ...] = ()

    def __repr__(self) -> str:
        width = max((len(run.run) for run in self.runs), default=0)
        lines = [
            f"    {run.run:<{width}}  {run.status}, ε {run.spent:.4g} of {run.reserved:.4g} reserved, "
            f"{run.releases} releases"
            for run in self.runs
        ]
        return "\n".join((f"{self.title}\n  {self.sums}", *(f"  {revision}" for revision in self.revisions), *lines))

    def _repr_html_(self) -> str:
        parts = [markup.line(self.title, strong=True), markup.line(self.sums)]
        parts += [markup.line(str(revision)) for revision in self.revisions]
        if self.runs:
            head = ("run", "job", "status", "ε reserved", "ε spent", "releases")
            rows = [
                (run.run, run.job[:12], run.status, f"{run.reserved:.4g}", f"{run.spent:.4g}", str(run.releases))
                for run in self.runs
            ]
            parts.append(markup.table(head, rows, numbers=(3, 4, 5)))
        return markup.whole(*parts)

    @property
    def title(self) -> str:
        """Name, cap and accounting of the data set, in words."""
        way = f", added up as {self.accounting}" if self.accounting else ""
        return f"{self.dataset}: cap ε = {self.epsilon:.6g} at δ = {self.delta:.3g} ({self.adjacency}{way})"

    @property
    def sums(self) -> str:
        """ε spent, reserved and left, in words. An ε that no plan can use is reported as 0."""
        left = f"ε = {self.left:.6g}" if self.left >= USABLE else "ε = 0 (the budget is spent)"
        return f"spent ε = {self.spent:.6g}, spent or reserved ε = {self.committed:.6g}, largest plan that fits {left}"


class SqliteLedger:
    """Durable ledger in an SQLite file. All releases charged to a data set are together (ε, δ)-DP at the data set's cap.

    The guarantee covers all jobs, processes and restarts. Each call verifies the entries that were added since the last call.
    A call that writes decides inside one exclusive transaction, and returns when the entry is on disk. If an entry cannot be
    written, LedgerError is raised and nothing may be released. All processes of a machine may share the file. Threads and
    forked processes may share an instance. Pickling an instance stores only its path.

    path : the ledger's file. `set_cap` creates the file; every other method needs the file to exist.
    timeout : seconds to wait for other writers.
    readonly : True refuses every write; for auditors.
    allow_network_file_system : True writes to a network file system, which can lose a charge; False raises LedgerError there.
    owner_only : True creates the file with mode 0600, whatever the umask.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 30.0,
        readonly: bool = False,
        allow_network_file_system: bool = False,
        owner_only: bool = False,
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self._options: dict[str, Any] = {
            "timeout": timeout,
            "readonly": readonly,
            "allow_network_file_system": allow_network_file_system,
            "owner_only": owner_only,
        }
        self._store = SqliteStore(self.path, **self._options)
        self._state: LedgerState | None = None
        self._lock = threading.Lock()
        _ledgers.add(self)

    def __reduce__(self) -> tuple[Callable[[], SqliteLedger], tuple[()]]:
        return partial(SqliteLedger, str(self.path), **self._options), ()

    def __repr__(self) -> str:
        return f"SqliteLedger({str(self.path)!r})"

    def _repr_html_(self) -> str:
        if not self.path.exists():
            return markup.line(f"ledger {self.path.name}: not made yet")
        balances, head = self.show(), self.head()
        return markup.whole(
            *(balance._repr_html_() for balance in balances),
            markup.line(f"ledger {self.path.name}: {head.seq} entries, chain head {head.hash[:16]}…"),
        )

    def set_cap(
        self,
        dataset: str,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        accounting: Accounting | None = None,
        change_delta: bool = False,
    ) -> None:
        """Open a data set's account, or change its cap. Either adds an entry to the chain. A missing ledger is created.

        A change after releases is marked in the chain, and every later certificate flags the change. The earlier cap then no
        longer bounds the releases, since the new cap may depend on results.

        accounting : "gdp" adds up μ², "zcdp" ρ. With None, the first reservation decides: "gdp" if all its releases are
            Gaussian.
        change_delta : True confirms a δ that differs from the account's. ε at one δ says nothing about ε at another δ.

        Raises BudgetError for another adjacency, for another accounting after a reservation, for an unconfirmed change
        of δ, and for a cap below the ε that is spent and reserved.
        """
        if not dataset or not dataset.isprintable():
            raise SpecificationError(f"a data set needs a printable name, not {dataset!r}")
        capacities = {way: capacity(way, epsilon, delta) for way in Accounting}

        def decide(state: LedgerState) -> list[Draft]:
            scope, way = state.scopes.get(dataset), accounting
            if scope is not None:
                way = _unchanged(scope, adjacency, accounting)
                if delta != scope.delta and not change_delta:
                    raise BudgetError(
                        f"data set {dataset!r} has δ = {scope.delta:.3g}, and the new cap has δ = {delta:.3g}, which "
                        "changes every ε that was stated for the data set. Use the same δ, or confirm the change "
                        "(--yes; change_delta=True)"
                    )
                if way is not None and scope.committed > capacities[way]:
                    committed = epsilon_of(way, scope.committed, delta)
                    raise BudgetError(
                        f"data set {dataset!r} has spent and reserved ε = {committed:.4g} at δ = {delta:.3g}, so its "
                        f"cap cannot be ε = {epsilon:.4g}: name a larger one; releases cannot be taken back"
                    )
            revision = scope.revision(state.seq + 1, "", float(epsilon), float(delta)) if scope is not None else None
            body = {
                "adjacency": str(adjacency),
                "epsilon": float(epsilon).hex(),
                "delta": float(delta).hex(),
                "capacity": {name.value: f"{units:x}" for name, units in capacities.items()},
                "accounting": way.value if way else "",
                "revises": revision.mark if revision else None,
            }
            return [Draft(dataset, Kind.CAP, "", canonical(body))]

        self._store.create()
        self.write(decide)

    def show(self) -> tuple[Balance, ...]:
        """Return the accounts of all data sets, including exhausted ones."""
        with self.read() as state:
            return tuple(_balance(scope) for scope in state.scopes.values())

    def head(self) -> Head:
        """Return the head of the chain. Note it elsewhere to detect later that an older backup was restored."""
        with self.read() as state:
            return state.head

    def note(self, chain: str, head: Head) -> None:
        """Record the head of another ledger in this chain, to detect later that an older backup of that ledger was restored."""
        body = canonical({"chain": chain, "seq": head.seq, "hash": head.hash})
        self.write(lambda _: [Draft("", Kind.NOTE, "", body)])

    def noted(self, chain: str) -> Head | None:
        """Return the newest head of another ledger that `note` recorded; None if no head was recorded."""
        with self.read() as state:
            return state.notes.get(chain)

    def require(self, head: Head) -> None:
        """Raise LedgerError unless the chain contains this head."""
        with self._lock, self._store.reading() as rows:
            self._catch_up(rows)
            found = next(rows.since(head.seq), None) if head.seq else None
        if head.seq and (found is None or found[0].seq != head.seq or found[1].hex() != head.hash):
            raise broken(head.seq, "a head noted elsewhere is missing: this is an older copy or another ledger")

    def verify(self) -> Head:
        """Recompute the whole chain and all sums from the first entry. LedgerError names the first wrong entry."""
        with self._lock, self._store.reading() as rows:
            self._state = None
            return self._catch_up(rows).head

    def replay(self, dataset: str, accountant: AnyAccountant) -> AnyAccountant:
        """Add every charge of a data set to another accountant; return the accountant.

        A tighter accountant gives a smaller ε for a list of events that was fixed beforehand. For events that were chosen
        adaptively, only the data set's cap on ε is a guarantee.
        """
        counts: Counter[Event] = Counter()
        with self._lock, self._store.reading() as rows:
            self._catch_up(rows).scope(dataset)
            for entry, _ in rows.since(1):
                if entry.kind == Kind.CHARGE and entry.dataset == dataset:
                    counts[of_run(charged(entry)[1], entry.run)] += 1
        return accountant.compose_all(counts.items())

    def export(self) -> str:
        """Return the verified ledger as JSON: format, identity, head, and every entry with its hash."""
        with self._lock, self._store.reading() as rows:
            head = self._catch_up(rows).head
            entries: list[dict[str, Any]] = [
                {**entry._asdict(), "body": parse_json(entry.body), "hash": digest.hex()}
                for entry, digest in rows.since(1)
            ]
            identity = rows.identity
        document = {
            "format": FORMAT,
            "ledger": identity,
            "head": {"seq": head.seq, "hash": head.hash},
            "entries": entries,
        }
        return json.dumps(document, indent=1, ensure_ascii=False)

    @contextmanager
    def read(self) -> Iterator[LedgerState]:
        """Yield the current state, for reading only."""
        with self._lock:
            with self._store.reading() as rows:
                state = self._catch_up(rows)
            yield state

    def write(self, decide: Callable[[LedgerState], list[Draft]]) -> None:
        """Append the entries that `decide` returns for the current state, in one durable transaction.

        An exception from `decide` leaves the ledger unchanged.
        """
        with self._lock:
            with self._store.writing() as rows:
                state = self._catch_up(rows)
                drafts = decide(state)
                links = _linked(state, drafts)
                if links:
                    rows.append(links)
            # Apply after the commit: a failure above leaves the state unchanged, and the next call reads the durable rows.
            self._apply(state, links)
            if links:
                self._store.note(state.head)

    def _apply(self, state: LedgerState, links: list[tuple[Entry, bytes]]) -> None:
        try:
            for entry, digest in links:
                state.apply(entry, digest)
        except BaseException:
            self._state = None
            raise

    def _catch_up(self, rows: Rows) -> LedgerState:
        state = self._state or LedgerState(rows.identity)
        self._state = None  # unknown until all entries are verified
        state.catch_up(rows.since(state.seq))
        if rows.noted is not None and rows.noted.seq >= state.seq and rows.noted != state.head:
            raise broken(
                state.seq + 1,
                f"it and all entries up to {rows.noted.seq} at least are missing: an older copy was restored",
            )
        rows.require_end(state.seq)
        self._state = state
        return state

    def _after_fork(self) -> None:
        # Another thread of the parent process may have held the lock in the middle of a call when this process was forked.
        self._lock = threading.Lock()
        self._state = None
        self._store.forget()


_ledgers: weakref.WeakSet[SqliteLedger] = weakref.WeakSet()


def _forget_inherited() -> None:
    for ledger in list(_ledgers):
        ledger._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


def _linked(state: LedgerState, drafts: list[Draft]) -> list[tuple[Entry, bytes]]:
    seq, previous = state.seq, state.hash
    recorded = datetime.now(UTC).isoformat(timespec="milliseconds")
    links = []
    for dataset, kind, run, body, key in drafts:
        seq += 1
        n, part, attempt = (key.round, key.part, key.attempt) if key else (None, None, None)
        entry = Entry(seq, recorded, dataset, kind.value, run, n, part, attempt, body)
        previous = link(previous, entry)
        links.append((entry, previous))
    return links


def _unchanged(scope: Scope, adjacency: Adjacency, accounting: Accounting | None) -> Accounting | None:
    if adjacency != scope.adjacency:
        raise BudgetError(
            f"data set {scope.dataset!r} has {scope.adjacency} adjacency, not {adjacency}, and a data set has only one: "
            "use another name for the other adjacency"
        )
    if accounting is None or accounting == scope.accounting:
        return scope.accounting
    if scope.runs:
        raise BudgetError(
            f"data set {scope.dataset!r} uses {scope.accounting!s} accounting since its first reservation; changing "
            "it after releases would void the guarantee"
        )
    return accounting


def _balance(scope: Scope) -> Balance:
    way = scope.accounting
    spent, committed, left = 0.0, 0.0, scope.epsilon
    if way is not None:
        sums = (scope.spent, scope.committed, scope.free(way))
        spent, committed, left = (epsilon_of(way, units, scope.delta) for units in sums)
    return Balance(
        dataset=scope.dataset,
        adjacency=scope.adjacency,
        epsilon=scope.epsilon,
        delta=scope.delta,
        accounting=way.value if way else "",
        spent=spent,
        committed=committed,
        left=min(left, scope.epsilon),
        runs=tuple(
            RunBalance(
                run=name,
                job=run.account.job,
                status=run.ended or "open",
                reserved=epsilon_of(run.allowance.accounting, run.allowance.reserved, scope.delta),
                spent=epsilon_of(run.allowance.accounting, run.allowance.spent, scope.delta),
                releases=run.account.count,
            )
            for name, run in scope.runs.items()
        ),
        revisions=scope.revisions,
    )
