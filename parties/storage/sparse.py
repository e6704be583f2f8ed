"""A party's columns by their stored entries alone: SciPy sparse matrices, in memory or in an .npz file.

The columns of a matrix have no names: they are, in order, those that the partition gives to the party, then the label if
the party holds it. What is not stored is 0, and stays 0: sparse columns are scaled by a factor only and never centred, so
their party has to be named in the job's `sparse`, which everybody can read there. Where records are aligned, ids come beside
the matrix: (ids, matrix), or an array under the id column's name in the .npz file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from parties.storage.base import LabelReader, infinite, missing, toward_zero
from vfl.kernels import sparse as kernels
from vfl.kernels.sparse import SparseBlock
from vfl.problem import INTERCEPT
from vfl.schema import Boolean, Categorical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from parties.sources.base import Content, Origin
    from vfl.schema import Label, Scaling, Schema
    from vfl.types import Integers, Vector

PIECE = 1 << 20
"""Entries that are scaled at once."""

_NO_IDS = "its ids mix values of different types, or of an unknown one"


@dataclass(frozen=True, slots=True, eq=False)
class SparseColumns:
    """A party's (n, p) features, column by column, by their stored entries.

    entries : all of them, scaled, finite, within the reach of their scaling; not writeable.
    names : (p,) of the coordinates; the last may be the intercept, of which every entry is stored.
    """

    entries: SparseBlock
    names: tuple[str, ...]
    kernels: ClassVar[Any] = kernels

    @property
    def n_records(self) -> int:
        """Return n."""
        return self.entries.n_records

    @property
    def n_coordinates(self) -> int:
        """Return p, with the intercept."""
        return self.entries.size

    def block(self, start: int, stop: int) -> SparseBlock:
        """Return columns start..stop; nothing is copied."""
        return self.entries.columns(start, stop)

    def column(self, j: int) -> Vector:
        """Return column j, (n,) float64, its zeros written out."""
        one, values = self.block(j, j + 1), np.zeros(self.n_records)
        entries = slice(one.starts[0], one.starts[1])
        values[one.rows[entries]] = one.data[entries]
        return values

    def parted(self, held_out: npt.NDArray[np.bool_]) -> tuple[SparseColumns, SparseColumns]:
        """Return the columns of the records that are trained on, and of those held out, (n,) booleans; each a copy."""
        parts = []
        for kept in (~held_out, held_out):
            entries = kept[self.entries.rows]
            rows = (np.cumsum(kept) - 1)[self.entries.rows[entries]].astype(self.entries.rows.dtype)
            starts = np.concatenate([[0], np.cumsum(entries)])[self.entries.starts]
            block = SparseBlock.of(self.entries.data[entries], rows, starts, int(kept.sum()))
            parts.append(SparseColumns(block, self.names))
        return parts[0], parts[1]

    def warm(self, *, private: bool) -> None:
        """Load or compile the kernels that a run needs."""
        kernels.warm(self.entries, private=private)


def is_sparse(table: Any) -> bool:
    """Whether it is a SciPy sparse matrix or array, of any format."""
    return hasattr(table, "tocsc") and hasattr(table, "nnz")


class SparseSource:
    """A sparse matrix in canonical CSC form, made from any format; the user's own is left alone.

    matrix : entries at the same place are added up, stored zeros dropped, rows sorted within a column.
    contents : its columns, in order; one read as 'id' is no column, it names `ids`. With that one alone, only ids are wanted.
    ids : (n,) of its rows, where they are to be aligned.

    Raises DataError for a matrix of another width, of other values than numbers, whose arrays do not fit together, or
    without the ids that are wanted.
    """

    def __init__(self, matrix: Any, contents: Mapping[str, Content], origin: Origin, *, ids: Any = None) -> None:
        self.origin = replace(origin, by_position=True)
        self.names = tuple(name for name, content in contents.items() if content != "id")
        identified = [name for name, content in contents.items() if content == "id"]
        if matrix.ndim != 2 or (matrix.shape[1] != len(self.names) and (self.names or not identified)):
            shown = ", ".join(self.names[:6]) + (", …" if len(self.names) > 6 else "")
            raise origin.error(f"a sparse matrix must have exactly the columns wanted, in order ({shown})")
        if matrix.dtype.kind not in "iufb":
            raise origin.error(f"holds values of type {matrix.dtype}, not numbers: convert them")
        if not matrix.shape[0]:
            raise origin.error("there are no records")
        self.n_records = self.at_most = int(matrix.shape[0])
        self._ids: Any = None
        if identified:
            self._ids = _identified(ids, identified[0], self.n_records, origin)
        if self.names or not identified:
            self.matrix = origin.attempt(
                lambda: _canonical(matrix), "holds no valid sparse matrix: its index arrays do not fit together"
            )

    def select(self, columns: Sequence[str]) -> Any:
        """Return the CSC matrix of some of its columns, in the order asked for."""
        if tuple(columns) == self.names:
            return self.matrix
        position = {name: j for j, name in enumerate(self.names)}
        return self.matrix[:, [position[name] for name in columns]]

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the ids, which are all that can be read of it row by row; see `Source`."""
        step = rows or PIECE
        for start in range(0, self.n_records, step):
            part = self._ids[start : start + step]
            cells = self.origin.attempt(partial(pa.array, part, from_pandas=True), _NO_IDS)
            yield pa.RecordBatch.from_arrays([cells], names=list(columns or ["id"]))

    def ordered(self, rows: Integers) -> SparseSource:
        """Return it with some of its rows alone, in the order given; takes the memory of a second copy while it is made."""
        self.matrix = _canonical(self.matrix.tocsr()[rows])
        self.n_records = self.at_most = len(rows)
        self._ids = None
        return self


