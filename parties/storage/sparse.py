"""Sparse storage of a party's columns: only stored entries take memory.

Cells that are not stored are 0 and stay 0, since sparse columns are scaled but never centred. The public job therefore lists
the parties with sparse columns in `sparse`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from parties.storage.cells import infinite, missing, toward_zero
from parties.storage.labels import TargetReader
from vfl.base.columns import Boolean, Categorical
from vfl.base.features import Feature
from vfl.base.problem import INTERCEPT
from vfl.kernels import sparse as kernels
from vfl.kernels.sparse import SparseBlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from parties.sources.base import Origin
    from parties.sources.sparse import SparseSource
    from vfl.base.schema import Factor, Label, Scaling, Schema
    from vfl.base.types import Integers, Vector

PIECE = 1 << 20
"""Number of entries that are scaled at once."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseColumns:
    """A party's (n, p) features, as the stored entries of each column.

    entries : all entries, scaled, finite and within the bounds of their coordinates; not writeable.
    names : (p,) names of the coordinates; the last may be the intercept, all of whose entries are stored.
    """

    entries: SparseBlock
    names: tuple[str, ...]
    kernels: ClassVar[Any] = kernels

    @property
    def n_records(self) -> int:
        """Return n, the number of records."""
        return self.entries.n_records

    @property
    def n_coordinates(self) -> int:
        """Return p, the number of coordinates including the intercept."""
        return self.entries.size

    def block(self, start: int, stop: int) -> SparseBlock:
        """Return columns start..stop − 1, without copying."""
        return self.entries.columns(start, stop)

    def column(self, j: int) -> Vector:
        """Return column j, (n,) float64, including zeros."""
        one, values = self.block(j, j + 1), np.zeros(self.n_records)
        entries = slice(one.starts[0], one.starts[1])
        values[one.rows[entries]] = one.data[entries]
        return values

    def parted(self, held_out: npt.NDArray[np.bool_]) -> tuple[SparseColumns, SparseColumns]:
        """Return two copies: the columns of the training records and of the held-out records. held_out : (n,) booleans."""
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


def read_sparse(
    source: SparseSource,
    columns: Sequence[str],
    schema: Schema,
    scaling: Scaling,
    *,
    intercept: bool = False,
    label: tuple[str, Label] | None = None,
    factors: Sequence[Factor] = (),
    dtype: npt.DTypeLike = np.float64,
) -> tuple[SparseColumns, Vector | None]:
    """Fill, scale and clamp the stored entries. Arguments and result : as for `parties.storage.dense.read_columns`.

    scaling : scaling without shifts, since a shift would fill the columns.

    Raises DataError.
    """
    origin, n = source.origin, source.at_most
    for column in columns:
        if isinstance(schema[column], Categorical):
            raise origin.error(f"column {column!r} is declared categorical: a sparse matrix holds numbers only")
        if isinstance(schema[column], Feature):
            raise origin.error(f"column {column!r} is declared {schema[column].kind}: give a dense table for features")
        if schema[column].missing is not None:
            raise origin.error(
                f"column {column!r} declares an indicator of missing cells, and a sparse matrix stores none: declare a fill, "
                "or give the party's dense array"
            )
    matrix = source.select([schema.sources(column)[0] for column in columns])
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
    return SparseColumns(SparseBlock.of(store, rows, starts, n), names), _label(source, label, factors)


def _fill(values: Vector, starts: Integers, columns: Sequence[str], schema: Schema, origin: Origin) -> None:
    """Fill missing entries in place, and check the entries of boolean columns."""
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


def _label(source: SparseSource, label: tuple[str, Label] | None, factors: Sequence[Factor]) -> Vector | None:
    if label is None:
        return None
    reader = TargetReader(label, factors, source.origin, source.at_most)
    cells = [pa.array(source.select([own]).toarray().ravel(), from_pandas=True) for own in reader.columns]
    reader.add(cells, slice(0, source.at_most))
    return reader.values(source.at_most)
