"""Query `Descend`: a message to a party, which releases blocks and updates its coordinates step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vfl.base.problem import apart, weighed
from vfl.errors import PrivacyError
from vfl.kernels.geometry import CODES, LOGISTIC, MULTINOMIAL, SQUARED, WEIGHTS, Geometry, capped
from vfl.queries.backward import Backward
from vfl.queries.forward import Forward
from vfl.queries.kinds import vectors_of
from vfl.queries.parts import Need, Reply, Update
from vfl.queries.query import Asked, ReleaseTerms, Weighted, cover, released_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from vfl.base.problem import Block
    from vfl.base.types import Room, Vector
    from vfl.privacy.events import Event, Gaussian, ReleaseKey
    from vfl.privacy.geometry import Clip
    from vfl.queries.parts import RawVector, Records, Rule, Sums
    from vfl.queries.passes import RecordCap
    from vfl.queries.query import AtParty, Query, Rows

WITH_LABELS = {"logistic": LOGISTIC, "multinomial": MULTINOMIAL}
"""Losses whose residuals are capped using margins and labels. For other losses, only the residuals are needed."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Release of one block, and the update that follows from the released vector.

    centre : (s,) public means that are subtracted from the columns, both in the gradient and in X_S Δ.
    scale : (s,) factors of r_i x_{i,S} before clipping; in the default geometry 1/√M_j.
    """

    block: Block
    centre: Vector
    scale: Vector
    clip: Clip
    rule: Rule
    event: Gaussian | None

    def moved(self, w: Vector, u: Vector) -> Vector:
        """Return Δ = rule(w_S, u), (s,). Δ depends on released values only.

        w : (p_k,) the party's coordinates; a rule may also read other coordinates that it names.
        """
        near, own = getattr(self.rule, "near", ()), w[self.block.local]
        return self.rule(own, u, w[list(near)]) if near else self.rule(own, u)  # type: ignore[call-arg]

    def shift(self, delta: Vector) -> Any:
        """Return −c·Δ, which centring adds to the margin of every record. With K margins per record, return (K,).

        delta : (s,) the block's update; with K margins (s·K,): K entries for the first column, then for the next column.
        """
        n_outputs: int = getattr(self.rule, "classes", 1)
        if n_outputs == 1:
            return -float(self.centre @ delta)
        return -(self.centre * delta).reshape(-1, n_outputs).sum(axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class Descend(Weighted):
    """Messages in which each addressed party takes its steps in order. A step releases one block and updates its coordinates.

    start : {party: (p_k,) coordinates of w before the message}.
    parts : {party: number of its first step}, the position of this step among the events.
    replayed : earlier releases of these steps, to repeat their updates without a new release.
    recomputes : True if the party receives margins and labels and recomputes r after every step; else it receives r, and
        all steps of the query use the same r.
    capped : record cap of the pass to which the steps belong. The pass is charged once, for all of its steps. None to clip and
        charge every step separately.
    """

    steps: Mapping[str, tuple[Step, ...]]
    start: Mapping[str, RawVector]
    recomputes: bool = True
    parts: Mapping[str, int] = field(default_factory=dict)
    replayed: tuple[RawVector, ...] | None = None
    capped: RecordCap | None = None

    asked: ClassVar[Asked] = Asked.TRUSTED

    def __post_init__(self) -> None:
        if self.capped is not None:
            self.capped.require_charge(self.events(), later=True)

    @property
    def need(self) -> Need:
        """Return margins and labels if the party recomputes r, else weights."""
        return Need.MARGINS if self.recomputes else Need.WEIGHTS

    def shares(self) -> Mapping[str, Query]:
        """Return each party's message. Its steps keep their positions among the events."""
        shares: dict[str, Query] = {}
        part = 0
        for name, steps in self.steps.items():
            last = part + len(steps)
            shares[name] = self.share(
                name,
                parts={name: part},
                replayed=self.replayed and self.replayed[part:last],
                capped=self.capped and self.capped.of(name),
            )
            part = last
        return shares

    def sizes(self) -> tuple[int, ...]:
        """Return the length of the released vector of each step."""
        return tuple(step.block.size for step in self.ordered())

    def replay(self, released: tuple[Vector, ...]) -> Query | None:
        """Return the message with its releases filled in, so that nothing is released again."""
        return replace(self, replayed=released)

    @property
    def by_pass(self) -> bool:
        """Return True under a record cap with noise. A replayed message counts, too, since its pass was charged."""
        return self.capped is not None and None not in self.events()

    def terms(self) -> tuple[Step, ...]:
        """Return the steps; () for a replayed message, which releases nothing."""
        return () if self.replayed is not None else self.ordered()

    def first_part(self, party: str) -> int:
        """Return the position of the party's first step among the events."""
        return self.parts.get(party, 0)

    def expanded(self, ask: Callable[[Query], Mapping[str, Reply]], *, together: bool = False) -> tuple[Vector, ...]:
        """Return the same releases, under the same keys, from single queries: per step a sum, the update, and a `Forward`.

        together : True to ask for all sums at equal margins in one `Backward` query.
        """
        released: list[Vector] = []
        pending: list[Forward] = []
        own: dict[str, Any] = {"knots": self.knots, "subsample": self.subsample}
        ordered = self.ordered()
        moves = self._moves(ordered, (released[k] for k in range(len(ordered))))
        at_once = max(1, len(ordered)) if together and not self.recomputes else 1
        for part in range(0, len(ordered), at_once):
            steps = ordered[part : part + at_once]
            blocks, centres, scales = zip(*((step.block, step.centre, step.scale) for step in steps), strict=True)
            clip, event = steps[0].clip, steps[0].event  # equal under a record cap
            backward = Backward(self.weighting, blocks, centres, scales, clip, event, part, capped=self.capped, **own)
            released += backward.combine(ask(backward))
            for step, delta in islice(moves, len(steps)):
                party = step.block.party
                pending.append(Forward({party: (step.block, delta)}, shifts={party: step.shift(delta)}, **own))
            if self.recomputes:
                ask(pending.pop())
        for forward in pending:
            ask(forward)
        return tuple(released)

    def _moves(self, steps: Iterable[Step], released: Iterable[Vector]) -> Iterator[tuple[Step, Vector]]:
        """Yield each step with its Δ, as soon as its release is known. Each step starts where the steps before it end."""
        w = {party: start.copy() for party, start in self.start.items()}
        for step, u in zip(steps, released, strict=True):
            party = step.block.party
            delta = step.moved(w[party], u)
            w[party][step.block.local] += delta
            yield step, delta

    def ordered(self) -> tuple[Step, ...]:
        """Return the steps in the order of their releases."""
        return tuple(step for steps in self.steps.values() for step in steps)

    def events(self) -> tuple[Event | None, ...]:
        """Return one event per step. A replayed message releases nothing."""
        return () if self.replayed is not None else tuple(step.event for step in self.ordered())

    def on_shares(self, parties: Sequence[str], label: str) -> Mapping[str, Query]:
        """Return {} for a replayed message, which changes the public model only."""
        if self.replayed is None:
            raise self._needs_margins()
        return {}

    def answer_width(self, n_outputs: int) -> int:
        """Return the number of margins per record."""
        return n_outputs

    def addresses(self, party: str, n_coordinates: int, n_columns: int) -> bool:
        """Return True if the start is of the party's coordinates, and earlier releases have the lengths of the steps."""
        fits = party in self.start and len(self.start[party]) <= n_coordinates
        return fits and (self.replayed is None or tuple(map(len, self.replayed)) == self.sizes())

    def required(self) -> None:
        """Check every step, each of which has an event of its own, and the length of the start."""
        for step in self.ordered():
            _check_step(step)
        for name, start in self.start.items():
            if any(step.block.stop > len(start) for step in self.steps.get(name, ())):
                raise PrivacyError("a query of steps starts from fewer coordinates than the steps change")

    def priced(self, party: str) -> list[ReleaseTerms]:
        """Return the terms of each of the party's steps."""
        return [ReleaseTerms(s.clip.unit, s.event, s.clip.sensitivity_of(s, s.block.size)) for s in self.steps[party]]

    def deltas(self, party: str, released: Sequence[Vector]) -> tuple[Vector, ...]:
        """Return Δ of each of the party's steps, given their releases."""
        return tuple(delta for _, delta in self._moves(self.steps[party], released))

    def updates(self) -> Iterator[Update]:
        """Yield the updates of a replayed message one by one, with the order and the rounding of single steps."""
        for step, delta in () if self.replayed is None else self._moves(self.ordered(), self.replayed):
            party = step.block.party
            yield Update(False, {party: (step.block, delta)}, {party: step.shift(delta)})

    def answer(self, at: AtParty, records: Any, key: ReleaseKey) -> Reply:
        """Take the steps: release u, compute Δ = rule(w_S, u), add X_S Δ to the margins.

        If the party recomputes r, one pass over the records adds X_S Δ and computes the gradient of the next step. Otherwise
        all steps use the same weights r.
        """
        if self.replayed is not None:
            return Reply(self.replayed, at.vector(self, records, self.deltas(at.name, self.replayed)))
        if not self.recomputes:
            made = released_by(self, self.priced(at.name), at, records, key)
            return Reply(made, at.vector(self, records, self.deltas(at.name, made)))
        released: list[Vector] = []
        steps, first = self.steps[at.name], self.first_part(at.name)
        moves = self._moves(steps, (released[k] for k in range(len(steps))))
        delta: Vector = np.zeros(0)
        shift: Any = 0.0
        for k, terms in enumerate(self.priced(at.name)):
            sums = at.step(k, delta, shift) if k else at.enter(self, records)
            released.append(at.release(sums, terms, replace(key, part=first + k)))
            step, delta = next(moves)
            shift = step.shift(delta)
        return Reply(tuple(released), at.leave(delta, shift) if released else at.vector(self, records))

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return the sums of all steps at the weights r, which stay the same."""
        r = records.given("weights")
        return [rows.sum(s.block, s.centre, s.scale, s.clip, r, self.capped) for s in self.steps[rows.party]]

    def vector(self, rows: Rows, records: Records, deltas: Sequence[Vector] = ()) -> Vector:
        """Return Σ X_S Δ, the change of the margins; if the party recomputes r, in the type of the given margins."""
        entered = self.entered(rows, records) if self.recomputes else None
        v = rows.zeros() if entered is None else np.array(entered, np.float64)
        for step, delta in zip(self.steps[rows.party], deltas, strict=True):
            rows.kernels.forward(rows.block(step.block), delta, v, step.shift(delta), threads=rows.threads)
        if entered is None:
            return v
        v -= entered
        return v.astype(records.given("margins").dtype, copy=False)

    def begin(self, rows: Rows, records: Records) -> DescendSteps:
        """Return the state of the steps on some rows, before its first step."""
        return DescendSteps(self, rows, records)

    def entered(self, rows: Rows, records: Records) -> Vector:
        """Return the margins before the first step.

        For squared loss under a record cap and without record weights, return residuals: then no step reads the labels.
        """
        margins = records.given("margins")
        if self.capped is None or self.weighting.kernel != "squared":
            return margins
        y, weights = apart(records.given("labels"), rows.columns.n_records)
        return margins - y if weights is None else margins


class DescendSteps:
    """Steps in progress on some rows. The block whose update X_S Δ has not yet been added to the margins is pending."""

    def __init__(self, query: Descend, rows: Rows, records: Records) -> None:
        self._query, self._rows = query, rows
        self._entered, given = query.entered(rows, records), records.given("labels")
        self._y, self._weights = apart(given, rows.columns.n_records)
        steps, kernel = query.steps[rows.party], query.weighting.kernel
        # The kernels of K classes cap residuals before they weigh them; a clip per block needs weighed residuals.
        if kernel == "multinomial" and (query.capped or not any(step.clip.finite for step in steps)):
            self._y, self._weights = given, None
        self._bounds: Vector | None = None
        if query.capped is not None:
            code = WEIGHTS if self._weights is not None else WITH_LABELS.get(kernel, WEIGHTS)
            self._bounds = rows.bounds(query.capped, records.given("limits"), given, code)
        self._v, self._kind = np.array(self._entered, np.float64), records.given("margins").dtype
        self._nothing = self._pending = rows.columns.block(0, 0)

    def step(self, number: int, delta: Vector, shift: Any) -> Sums:
        """Add X_S Δ + shift of the previous step to the margins and return this step's sum, in one pass over the records."""
        step = self._query.steps[self._rows.party][number]
        X = self._rows.block(step.block)
        sums = self._next_sum(step, X, delta, shift)
        self._pending = X
        return sums

    def _next_sum(self, step: Step, X: Any, delta: Vector, shift: Any) -> Sums:
        """Add (pending columns)·Δ and the shift to the margins, in place; return the clipped sum over X at the new margins.

        If records have weights, r is capped before it is weighed, as in `LinearPredictors.records`; the kernels of K classes do
        the same.
        """
        kernels, threads, weighting = self._rows.kernels, self._rows.threads, self._query.weighting
        pending, v, y, bounds = self._pending, self._v, self._y, self._bounds
        code = None if self._weights is not None else CODES.get(weighting.kernel)
        if bounds is not None and code == SQUARED:  # v holds the residuals
            code = WEIGHTS
        capped_here = code is not None and bounds is not None and step.clip.finite
        if not capped_here:  # the kernel of a capped pass moves the margins itself
            kernels.forward(pending, delta, v, shift, threads=threads)
            pending, delta, shift = self._nothing, delta[:0], 0.0
        if code is None:
            v, code = kernels.weigh(X, lambda margins, labels: weighting(margins, labels, {})[0], v, y), WEIGHTS
            if self._weights is not None:
                v = weighed(v if bounds is None else capped(v, bounds, weighting.kernel), self._weights)
        sums: Sums
        if not step.clip.finite:
            sums = kernels.plain_gradient(X, v, y, code, Geometry(step.centre, step.scale), threads=threads)
            return sums
        at = self._rows.geometry(step.centre, step.scale, step.clip)
        if bounds is None:
            sums = kernels.gradient(X, v, y, code, at, threads=threads)
        else:
            sums = kernels.capped_step(pending, delta, shift, v, code, X, at, bounds, threads=threads)
        return sums

    def leave(self, delta: Vector, shift: Any, room: Room) -> Vector:
        """Add X_S Δ + shift of the last step, and return the change of the margins, (n,), for `LinearPredictors` only.

        The change has the type of the margins that came with the message.

        room : function that returns memory, (size,), for a change in float64. If it returns None, the change is computed in
            place.
        """
        self._rows.kernels.forward(self._pending, delta, self._v, shift, threads=self._rows.threads)
        out = room(self._v.size) if self._kind == np.float64 else None
        change = np.subtract(self._v, self._entered, out=self._v if out is None else out)
        return change.astype(self._kind, copy=False)


@lru_cache(maxsize=2048)
def _check_step(step: Step) -> None:
    # Steps compare by identity, so the cache checks a step only once, even if every pass repeats the step.
    step.block.fits(step.centre, step.scale, *vectors_of(step.rule))
    if step.event is not None:
        cover(step.event.sensitivity, step.clip.sensitivity_of(step, step.block.size))
