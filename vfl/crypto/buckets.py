"""Sort and join large sets of blinded points in bounded memory, with buckets on disk.

Guarantee. Results are the same to the bit as without buckets. The range of a point's first byte is divided into `COUNT` equal
parts; each part has a bucket. Buckets are in the order of their points, so concatenating the buckets' results gives the result
for the whole set.

Nothing more is revealed. The file of the buckets holds no identifier, only blinded points and their positions, which the
process holds in any case. The file has no name, only the user of the process can read it (mode 0600), and the system removes
it when the process ends. Sizes of buckets are not sent. The sizes depend on points that look random to everybody who
lacks the secret.
"""

from __future__ import annotations

import math
import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from vfl.base.types import Integers

    Points = npt.NDArray[np.uint8]

LARGE = 1 << 19
"""Smallest number of points for which a process uses the disk. Use of the disk reveals nothing, since all participants know the
sizes of all sets."""
COUNT = 64
PIECE = 1 << 17
_ROW = np.dtype([("point", np.uint8, (32,)), ("position", np.int64)])


def scratch(shape: tuple[int, ...], dtype: npt.DTypeLike, folder: Path | None = None) -> npt.NDArray[Any]:
    """Return an array of this shape, in memory if its first axis is below LARGE, else in an unnamed file in `folder`.

    folder : None for the system's folder of temporary files ($TMPDIR).

    Raises OutputError if the disk has no room.
    """
    if shape[0] < LARGE:
        return np.empty(shape, dtype)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # the memory map outlives the open file
            os.posix_fallocate(file.fileno(), 0, size)  # here, since a later write to a full disk ends the process
            return np.asarray(np.memmap(file, dtype, "w+", shape=shape))
    except OSError as error:
        raise OutputError(
            f"an alignment of this size needs {size / 1e6:,.0f} MB of disk in {str(folder or tempfile.gettempdir())!r}: "
            f"{error.strerror}; make room, or name another folder of temporary files in $TMPDIR"
        ) from None


class Buckets:
    """Points of one set in COUNT buckets, with their positions in the set. Positions ascend within each bucket.

    points : (n, 32). folder : as for `scratch`.
    """

    def __init__(self, points: Points, folder: Path | None = None) -> None:
        n = len(points)
        counts = np.zeros(COUNT, np.int64)
        for start in range(0, n, PIECE):
            counts += np.bincount(_bucket(points[start : start + PIECE]), minlength=COUNT)
        self._ends = np.cumsum(counts)
        self._rows = scratch((n,), _ROW, folder)
        free = self._ends - counts
        for start in range(0, n, PIECE):
            piece = np.empty(min(PIECE, n - start), _ROW)
            piece["point"], piece["position"] = points[start : start + PIECE], np.arange(start, start + len(piece))
            number = _bucket(piece["point"])
            piece = piece[np.argsort(number, kind="stable")]
            ends = np.cumsum(np.bincount(number, minlength=COUNT))
            for k, own in enumerate(np.split(piece, ends[:-1])):
                self._rows[free[k] : free[k] + len(own)] = own
                free[k] += len(own)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Points, Integers]]:
        """Yield the points of each bucket and their positions in the set."""
        for start, stop in zip([0, *self._ends[:-1]], self._ends, strict=True):
            rows = self._rows[start:stop]
            yield np.ascontiguousarray(rows["point"]), np.ascontiguousarray(rows["position"])


def _bucket(points: Points) -> npt.NDArray[np.uint8]:
    """Return the number of each point's bucket. A larger first byte never gives a smaller number."""
    return points[:, 0] // (256 // COUNT)