def _identified(ids: Any, column: str, n_records: int, origin: Origin) -> Any:
    if ids is None:
        raise origin.error(
            f"is a sparse matrix without ids: give (ids, matrix), or an .npz file that also holds an array {column!r}; or "
            "bring its rows into the order of the other parties', and leave id out of the job"
        )
    if np.ndim(ids) != 1 or len(ids) != n_records:
        raise origin.error("the ids of a sparse matrix are one for each of its rows")
    return ids


def open_sparse_file(path: Path, contents: Mapping[str, Content], origin: Origin, damaged: str) -> SparseSource:
    """Open what scipy.sparse.save_npz wrote, perhaps with an array of ids beside it."""
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
    """Return a CSC array of float64 of its own; flags that the user's matrix carries are not trusted."""
    import scipy.sparse

    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    matrix = matrix.tocsc()
    arrays = (np.array(matrix.data, dtype=np.float64), matrix.indices.copy(), matrix.indptr.copy())
    own = scipy.sparse.csc_array(arrays, shape=matrix.shape)
    own.sum_duplicates()
    own.eliminate_zeros()
    return own


def read_sparse(
    source: SparseSource,
    columns: Sequence[str],
    schema: Schema,
    scaling: Scaling,
    *,
    intercept: bool = False,
    label: tuple[str, Label] | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> tuple[SparseColumns, Vector | None]:
    """Fill, scale and clamp the stored entries; as `parties.storage.base.read_columns`, which says what the arguments are.

    scaling : without a shift, which would fill the columns.

    Raises DataError.
    """
    origin, n = source.origin, source.n_records
    for column in columns:
        if isinstance(schema[column], Categorical):
            raise origin.error(f"column {column!r} is declared categorical: a sparse matrix holds numbers only")
        if schema[column].missing is not None:
            raise origin.error(
                f"column {column!r} is to have an indicator of missing cells, and a sparse matrix stores none: declare a fill, "
                "or give the party's dense array"
            )
    matrix = source.select(columns)
    values, counts = matrix.data, np.diff(matrix.indptr)
    _fill(values, matrix.indptr, columns, schema, origin)
    store = np.empty(len(values) + intercept * n, dtype=dtype)
    lo, hi = toward_zero(scaling.lo, store.dtype), toward_zero(scaling.hi, store.dtype)
    owner = np.repeat(np.arange(len(columns)), counts)
    for start in range(0, len(values), PIECE):
        piece = slice(start, min(start + PIECE, len(values)))
        j = owner[piece]
        with np.errstate(over="ignore"):
            part = (values[piece] / scaling.width[j]).astype(store.dtype, copy=False)
        np.clip(part, lo[j], hi[j], out=part)
        if not np.isfinite(part).all():
            raise origin.error(infinite(columns[int(j[~np.isfinite(part)][0])]))
        store[piece] = part
    rows, starts = matrix.indices, matrix.indptr.astype(np.int64)
    if intercept:
        store[len(values) :] = 1.0
        rows = np.concatenate([rows, np.arange(n, dtype=rows.dtype)])
        starts = np.append(starts, starts[-1] + n)
    names = (*scaling.features, *((INTERCEPT,) if intercept else ()))
    return SparseColumns(SparseBlock.of(store, rows, starts, n), names), _label(source, label)


def _fill(values: Vector, starts: Integers, columns: Sequence[str], schema: Schema, origin: Origin) -> None:
    """Fill missing entries in place, and check those of boolean columns."""
    absent = np.flatnonzero(np.isnan(values))
    for j in np.unique(np.searchsorted(starts, absent, side="right") - 1):
        fill = schema[columns[j]].fill
        if fill is None:
            raise origin.error(missing(columns[j]))
        entries = values[starts[j] : starts[j + 1]]
        entries[np.isnan(entries)] = float(fill)
    odd = np.flatnonzero((values != 0.0) & (values != 1.0))
    for j in np.unique(np.searchsorted(starts, odd, side="right") - 1):
        if isinstance(schema[columns[j]], Boolean):
            raise origin.not_boolean(columns[j])


def _label(source: SparseSource, label: tuple[str, Label] | None) -> Vector | None:
    if label is None:
        return None
    reader = LabelReader(label, source.origin, source.n_records)
    reader.add(pa.array(source.select([label[0]]).toarray().ravel(), from_pandas=True), slice(0, source.n_records))
    return reader.values(source.n_records)
