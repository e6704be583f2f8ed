"""Dense storage of a party's columns: checked against the declarations, filled, clamped, scaled, and stored column by column.

Errors in the data are raised at their owner, before any release. No message contains a cell or a count. A value outside the
declared bounds is never an error, since other parties would see a refusal that may depend on one record.

`Curves` keeps the cells of curves whose knots a run finds, until the knots are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from parties.sources.base import ABSENT
from parties.storage.cells import infinite, toward_zero
from parties.storage.labels import TargetReader
from parties.storage.made import made, reader_of
from vfl.base.columns import Known
from vfl.base.features import Crossed, Curve, DateParts, Feature, curves_in, placed
from vfl.base.features.curve import edges_of, histogram
from vfl.base.features.products import ranges_of
from vfl.base.problem import INTERCEPT
from vfl.errors import PrivacyError, SpecificationError
from vfl.kernels import dense as kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from parties.sources.base import Origin, Source
    from parties.storage.labels import GroupReader
    from vfl.base.schema import Factor, Label, Scaling, Schema
    from vfl.base.types import Integers, Matrix, Vector

    Key = tuple[str, Any]
    """A column of the data, and the declaration that says how to read its cells."""


ROWS = 65_536
"""Number of records whose coordinates are computed at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class PendingCurve:
    """A curve without declared knots, or a pair with such a curve. cells : keys of the cells, one per source of the column.

    scales : scaling of each coordinate.
    """

    column: str
    declared: Curve | Crossed
    cells: tuple[Key, ...]
    scales: Sequence[Any]


@dataclass(slots=True, eq=False)
class Curves:
    """Columns of one party whose knots are not known yet, in the order of the party's columns.

    cells : {key: (n,) values as read}. Columns that read one source in the same way share an array.
    placed : knots for which the storage now has the coordinates; None for straight lines.
    fixed : True once a query has read these coordinates; then the knots cannot change.
    """

    pending: list[PendingCurve] = field(default_factory=list)
    cells: dict[Key, npt.NDArray[Any]] = field(default_factory=dict)
    placed: tuple[tuple[float, ...], ...] | None = field(default=None, init=False)
    fixed: bool = field(default=False, init=False)

    def keep(
        self, column: str, declared: Any, sources: Sequence[str], scales: Sequence[Any], n: int
    ) -> list[npt.NDArray[Any]]:
        """Return arrays, (n,) each, to be filled with the cells of a column's sources; [] for a column that needs no knots."""
        if all(curve.knots is not None for curve in curves_in(declared)):
            return []
        sides = [side.declared for side in declared.sides] if isinstance(declared, Crossed) else [declared]
        keys = tuple((source, _alike(side)) for source, side in zip(sources, sides, strict=True))
        for key, side in zip(keys, sides, strict=True):
            self.cells.setdefault(key, np.empty(n, "M8[s]" if isinstance(side, DateParts) else np.float64))
        self.pending.append(PendingCurve(column, declared, keys, scales))
        return [self.cells[key] for key in keys]

    @property
    def own(self) -> list[tuple[PendingCurve, Curve]]:
        """Return the curves for which the run finds knots. Pairs use some of these knots, too."""
        return [(own, own.declared) for own in self.pending if isinstance(own.declared, Curve)]

    def histogram(self, number: int, cells: int) -> Integers:
        """Return the counts of a curve's values in the cells of its public grid, (cells,)."""
        if not 0 <= number < len(self.own):
            raise PrivacyError(
                "a histogram was requested for a curve that the party does not have, or whose knots are declared"
            )
        own, curve = self.own[number]
        return histogram(np.clip(self.cells[own.cells[0]], *curve.limits), edges_of(curve.limits, cells))

    def place(self, knots: tuple[tuple[float, ...], ...] | None, array: Matrix, *, fixes: bool) -> None:
        """Compute all coordinates of the curves and of their pairs, in place. knots : None leaves the coordinates unchanged.

        fixes : True to refuse every later change, including a change from straight lines (None) to curves.

        Raises PrivacyError for a change of fixed knots, for a wrong number of curves, and for knots that no declaration could
        have.
        """
        fixed, self.fixed = self.fixed, self.fixed or fixes
        if knots is None or knots == self.placed:
            return
        if fixed:
            raise PrivacyError("the knots of curves changed after columns were read; start another run")
        if len(knots) != len(self.own):
            raise PrivacyError("the number of given knots differs from the number of the party's curves")
        found = {own.column: points for (own, _), points in zip(self.own, knots, strict=True)}
        try:
            declared = [placed(own.column, own.declared, found) for own in self.pending]
        except SpecificationError as error:
            raise PrivacyError(f"the given knots are not allowed by any declaration: {error}") from error
        array.flags.writeable = True
        for each, own in zip(declared, self.pending, strict=True):
            for rows in _pieces(len(array)):
                vectors = made(each, [self.cells[key][rows] for key in own.cells])
                for scale, vector in zip(own.scales, vectors, strict=True):
                    array[rows, scale.j] = scale.scale(vector)
        array.flags.writeable = False
        self.placed = knots

    def of(self, rows: npt.NDArray[np.bool_] | slice) -> Curves:
        """Return the same columns for chosen records only."""
        return Curves(self.pending, {key: values[rows].copy() for key, values in self.cells.items()})


