"""A party's book: its own append-only, hash-chained log of what was released of its records, under its owner's cap.

It is a ledger like the coordinator's, kept by the owner. Before and after a run, each of the two records the chain head of
the other. A backup of either that somebody restored in between is detected at the next run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from parties.consent import Refusal
from vfl.errors import BudgetError, BudgetExceeded, ConsentRefused, LedgerError, PrivacyError
from vfl.messages import Backward, BookHeads, Descend, Phase, Piece, Query
from vfl.planning import plan as make_plan
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.ledger import Accounting, DatasetBook, SqliteLedger
from vfl.privacy.ledger.composition import cost, epsilon_of
from vfl.privacy.spending import UNIT_BITS
from vfl.types import Adjacency

if TYPE_CHECKING:
    from parties.consent import Policy
    from vfl.job import Job
    from vfl.messages import Notice, RecordCap
    from vfl.planning import Plan
    from vfl.privacy.events import Event
    from vfl.privacy.ledger import Head
    from vfl.privacy.ledger.dataset import DatasetReservation

OTHERS = ReleaseKey(-1)
"""Key of the entry that charges the releases of other participants in a run; no release of this party has this key."""


def account_of(party: str) -> str:
    """Return the account of a party's releases in its book."""
    return f"party {party}"


def _extent(query: Backward) -> tuple[object, ...]:
    """Return the batch, blocks, clip and vectors that define a share's sum; the party itself compares cap and noise."""
    vectors = [vector.tobytes() for vector in (*query.centres, *query.scales)]
    return query.batch, query.part, query.blocks, type(query.clip), query.clip.dimension, vectors


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of a run by an owner's book. epsilon : of its charges, reserved : of its reservation, both at the job's δ.

    left : ε that the book has left, at its own δ.
    """

    epsilon: float
    reserved: float
    left: float


class PartyBook:
    """All jobs that the book admits are together (ε, δ)-DP for this party's records under the policy's [total].

    A job counts in full. The releases of other parties count too, because they depend on this party's records through the
    margins. The book therefore works as follows:

    - Opening a run reserves its whole plan.
    - Every noised release of this party is on disk before its noise is drawn.
    - Closing a run charges the rest of the reservation as one Gaussian release with the same μ². Rounding its σ to a double
      loses less than one part in 10¹⁵.
    - A run that never closes keeps its reservation.

    Secret sampling does not lower a charge, because the parties see which records are in a batch.

    The book checks that the key of every release is new. The party itself checks, with or without a book, that a release
    carries enough noise for its sum.
    """

    def __init__(self, policy: Policy, job: Job, party: str) -> None:
        self._policy = policy
        self._job = job
        self._party = party
        self._account = account_of(party)
        self._ledger = SqliteLedger(policy.book, allow_network_file_system=policy.allow_network_file_system)
        self._refuse = Refusal(job, party)
        self._reservation: DatasetReservation | None = None
        self._plan: Plan | None = None
        self._fresh = False
        self._run = ""
        self._made: set[ReleaseKey] = set()
        self._passes: set[ReleaseKey] = set()
        self._last: Query | None = None
        # Seeded noise repeats itself to the bit: the same release under the same key.
        self._repeats = job.privacy is not None and job.privacy.noise is not None

    def hear(self, notice: Notice, n_records: int) -> BookHeads:
        """Record the coordinator's notice and return the heads of this book.

        Raises ConsentRefused when the job does not fit under the owner's caps, and LedgerError when the coordinator's
        ledger knows a different book.
        """
        other = f"ledger of {notice.account}"
        match notice.phase:
            case Phase.COMPARE:
                return self._compare(notice, other)
            case Phase.OPEN:
                self._open(notice.run, make_plan(self._job, n_records))
            case Phase.CLOSE:
                self._close(notice.run)
            case Phase.ABANDON:
                if self._reservation is not None and self._fresh and not self._made:
                    self._reservation.refund()
                self._reservation = None
                return BookHeads(self._head(), None)
        if notice.ledger is not None:
            self._ledger.note(other, notice.ledger)
        return BookHeads(self._ledger.head(), notice.ledger)

    def record(self, query: Query, key: ReleaseKey) -> None:
        """Write every release that the answer to a query makes to the book, in one durable transaction.

        Raises ConsentRefused for a release beyond the reservation, a repeated release, or a piece of a joint release that
        the plan does not contain.
        """
        if isinstance(query, Descend | Backward) and query.capped is not None:
            self._record_pass(query, query.capped)
            return
        if isinstance(query.batch, Piece):
            self._require_planned(query)
        events = self._events(query)
        if not events:
            return
        first = query.parts.get(self._party, 0) if isinstance(query, Descend) else getattr(query, "part", 0)
        try:
            self._charge([(replace(key, part=first + k), event) for k, event in enumerate(events) if event is not None])
        except BaseException:
            self._last = None  # no later batch may rest on a charge that was refused
            raise

    def costs(self) -> Costs | None:
        """Return the cost of the run that was opened last; None before."""
        delta = None if self._plan is None else self._plan.problem.delta
        if not self._run or delta is None:
            return None
        with self._ledger.read() as state:
            scope, found = state.scopes[self._account], state.run(self._account, self._run).allowance
            return Costs(
                epsilon_of(found.accounting, found.spent, delta),
                epsilon_of(found.accounting, found.reserved, delta),
                min(scope.epsilon, epsilon_of(found.accounting, scope.free(found.accounting), scope.delta)),
            )

    def _record_pass(self, query: Query, cap: RecordCap) -> None:
        """Charge a pass whole, with the first of its blocks that this party is asked for; the party checks the others.

        A pass that an earlier process of this party began is refused: which blocks it released then is not known.
        """
        if cap.paid is None or not query.events() or cap.paid.key in self._passes:
            return
        self._charge([(cap.paid.key, cap.paid.event)])
        self._passes.add(cap.paid.key)

    def _charge(self, items: list[tuple[ReleaseKey, Event]]) -> None:
        """Charge releases in one durable transaction; ConsentRefused for one that was made before, or is not planned.

        A negative round is refused: OTHERS would then look charged, and closing would not charge the rest of the plan.
        """
        if self._reservation is None:
            raise ConsentRefused(f"party {self._party!r} keeps a book, and this run was not announced to it")
        if any(each.round < 0 for each, _ in items):
            raise ConsentRefused(f"party {self._party!r} was asked for a release of round {items[0][0].round}")
        if not self._repeats and any(each in self._made for each, _ in items):
            raise ConsentRefused(
                f"party {self._party!r} made the release of round {items[0][0].round}, attempt {items[0][0].attempt} "
                "before: repeating it is another release, under a new attempt"
            )
        try:
            self._reservation.charge(items)
        except BudgetExceeded as error:
            raise ConsentRefused(
                f"party {self._party!r} refuses a release that is beyond the plan its book has set aside: {error}"
            ) from error
        self._made.update(each for each, _ in items)

    def _require_planned(self, query: Query) -> None:
        """Raise ConsentRefused for a piece that the plan does not have under its number: one charge pays for all pieces.

        The party compares the summands of its own sum and the number of pieces. It trusts the coordinator to bound all
        parties' shares together by the weights, as in every release of several parties.
        """
        batch, solver = query.batch, self._plan.solver if self._plan is not None else None
        piece = getattr(solver, "piece", None)
        if piece is not None and self._plan is not None and batch is not None and isinstance(query, Backward):
            planned = piece(self._plan.problem, min(batch.number, self._plan.problem.layout.n_coordinates))
            own = planned.shares().get(self._party)
            if own is not None and _extent(query) == _extent(own):
                return
        raise ConsentRefused(
            f"party {self._party!r} was asked for a piece of a joint release that the job's plan does not have: all pieces "
            "are paid for by one charge"
        )

    def _events(self, query: Query) -> tuple[Event | None, ...]:
        """Return the events charged for a query; a pass over disjoint batches is charged once, with its first batch.

        A batch that does not follow the one before it in the same pass, under the same event, pays for itself. With
        seeded noise a batch that is repeated, or the first that a restarted party is asked for, is part of the pass that
        was paid for.
        """
        events, batch = query.events(), query.batch
        if batch is None or None in events:
            return events
        before, self._last = self._last, query
        if batch.number == 0:
            return events
        if before is None:
            return () if self._repeats and self._made else events
        numbers = (batch.number - 1, batch.number) if self._repeats else (batch.number - 1,)
        follows = any((before.batch, before.events()) == (replace(batch, number=k), events) for k in numbers)
        return () if follows else events

    def _compare(self, notice: Notice, other: str) -> BookHeads:
        """Compare heads without writing: the head of an older copy must not replace a newer head before the check."""
        if not self._policy.book.exists():
            if notice.noted is not None:
                raise LedgerError(
                    f"the book of party {self._party!r} is gone, and the coordinator's ledger has noted its head: restore "
                    "the newest copy"
                )
            return BookHeads(None, None)
        if notice.noted is not None:
            try:
                self._ledger.require(notice.noted)
            except LedgerError as error:
                raise LedgerError(
                    f"the book of party {self._party!r} is not the one that the coordinator's ledger knows: {error}"
                ) from error
        return BookHeads(self._ledger.head(), self._ledger.noted(other))

    def _open(self, run: str, plan: Plan) -> None:
        self._plan, problem = plan, plan.problem
        privacy = self._job.privacy
        if privacy is None or problem.delta is None:
            raise PrivacyError("a book has nothing to set aside for a job without privacy")
        self._policy.check_demand(self._job, self._party, privacy.epsilon, problem.delta)
        self._keep_cap()
        book = DatasetBook(self._ledger, self._account)
        with self._ledger.read() as state:
            known = run in state.dataset_of
        if known:
            self._fresh = False
            self._reservation = book.resume(run, job=self._job.digest)
        else:
            asked = book.preview(plan.releases)
            try:
                self._reservation = book.reserve(plan.releases, job=self._job.digest, run=run)
            except BudgetExceeded:
                self._refuse(
                    "[total]",
                    f"its book has ε = {asked.spent:.4g} of ε = {asked.cap:.4g} at δ = {asked.delta:.3g} spent or "
                    f"reserved, the job asks for ε = {asked.asked:.4g} and ε = {asked.left:.4g} is left",
                )
            self._fresh = True
        self._run = run
        self._made = set(self._reservation.charged())

    def _keep_cap(self) -> None:
        """Make the book's cap the policy's [total]; a change is an entry in the chain."""
        total = self._policy.total
        if self._policy.book.exists():
            with self._ledger.read() as state:
                scope = state.scopes.get(self._account)
                if scope is not None and (scope.epsilon, scope.delta) == (total.epsilon, total.delta):
                    return
        try:
            self._ledger.set_cap(self._account, epsilon=total.epsilon, delta=total.delta, change_delta=True)
        except LedgerError:
            raise
        except BudgetError:
            self._refuse("[total]", "more than that was released before, or is reserved")

    def _close(self, run: str) -> None:
        if self._reservation is None or self._reservation.run != run:
            raise ConsentRefused(f"party {self._party!r} cannot close a run that its book did not open")
        # A process killed before it settled has charged this already; the rounding remainder is not a second release.
        rest = self._rest(run) if OTHERS not in self._reservation.charged() else None
        if rest is not None:
            self._reservation.charge([(OTHERS, rest)])
        self._reservation.settle()
        self._reservation = None

    def _rest(self, run: str) -> Event | None:
        """Return one release that costs the rest of the run's reservation, rounded down; None if nothing is left."""
        with self._ledger.read() as state:
            found = state.run(self._account, run)
            if found.ended:
                return None
            way, left = found.allowance.accounting, found.allowance.reserved - found.allowance.spent
        # ρ = μ²/2 for a Gaussian.
        mu_squared = float(Fraction(left, 1 << UNIT_BITS)) * (2.0 if way is Accounting.ZCDP else 1.0)
        if mu_squared == 0.0:
            return None
        sigma = 1.0 / math.sqrt(mu_squared)
        while cost(event := Gaussian(Adjacency.REPLACE_ONE, 1.0, sigma, 1), way) > left:
            sigma = math.nextafter(sigma, math.inf)
        return event

    def _head(self) -> Head | None:
        return self._ledger.head() if self._policy.book.exists() else None
