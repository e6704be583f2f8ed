"""What coordinator and parties say to each other to align their records, what of it goes by, and what it reveals.

The mathematics is in vfl.security.psi; here are the messages around it. None of them holds an identifier.
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
"""By alignment alone, beside what training shows. n is public: the guarantee is conditioned on it and on membership."""

PAIRWISE = "with these {m} parties that includes the intersections of fewer than all, pair by pair"


def reveals(n_parties: int) -> dict[str, str]:
    """Return what aligning so many parties shows to whom, in words."""
    said = dict(REVEALS)
    if n_parties > 2:
        said["coordinator"] += "; " + PAIRWISE.format(m=n_parties)
    return said


def alignment_name(salt: bytes) -> str:
    """Return the public name of the alignment under a salt, 32 hexadecimal digits, which does not tell the salt."""
    return hashlib.sha256(b"vfl alignment " + salt).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a party leaves in its own place on disk. Public.

    folder : its place as the job's environment names it; None is the one of the party's own user.
    run : id of the run that may have to be resumed, None for one that leaves nothing.
    resumed : whether an earlier process of that run may have left its index.
    later : keep the index for later runs of the job on the same files; one that was made of other content is replaced.
    again : do not look for the index of an earlier alignment.
    last : nothing after this needs the run's index: it is removed once it has been read.
    """

    folder: str | None = None
    run: str | None = None
    resumed: bool = False
    later: bool = False
    last: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class Indexed:
    """What a party says of its index.

    alignment : name of the alignment that made it. hash : of the aligned ids in their order, under its salt.
    """

    alignment: str
    hash: str
    n_records: int


@dataclass(frozen=True, slots=True)
class IdsGreeting:
    """What a party says of its ids before an alignment.

    version : of the code that it runs. kind : of its ids, as they are compared.
    pending : name of an alignment of these ids that was cut off and can go on. kept : the index that it holds already.
    """

    version: str
    n_ids: int
    kind: str
    pending: str | None = None
    kept: Indexed | None = None


@dataclass(frozen=True, slots=True)
class Aligning:
    """Progress of an alignment: multiplications done, of all that its parties make."""

    done: int
    total: int
    stage: str


@dataclass(frozen=True, slots=True)
class Aligned:
    """All parties hold the same records in the same order.

    n_records : that all parties have. sizes : {party: number of its ids}, known to the participants, not to be published.
    reused : whether every party held the index of an earlier alignment.
    """

    alignment: str
    n_records: int
    sizes: Mapping[str, int]
    reused: bool = False
