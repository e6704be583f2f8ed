"""The only module that holds Xw, y and other per-record state unencrypted.

Parties see what the trust setting allows: residuals, or linear predictors and labels if messages carry several steps.
Under trust='secure', `coordinator.states.iterate` takes the place of this module, and no participant holds these vectors.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vfl.base.holdout import Side
from vfl.base.persons import UNITS, Persons
from vfl.base.problem import Parts, Targets, beside, weighed
from vfl.errors import PartyLost, PrivacyError
from vfl.kernels.geometry import capped, record_limits
from vfl.network.shards.lending import no_room
from vfl.queries import HELD_GROUPS, HELD_NORMS, HELD_OFFSETS, HELD_OUT, HELD_POSITIONS, Need, Records, RowRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from vfl.base.types import Integers, Room, Vector
    from vfl.queries import Query, Reply, Tally

    Saved = tuple[Vector, dict[str, Vector], dict[str, Vector]]

HELD = (HELD_OUT, HELD_NORMS, HELD_GROUPS)


class StateLost(PartyLost):
    """A part of the state was lost with the process that held it. The state belongs to no party, so `party` is ''."""


class Place(NamedTuple):
    """Positions of a shard's first records: `first` among all training records, `first_held_out` among all held-out records."""

    first: int
    n_trained: int
    first_held_out: int


def _own(name: str, vector: Vector) -> Vector:
    del name
    return vector


