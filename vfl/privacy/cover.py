"""Releases that one charge pays for: some units in one frame, each of them once."""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from typing import Self


class Answer(enum.Enum):
    """Answer to the question whether a charge pays for a release. All except the first two refuse the release."""

    COVERED = "an open charge pays for the release"
    NEW = "no charge of this name was open: the release opens a new charge, which must be paid"
    RECORDS = "the charge is for another subsample of the records"
    EVENTS = "the charge is for another event"
    WHOLE = "the charge is for another division into units"
    TWICE = "a unit was used before"
    ORDER = "the unit before was not used"


class Frame(NamedTuple):
    """Facts that all releases under one charge have in common, compared by ==.

    records : number of the subsample whose records are used; None for a run without subsamples.
    events : charged events. whole : the whole that the units divide, such as the seed and the number of the batches of a pass,
        or the cap, centres and scales of all columns.
    """

    records: int | None
    events: object
    whole: object


class Cover:
    """Record of the units that were released under each charge: batches of records, columns, or the one use of a sample.

    Guarantee. Between two payments for a charge, all releases that `admit` accepts have one frame, and no unit is in two of
    them. The units of a frame divide one whole, so together these releases are at most the one release of this whole that the
    charge pays for: of disjoint batches by parallel composition (`Fold`), of disjoint columns as one vector under a record cap
    (`RecordCap`), of a secret sample because it is one draw (`PoissonSubsampledGaussian`).

    Proof. `admit` accepts only units that are different from each other and absent from `used`, in the frame of the charge, and
    adds them to `used`. Only `void` removes units. After it the answer is NEW, and the caller pays again. A caller that goes
    back to a `copy` answers for it that the releases since then are paid for again, or are repeated to the bit.

    The caller decides what follows from an answer, pays for every NEW charge before any release under it, and voids a charge
    that was refused or may have been used by a lost release.

    repeats : True with seeded noise, which repeats a release to the bit: then a unit may be used again.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        self._repeats = repeats
        self._charges: dict[Hashable, tuple[Frame, frozenset[Hashable]]] = {}

    def __contains__(self, charge: object) -> bool:
        """Return True if a charge is open."""
        return charge in self._charges

    def admit(
        self, frame: Frame, units: Sequence[Hashable], charge: Hashable = None, *, after: Hashable = None
    ) -> Answer:
        """Record units to be released, unless the answer is a refusal.

        charge : name of the charge; None if only one charge is open at a time. after : unit that must already have been used;
            None for any order.
        """
        new, unused = frozenset(units), frozenset[Any]()
        known, used = self._charges.get(charge, (frame, unused))
        for one, other, refusal in zip(known, frame, (Answer.RECORDS, Answer.EVENTS, Answer.WHOLE), strict=True):
            if one != other:
                return refusal
        if not self._repeats and (len(new) < len(units) or not used.isdisjoint(new)):
            return Answer.TWICE
        if after is not None and after not in used and not (self._repeats and new <= used):
            return Answer.ORDER
        answer = Answer.COVERED if charge in self._charges else Answer.NEW
        self._charges[charge] = known, used | new
        return answer

    def renew(self, frame: Frame, units: Sequence[Hashable], charge: Hashable = None) -> Answer:
        """Void the charge, and open it again with these units. The answer is NEW, or TWICE if two of them are equal."""
        self.void(charge)
        return self.admit(frame, units, charge)

    def void(self, charge: Hashable = None) -> None:
        """Close a charge, which pays for no further release."""
        self._charges.pop(charge, None)

    def copy(self) -> Self:
        """Return a record of the same charges and units, to go back to."""
        again = copy.copy(self)
        again._charges = dict(self._charges)
        return again
