"""Messages between coordinator and parties that align the parties' records, and what an alignment reveals, in words.

The mathematics is in vfl.crypto.psi. No message holds an identifier.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

REVEALS: Mapping[str, str] = {
    "outsider": "the number of records that all parties have, n",
    "party": "the size of every party's set of ids, n, and which of its own records all have",
    "coordinator": "the size of every set and of every intersection of some of them, which positions of the blinded and "
    "sorted sets are joined; never an id",
}
"""Facts that the alignment alone reveals. n is public: the privacy guarantee takes n and the membership of records as known."""

MOST_IDS = 1 << 28
"""Largest number of ids per party: 8 GiB of curve points."""

LEFT: Mapping[str, str] = {
    "outsider": "the number of ids of the label party, n",
    "party": "the size of every party's set of ids, n, and which of its own ids the label party has; with trust='trusted', the "
    "run's vectors also show every participant who is missing at which party",
    "coordinator": REVEALS["coordinator"] + "; who is missing at which party",
}
"""The same facts for a left join. Noise protects the presence of a person in releases alone."""

PAIRWISE = "with these {m} parties that includes the intersections of fewer than all, pair by pair"


def reveals(n_parties: int, join: str = "inner") -> dict[str, str]:
    """Return {participant: facts that an alignment of `n_parties` reveals to it}, in words. join : as in `Id`."""
    said = dict(LEFT if join == "left" else REVEALS)
    if n_parties > 2:
        said["coordinator"] += "; " + PAIRWISE.format(m=n_parties)
    return said


def alignment_name(salt: bytes) -> str:
    """Return the public name of the alignment with this salt: 32 hexadecimal digits, which do not reveal the salt."""
    return hashlib.sha256(b"vfl alignment " + salt).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class IndexRules:
    """Public rules for the index (positions of the aligned records) that a party keeps on its own disk.

    folder : folder named in the job's environment; None is the default folder of the party's user.
    run : id of the run that may be resumed; None for a run that keeps nothing.
    resumed : True if an earlier process of this run may have left an index.
    later : True keeps the index for later runs of the job on the same files, and replaces an index of other content.
    again : True ignores the index of an earlier alignment.
    last : True removes the run's index after it has been read.
    """

    folder: str | None = None
    run: str | None = None
    resumed: bool = False
    later: bool = False
    last: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class Indexed:
    """Description of the index (positions of the aligned records) that a party keeps.

    alignment : name of the alignment that made the index. hash : hash of the aligned ids in order, with the alignment's salt;
        for a left join, the name.
    """

    alignment: str
    hash: str
    n_records: int


@dataclass(frozen=True, slots=True)
class IdsGreeting:
    """Description of a party's ids before an alignment.

    version : version of the party's code. kind : type by which the party's ids are compared. rule : digest of the rule by which
        the party normalises ids (vfl.crypto.identifiers.Key).
    pending : name of an interrupted alignment of these ids that can continue. kept : index that the party already has.
    """

    version: str
    n_ids: int
    kind: str
    rule: str
    pending: str | None = None
    kept: Indexed | None = None


@dataclass(frozen=True, slots=True)
class AlignmentProgress:
    """Progress of an alignment: number of multiplications done so far, and the total over all parties."""

    done: int
    total: int
    stage: str


@dataclass(frozen=True, slots=True)
class Aligned:
    """Outcome of an alignment: all parties hold the same records in the same order.

    n_records : number of joined ids. sizes : {party: number of its ids}, which the participants know; do not publish sizes. A
        left join gives none, since they depend on who is missing.
    reused : True if every party still had the index of an earlier alignment.
    """

    alignment: str
    n_records: int
    sizes: Mapping[str, int]
    reused: bool = False

    def __str__(self) -> str:
        """Return the outcome in words, for its participants."""
        if not self.sizes:
            return f"{self.n_records:,} records, all of the label party's"
        held = ", ".join(f"{size:,} of {party}" for party, size in self.sizes.items())
        return f"{self.n_records:,} records are common to all parties (of {held})"