def _alike(declared: Any) -> Any:
    """Return the declaration without the options that do not affect how cells are read."""
    if not isinstance(declared, Curve):
        return declared
    return replace(declared, pieces=None, knots=None, smooth=None, shape=None)


def _pieces(n: int) -> Iterator[slice]:
    return (slice(start, start + ROWS) for start in range(0, n, ROWS))


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A party's (n, p) features, column-major, so that a block of consecutive columns is contiguous in memory.

    array : float64 or float32; finite, within the bounds of its scaled coordinates; not writeable.
    names : (p,) names of the coordinates; the last may be the intercept, a column of ones.
    curves : columns of curves without declared knots. Their coordinates are computed once knots are found.
    """

    array: Matrix
    names: tuple[str, ...]
    curves: Curves = field(default_factory=Curves)
    kernels: ClassVar[Any] = kernels

    @property
    def n_records(self) -> int:
        """Return n, the number of records."""
        return int(self.array.shape[0])

    @property
    def n_coordinates(self) -> int:
        """Return p, the number of coordinates including the intercept."""
        return int(self.array.shape[1])

    def block(self, start: int, stop: int) -> Matrix:
        """Return a view of columns start..stop − 1, (n, stop − start), contiguous in column-major order."""
        return self.array[:, start:stop]

    def column(self, j: int) -> Vector:
        """Return column j, (n,) float64."""
        return self.array[:, j].astype(np.float64)

    def parted(self, held_out: npt.NDArray[np.bool_]) -> tuple[Columns, Columns]:
        """Return two copies: the columns of the training records and of the held-out records. held_out : (n,) booleans."""
        parts = []
        for rows in (~held_out, held_out):
            array = np.empty((int(rows.sum()), self.n_coordinates), dtype=self.array.dtype, order="F")
            for j in range(self.n_coordinates):
                np.compress(rows, self.array[:, j], out=array[:, j])
            array.flags.writeable = False
            parts.append(Columns(array, self.names, self.curves.of(rows)))
        return parts[0], parts[1]

    def warm(self, *, private: bool) -> None:
        """Load or compile the kernels that a run needs."""
        kernels.warm(self.array.dtype, private=private)


def read_columns(
    source: Source,
    columns: Sequence[str],
    schema: Schema,
    scaling: Scaling,
    *,
    intercept: bool = False,
    label: tuple[str, Label] | None = None,
    factors: Sequence[Factor] = (),
    groups: GroupReader | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> tuple[Columns, Vector | None]:
    """Read a source once, chunk by chunk, into columns and labels. Memory: the result plus one chunk.

    columns : names, in the order of the coordinates, which may differ from the order in the source.
    scaling : scaling of these columns (Scaling.of).
    intercept : True to append a column of ones.
    label : (column, declaration) at the label party. factors : exposure and weight columns, read with the label.
    groups : object that collects the codes of the group columns.
    dtype : type of the storage, float64 or float32. Computations are in float64.

    Returns the columns and y, (n,) float64: ±1 for a binary label, else as declared. With k factors, y is the first row of an
    array (1 + k, n) (`TargetReader.values`). Raises DataError.
    """
    n, p = source.at_most, len(scaling.features) + intercept
    store = np.empty(n * p, dtype=dtype)
    array = store.reshape((n, p), order="F")
    options: Any = {"label": label, "factors": factors, "groups": groups}
    reading = ColumnReaders(source.origin, n, columns, schema, scaling, dtype, **options)
    count = 0
    # A party that needs no column still has to count its records, so read its first column.
    for batch in source.batches(reading.wanted or source.names[:1]):
        rows = slice(count, count + batch.num_rows)
        reading.add(batch, array[rows], rows)
        count = rows.stop
    if count == 0:
        raise source.origin.error("there are no records")
    if intercept:
        array[:count, -1] = 1.0
    if count < n:
        # Blank lines may have left unused rows: move the columns together, in place.
        del array
        for j in range(1, p):
            store[j * count : (j + 1) * count] = store[j * n : j * n + count]
        store.resize(count * p, refcheck=False)
        array = store.reshape((count, p), order="F")
    array.flags.writeable = False
    names = (*scaling.features, *((INTERCEPT,) if intercept else ()))
    labels = None if reading.labels is None else reading.labels.values(count)
    return Columns(array, names, reading.curves.of(slice(count))), labels


def check_types(source: Source, columns: Sequence[str], schema: Schema, scaling: Scaling, **options: Any) -> None:
    """Check the columns' types, and that the first piece of the source has a label. Arguments : as for `read_columns`.

    Raises DataError early; `read_columns` would raise it only after a long alignment. A text file has no types, so the first
    piece of the file is read and converted.
    """
    reading = ColumnReaders(source.origin, 0, columns, schema, scaling, **options)
    batch = next(iter(source.batches(reading.wanted)), None) if reading.wanted else None
    if batch is not None:
        reading.check(batch.slice(0, 0))
        if reading.labels:
            reading.labels.require_some(batch)


class ColumnReaders:
    """Readers of all columns of a source. at_most : bound on the number of records. wanted : names of the columns to read."""

    def __init__(
        self,
        origin: Origin,
        at_most: int,
        columns: Sequence[str],
        schema: Schema,
        scaling: Scaling,
        dtype: npt.DTypeLike = np.float64,
        *,
        label: tuple[str, Label] | None,
        factors: Sequence[Factor],
        groups: GroupReader | None,
    ) -> None:
        self.curves, self._groups, self._origin = Curves(), groups, origin
        self.labels = TargetReader(label, factors, origin, at_most) if label else None
        self._writers, first = [], 0
        for column in columns:
            count = len(schema[column].features(column))
            coordinates = [_Coordinate(scaling, first + k, np.dtype(dtype)) for k in range(count)]
            self._writers.append(_writer(column, schema, coordinates, origin, self.curves, at_most))
            first += count
        self._known = [column for column in columns if isinstance(schema[column], Known)]
        own = [source for column in columns for source in schema.contents(column)]
        of_labels = self.labels.columns if self.labels else ()
        self.wanted = list(dict.fromkeys([*own, *of_labels, *(groups.sources if groups else ())]))
        self._width, self._checked = first, 0

    def add(self, batch: pa.RecordBatch, array: Matrix, rows: slice) -> None:
        """Convert a chunk of records, and write it to `array`. rows : positions of these records among all records."""
        self._origin.at(rows.start)
        for column in self._known:
            there = ABSENT not in (batch.schema.metadata or {})
            batch = batch.append_column(column, pa.repeat(there, batch.num_rows))
        for write in self._writers:
            write(batch, array, rows)
        if self.labels:
            self.labels.add([batch.column(column) for column in self.labels.columns], rows)
        if self._groups:
            self._groups.add(batch, rows)

    def check(self, batch: pa.RecordBatch) -> None:
        """Check the next chunk of cells, and keep no feature."""
        rows = slice(self._checked, self._checked + batch.num_rows)
        self.add(batch, np.empty((batch.num_rows, self._width), order="F"), rows)
        self._checked = rows.stop

    def end(self) -> None:
        """Check all labels together, after the last chunk."""
        if self.labels:
            self.labels.values(self._checked)


def _writer(
    column: str, schema: Schema, coordinates: Sequence[_Coordinate], origin: Origin, curves: Curves, n: int
) -> Callable[[pa.RecordBatch, Matrix, slice], None]:
    """Return a function that writes a chunk of cells to the column's coordinates in given rows of the array.

    curves : collects the column, with its cells for n records, if its knots are not known yet.
    """
    declared, sources = schema[column], schema.sources(column)
    sides = [side.declared for side in declared.sides] if isinstance(declared, Crossed) else [declared]
    named = None if isinstance(declared, Feature) else column
    readers = [reader_of(side, source, origin, named) for side, source in zip(sides, sources, strict=True)]
    n_own = len(ranges_of(declared))
    own, indicators = coordinates[:n_own], coordinates[n_own:]
    kept = curves.keep(column, declared, sources, own, n)

    def write(batch: pa.RecordBatch, rows: Matrix, place: slice) -> None:
        read = [reader(batch.column(source)) for reader, source in zip(readers, sources, strict=True)]
        values = [found for found, _ in read]
        for room, found in zip(kept, values, strict=False):
            room[place] = found
        for indicator in indicators:  # a pair has no indicator
            rows[:, indicator.j] = indicator.scale(read[0][1].astype(np.float64))
        for coordinate, vector in zip(own, made(declared, values), strict=True):
            stored = coordinate.scale(vector)
            if not coordinate.bounded:
                origin.refuse(~np.isfinite(stored), origin.error(infinite(column)))
            rows[:, coordinate.j] = stored

    return write


class _Coordinate:
    """Scales the values of one coordinate and clamps them to its bounds, exactly in the precision of the storage."""

    def __init__(self, scaling: Scaling, j: int, dtype: np.dtype[Any]) -> None:
        self.j = j
        self.shift, self.width = scaling.shift[j], scaling.width[j]
        lo, hi = scaling.lo[j], scaling.hi[j]
        self.bounded = bool(np.isfinite(lo) and np.isfinite(hi))
        self.lo, self.hi = toward_zero(lo, dtype), toward_zero(hi, dtype)

    def scale(self, values: Vector) -> Matrix:
        """Return (x − shift)/width in the storage's precision, clamped. The given values are overwritten."""
        with np.errstate(over="ignore"):
            if self.shift:
                values -= self.shift
            if self.width != 1.0:
                values /= self.width
            stored = values.astype(self.lo.dtype, copy=False)
        return np.clip(stored, self.lo, self.hi, out=stored) if self.bounded else stored
