"""A party's side of an alignment, run to its end at once."""

from __future__ import annotations

from vfl.crypto import psi
from vfl.crypto.identifiers import normalised


class Blinder(psi.Blinder):
    """`own` and `blind` call progress(points done, points in all) after every piece."""

    def own(self, ids, progress=None):
        return drained(self.owning(ids), progress)

    def blind(self, points, owner, progress=None):
        return drained(self.blinding(points, owner), progress)


def drained(steps, progress):
    while True:
        try:
            done = next(steps)
        except StopIteration as end:
            return end.value
        if progress is not None:
            progress(*done)


def normalise(column, **given):
    """Return the normal form of a column of ids."""
    return list(normalised(lambda: [column], **given)[0])
