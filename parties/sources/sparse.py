"""Sparse matrices of SciPy, in memory or in an .npz file.

The columns of a matrix have no names. The columns must be those of the party in the partition, in order, then the label if the
party has it. For alignment, ids are given beside the matrix: as (ids, matrix), or as an array in the .npz file, under the name
of the id column.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.sources.tables import open_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from parties.sources.base import Content, Origin
    from parties.sources.tables import ArraySource
    from vfl.base.types import Integers

PIECE = 1 << 20
"""Number of ids yielded at once."""


def is_sparse(table: Any) -> bool:
    """Return True for a SciPy sparse matrix or array of any format."""
    return hasattr(table, "tocsc") and hasattr(table, "nnz")


class SparseSource:
    """A sparse matrix in canonical CSC form, made from any format. The user's matrix stays unchanged.

    matrix : SciPy matrix. Entries at the same position are added, stored zeros are dropped, and rows are sorted within a
        column.
    contents : columns of the matrix, in order. An entry with content 'id' names the ids and is not a column. If it is the only
        entry, only ids are read.
    ids : (n,) ids of the rows, for alignment.

    Raises DataError if the matrix has a different number of columns, values that are not numbers, or inconsistent arrays, or if
    the wanted ids are missing.
    """

    typed = True

    def __init__(self, matrix: Any, contents: Mapping[str, Content], origin: Origin, *, ids: Any = None) -> None:
        self.origin = replace(origin, by_position=True)
        self.names = tuple(name for name, content in contents.items() if content != "id")
        identified = [name for name, content in contents.items() if content == "id"]
        if matrix.ndim != 2 or (matrix.shape[1] != len(self.names) and (self.names or not identified)):
            shown = ", ".join(self.names[:6]) + (", …" if len(self.names) > 6 else "")
            raise origin.error(f"a sparse matrix must have exactly the columns wanted, in order ({shown})")
        if matrix.dtype.kind not in "iufb":
            raise origin.error(f"the matrix holds values of type {matrix.dtype}, not numbers: convert them")
        if not matrix.shape[0]:
            raise origin.error("there are no records")
        self.at_most = int(matrix.shape[0])
        self.n_records: int | None = self.at_most
        self._ids: Any = None
        if identified:
            self._ids = _identified(ids, identified[0], self.at_most, origin)
        if self.names or not identified:
            self.matrix = origin.attempt(
                lambda: _canonical(matrix), "not a valid sparse matrix: its index arrays do not fit together"
            )

    @property
    def ids(self) -> ArraySource:
        """Return a source of the ids only, one id per row."""
        ids: ArraySource = self._ids
        return ids

    def select(self, columns: Sequence[str]) -> Any:
        """Return the CSC matrix of the named columns, in the order of these names."""
        if tuple(columns) == self.names:
            return self.matrix
        position = {name: j for j, name in enumerate(self.names)}
        return self.matrix[:, [position[name] for name in columns]]

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the ids; a sparse source reads nothing else row by row. See `Source`."""
        yield from self._ids.batches(columns, rows or PIECE)

    def ordered(self, rows: Integers) -> SparseSource:
        """Return a source of these rows, in this order; −1 gives a row of zeros. Needs memory for a second matrix."""
        matrix = self.matrix.tocsr()
        matrix.resize((self.at_most + 1, matrix.shape[1]))  # row −1, the last one, has no entries
        return self._with(matrix[rows])

    def between(self, start: int, stop: int) -> SparseSource:
        """Return a source of the rows start..stop − 1."""
        return self._with(self.matrix[start:stop])

    def _with(self, matrix: Any) -> SparseSource:
        part = copy.copy(self)
        part.matrix = _canonical(matrix)
        part.n_records = part.at_most = int(matrix.shape[0])
        part._ids = None
        return part


def _identified(ids: Any, column: str, n_records: int, origin: Origin) -> ArraySource:
    if ids is None:
        raise origin.error(
            f"a sparse matrix without ids: give (ids, matrix), or an .npz file that also holds an array {column!r}; or "
            "bring its rows into the order of the other parties', and leave id out of the job"
        )
    if getattr(ids, "ndim", 1) != 1 or len(ids) != n_records:
        raise origin.error("a sparse matrix needs one id for each of its rows")
    return open_table({column: ids}, {column: "id"}, origin)


def open_sparse_file(path: Path, contents: Mapping[str, Content], origin: Origin, damaged: str) -> SparseSource:
    """Open a file that scipy.sparse.save_npz wrote, to which an array of ids may have been added."""
    import scipy.sparse

    def read() -> tuple[Any, Any]:
        ids = None
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in (name for name, content in contents.items() if content == "id" and name in archive.files):
                ids = archive[name]
        return scipy.sparse.load_npz(path), ids

    matrix, ids = origin.attempt(read, damaged)
    return SparseSource(matrix, contents, origin, ids=ids)


def _canonical(matrix: Any) -> Any:
    """Return a copy as CSC array of float64. The flags of the user's matrix, such as sortedness, are not trusted."""
    import scipy.sparse

    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    matrix = matrix.tocsc()
    arrays = (np.array(matrix.data, dtype=np.float64), matrix.indices.copy(), matrix.indptr.copy())
    own = scipy.sparse.csc_array(arrays, shape=matrix.shape)
    own.sum_duplicates()
    own.eliminate_zeros()
    return own