class LinearPredictors:
    """Values Xw + o, (n,), of the training records, with labels y and weights s, (n,). Initially w = 0. o : offsets or 0.

    labels : y, followed by the vectors that `targets` names. The offsets stay if Xw is computed anew.

    held_out : (n + m,) booleans, True for the m held-out records; None for no held-out records. Norms, groups and values of
        held-out records are kept only for a `Tally` query.
    place : positions of these records if they are one shard; None if they are all records.
    counts : number of training records per shard; (n,) for a single shard.
    targets : form of the values and of `labels`. The values here are float64, even if messages carry them in another type. A
        record cap holds for any values, so rounding costs no privacy.
    share : function of the name and value of a vector that most queries carry. It returns the copy to keep, for example in
        memory that other processes read.
    room : function that returns memory, (size,), for the next Xw + o, or None to let numpy allocate it.
    n_records : number of all records; needed only if persons have several rows (`Targets.rows`). Every vector then has an entry
        per row. The label party sends and receives such vectors, padded; all others, draws and batches have one per person.
    units : number of steps into which the grid of a tally is divided, as at the label party (vfl.base.persons).
    """

    def __init__(
        self,
        labels: Vector,
        held_out: np.ndarray | None = None,
        place: Place | None = None,
        targets: Targets | None = None,
        share: Callable[[str, Vector], Vector] = _own,
        room: Room = no_room,
        n_records: int | None = None,
    ) -> None:
        targets = targets or Targets()
        self._kind = np.dtype(targets.kind)
        self._share, self._room = share, room if self._kind == np.float64 else no_room
        given = targets.parts(labels)
        self._persons: Persons | None = None
        self._held_persons: Persons | None = None
        self.units, self._by_row = 1, "" if targets.rows is None else targets.rows.party
        if given.person is not None and targets.rows is not None:
            if n_records is None:
                raise PrivacyError("persons with several rows are kept in one process, for all records at once")
            n = int(np.count_nonzero(given.person != -1.0))
            whole = Persons.of(given.person[:n], n_records, targets.rows)
            whole.unpadded(given.person)  # of the right length
            given = Parts(*(None if v is None else v[:n] for v in given))  # type: ignore[arg-type]  # there are labels
            out = np.zeros(n_records, dtype=bool) if held_out is None else held_out
            self._persons, self._held_persons = whole.among(~out), whole.among(out)
            self.units, held_out = UNITS, None if held_out is None else out[whole.person]
        kept = slice(None) if held_out is None else ~held_out
        apart = slice(0) if held_out is None else held_out
        self._held_labels, own = given.labels[apart], given.labels[kept]
        self._weights = None if given.weights is None else given.weights[kept]
        self._shown = share("labels", beside(own, self._weights))
        self._labels = self._shown[: len(own)]
        self.counts: tuple[int, ...] = (len(own) if self._persons is None else self._persons.count,)
        self._held_offsets = None if given.offsets is None else given.offsets[apart]
        self._offsets = None if given.offsets is None else given.offsets[kept]
        self._n_outputs = targets.n_outputs
        self._values = np.zeros(self._n_outputs * len(self._labels)) if self._offsets is None else self._offsets
        self._place = place or Place(0, self.counts[0], 0)
        self._held: dict[str, Vector] = {}
        self._kept: dict[str, Vector] = {}
        self._capped: tuple[Vector, float, Vector] | None = None

    @np.errstate(all="ignore")  # a warning would reveal one record's overflow, here and below
    def tally(self, query: Tally) -> Integers | Vector:
        """Return the sum of the query's statistic over the query's records, in steps of grid/units.

        The sum has no noise; only `release` may receive it. With several rows per person, a row adds what a record would add,
        times its weight, so measures are means over persons of means over their rows. By Jensen's inequality the variance of a
        mean over rows is at most that of a single row, so errors computed from N and from released shares still cover.
        """
        statistic, persons = query.statistic, self._persons
        vectors: list[Vector | None] = [self._values, self._labels, *([self._weights] if statistic.weighed else [])]
        if query.side is not Side.TRAINING:
            persons, kept = self._held_persons, [self._of_held_out(name) for name in (HELD_OUT, *statistic.needs)]
            vectors = [kept[0], self._held_labels, *kept[1:]]
        total: Any = statistic.of if persons is None else partial(persons.total, statistic.of)
        made: Integers | Vector = total(*vectors)
        return made

    def _of_held_out(self, name: str) -> Vector:
        if name == HELD_POSITIONS:
            if self._held_persons is not None:
                return self._held_persons.person.astype(np.float64)
            return self._place.first_held_out + np.arange(float(len(self._held_labels)))
        known = self._held_offsets if name == HELD_OFFSETS else self._held.get(name)
        wanted = self._held_labels.size * (self._n_outputs if name == HELD_OUT else 1)
        if known is None or known.shape != (wanted,):
            what = "margins" if name == HELD_OUT else name.removeprefix(f"{HELD_OUT}: ")
            raise PrivacyError(f"held-out records are tallied before their {what} are known")
        return known

    def shares(self, query: Query) -> Mapping[str, Query]:
        """Return {party: its part of the query}; {} for a query that only changes this state."""
        return query.shares()

    def state(self) -> Saved:
        """Return the state that queries change, for `restore`. Queries replace vectors and never change them in place."""
        return self._values, dict(self._held), dict(self._kept)

    def restore(self, state: Saved) -> None:
        """Undo all changes since `state` was taken."""
        self._values, self._held, self._kept = state[0], dict(state[1]), dict(state[2])

    def drawn(self, name: str) -> Vector | None:
        """Return the kept vector of this name that the coordinator drew, with an entry per record; None if there is none."""
        kept = self._kept.get(name)
        if kept is None or self._persons is None:
            return kept
        return kept[np.unique(self._persons.person, return_index=True)[1]]

    @np.errstate(all="ignore")
    def records(self, query: Query) -> Records:
        """Return the per-record vectors that the parties see for a query.

        Vectors that the query's weighting replaces are stored.
        """
        cap, weighting, persons = query.capped, query.weighed_by(), self._persons
        if query.need is Need.MARGINS:
            if persons is not None:
                raise PrivacyError(
                    f"linear predictors of rows are sent to nobody, and {type(query).__name__} needs them"
                )
            return self.for_steps(None if cap is None else cap.cap)
        if query.need is Need.NOTHING or weighting is None:
            return Records()
        fold, members = query.batch, self._kept.get("batch") if query.sampled else None
        if fold is not None and fold.divides:
            members = fold.members(self._place.n_trained)[self._place.first : self._place.first + self.counts[0]]
            members = members if persons is None else persons.expand(members)
        weights, replaced = weighting(
            self._values, self._labels, self._kept if members is None else self._kept | {"batch": members}
        )
        self._kept.update(replaced)
        if cap is not None:  # the charge of a pass relies on this cap, so it is applied here
            weights = capped(weights, self._limits(cap.cap), weighting.kernel)
        for _ in range(1 + weighting.squares_weights):
            weights = weighed(weights, self._weights)
        # The charge relies on disjoint batches or on a sample, so membership is applied here and not by the weighting.
        weights = weighed(weights, members)
        if persons is None:
            return Records(weights=weights)
        return RowRecords(persons.padded(weights), party=self._by_row, folded=Records(persons.fold(weights)))

    @np.errstate(all="ignore")  # a cast to float32 may overflow
    def for_steps(self, cap: float | None) -> Records:
        """Return the per-record vectors that a party sees to take several steps. cap : record cap, or None without a cap."""
        limits = None if cap is None else self._limits(cap)
        margins = self._values.astype(self._kind, copy=False)
        return Records(margins=margins, labels=self._shown, limits=limits)

    def vectors(self) -> Iterator[Vector]:
        """Yield all vectors that queries replace and that `restore` may need."""
        yield self._values
        yield from self._held.values()
        yield from self._kept.values()

    def _limits(self, cap: float) -> Vector:
        """Return C/‖z_i‖, (n,), the limits of residuals. The result is cached, so that transports can store it once."""
        norms = self._kept.get("norms")
        if norms is None:
            raise PrivacyError("a record cap is asked for before the norms of the records are known")
        if self._capped is None or self._capped[0] is not norms or self._capped[1] != cap:
            self._capped = norms, cap, self._share("limits", record_limits(norms, cap))
        return self._capped[2]

    def take(self, query: Query, replies: Mapping[str, Reply]) -> None:
        """Apply the vectors in the replies to a query, which have an entry per record, or at the label party per row."""
        persons = self._persons if query.side is Side.TRAINING else self._held_persons
        given = {party: reply.vector for party, reply in replies.items() if reply.vector is not None}
        if persons is not None:
            K = query.answer_width(self._n_outputs)
            given = {q: (persons.unpadded if q == self._by_row else persons.expand)(v, K) for q, v in given.items()}
        self._add_up(query.target, given.values())

    def absorb(self, target: str, vectors: Iterable[Vector]) -> None:
        """Add up vectors with an entry per training record, as the coordinator draws them; see `_add_up`."""
        persons = self._persons
        self._add_up(target, vectors if persons is None else map(persons.expand, vectors))

    @np.errstate(all="ignore")
    def _add_up(self, target: str, vectors: Iterable[Vector]) -> None:
        """Add up the vectors in order.

        `target` says what to do with the sum: add to Xw, replace Xw, or keep under that name.
        """
        total: Vector | None = None
        for vector in vectors:
            if vector.dtype == np.float32 and (target != "add" or self._kind != np.float32):
                raise PrivacyError("a float32 vector arrived for linear predictors that are kept in float64")
            total = vector if total is None else total + vector
        if total is None:
            return
        if target == HELD_OUT and self._held_offsets is not None:
            total = total + self._held_offsets
        if target in HELD:
            self._held[target] = total
        elif target == "add":
            self._values = np.add(self._values, total, out=self._room(total.size))
        elif target == "reset":
            self._values = total if self._offsets is None else total + self._offsets
        else:
            self._kept[target] = total
