"""A party's columns as they are computed on: declared, filled, clamped, scaled, and stored column by column.

What is wrong with the data is an error at their owner, before any release; no message holds a cell or count.
Values outside the declared bounds are never an error: a refusal that the others can see would tell of one record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from vfl.kernels import dense as kernels
from vfl.problem import INTERCEPT
from vfl.schema import BinaryLabel, Boolean, Categorical, Numeric, RealLabel, Schema, canonical_category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from parties.sources.base import Content, Origin, Source
    from vfl.schema import Category, Label, Scaling
    from vfl.types import Integers, Matrix, Vector

_MISSING = -1
_UNKNOWN = -2


class Storage(Protocol):
    """A party's (n, p) features as they are kept: `Columns`, or parties.storage.sparse.SparseColumns.

    names : (p,) of the coordinates; the last may be the intercept, a column of ones.
    kernels : the passes over blocks of this kind, vfl.kernels.dense or vfl.kernels.sparse.
    """

    kernels: ClassVar[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the coordinates."""
        ...

    @property
    def n_records(self) -> int:
        """Return n."""
        ...

    @property
    def n_coordinates(self) -> int:
        """Return p, with the intercept."""
        ...

    def block(self, start: int, stop: int) -> Any:
        """Return columns start..stop, for the kernels; nothing is copied."""
        ...

    def column(self, j: int) -> Vector:
        """Return column j, (n,) float64, its zeros written out."""
        ...

    def parted(self, held_out: npt.NDArray[np.bool_]) -> tuple[Storage, Storage]:
        """Return the columns of the records that are trained on, and of those held out, (n,) booleans; each a copy."""
        ...

    def warm(self, *, private: bool) -> None:
        """Load or compile the kernels that a run needs."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """A party's (n, p) features, column-major, so that a block of consecutive columns is one piece of memory.

    array : float64, or float32 if so asked; finite, within the reach of its scaling; not writeable.
    names : (p,) of the coordinates; the last may be the intercept, a column of ones.
    """

    array: Matrix
    names: tuple[str, ...]
    kernels: ClassVar[Any] = kernels

    @property
    def n_records(self) -> int:
        """Return n."""
        return int(self.array.shape[0])

    @property
    def n_coordinates(self) -> int:
        """Return p, with the intercept."""
        return int(self.array.shape[1])

    def block(self, start: int, stop: int) -> Matrix:
        """Return the view (n, stop − start) of columns start..stop; contiguous in column-major order."""
        return self.array[:, start:stop]

    def column(self, j: int) -> Vector:
        """Return column j, (n,) float64."""
        return self.array[:, j].astype(np.float64)

    def parted(self, held_out: npt.NDArray[np.bool_]) -> tuple[Columns, Columns]:
        """Return the columns of the records that are trained on, and of those held out, (n,) booleans; each a copy."""
        parts = []
        for rows in (~held_out, held_out):
            array = np.empty((int(rows.sum()), self.n_coordinates), dtype=self.array.dtype, order="F")
            for j in range(self.n_coordinates):
                np.compress(rows, self.array[:, j], out=array[:, j])
            array.flags.writeable = False
            parts.append(Columns(array, self.names))
        return parts[0], parts[1]

    def warm(self, *, private: bool) -> None:
        """Load or compile the kernels that a run needs."""
        kernels.warm(self.array.dtype, private=private)


def contents_of(schema: Schema, columns: Sequence[str], label: tuple[str, Label] | None = None) -> dict[str, Content]:
    """Return how `open_source` should read a party's columns, in order, and its label (column, declaration) last."""
    kinds: dict[type, Content] = {Numeric: "number", Boolean: "boolean", Categorical: "text"}
    contents = {column: kinds[type(schema[column])] for column in columns}
    if label is not None:
        contents[label[0]] = "text" if isinstance(label[1], BinaryLabel) else "number"
    return contents


def read_columns(
    source: Source,
    columns: Sequence[str],
    schema: Schema,
    scaling: Scaling,
    *,
    intercept: bool = False,
    label: tuple[str, Label] | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> tuple[Columns, Vector | None]:
    """Read a source once, chunk by chunk, into columns and labels; needs the memory of these and of one chunk.

    columns : in the order of the coordinates, which need not be that of the source.
    scaling : of these columns (Scaling.of).
    intercept : append a column of ones.
    label : (column, declaration) at the label party.
    dtype : of the storage, float64 or float32; the work is done in float64.

    Returns the columns and y, (n,) float64: ±1 for a binary label, else as declared. Raises DataError.
    """
    n, p = source.at_most, len(scaling.features) + intercept
    store = np.empty(n * p, dtype=dtype)
    array = store.reshape((n, p), order="F")
    labels = LabelReader(label, source.origin, n) if label else None
    writers = _writers(columns, schema, scaling, source.origin, np.dtype(dtype))
    # Without a column to read, any one tells the number of records.
    wanted = list(dict.fromkeys([*columns, *([label[0]] if label else [])])) or source.names[:1]
    count = 0
    for batch in source.batches(wanted):
        rows = slice(count, count + batch.num_rows)
        for column, write in writers.items():
            write(batch.column(column), array[rows])
        if labels:
            labels.add(batch.column(labels.column), rows)
        count = rows.stop
    if count == 0:
        raise source.origin.error("there are no records")
    if intercept:
        array[:count, -1] = 1.0
    if count < n:
        # The columns move together in place: blank lines may have left room between them.
        del array, writers
        for j in range(1, p):
            store[j * count : (j + 1) * count] = store[j * n : j * n + count]
        store.resize(count * p, refcheck=False)
        array = store.reshape((count, p), order="F")
    array.flags.writeable = False
    names = (*scaling.features, *((INTERCEPT,) if intercept else ()))
    return Columns(array, names), None if labels is None else labels.values(count)


def check_types(
    source: Source,
    columns: Sequence[str],
    schema: Schema,
    scaling: Scaling,
    *,
    label: tuple[str, Label] | None = None,
) -> None:
    """Check what can be seen of the columns' types without looking at cells; arguments as for `read_columns`.

    Raises DataError, as `read_columns` would after an alignment that may have taken long. A text file is converted as it
    is read, so that its first piece is looked at.
    """
    labels = LabelReader(label, source.origin, 0) if label else None
    writers = _writers(columns, schema, scaling, source.origin, np.dtype(np.float64))
    wanted = [*dict.fromkeys([*columns, *([label[0]] if label else [])])]
    batch = next(iter(source.batches(wanted, 1)), None) if wanted else None
    if batch is None:
        return
    nothing = np.empty((0, len(scaling.features)))
    for column, write in writers.items():
        write(batch.column(column).slice(0, 0), nothing)
    if labels:
        labels.add(batch.column(labels.column).slice(0, 0), slice(0, 0))


def _writers(
    columns: Sequence[str], schema: Schema, scaling: Scaling, origin: Origin, dtype: np.dtype[Any]
) -> dict[str, Callable[[pa.Array, Matrix], None]]:
    """Return {column: function that writes a chunk of it to its coordinates in rows of the array}."""
    kinds: dict[type, Callable[..., Callable[[pa.Array, Matrix], None]]] = {
        Numeric: _number_writer,
        Boolean: _boolean_writer,
        Categorical: _category_writer,
    }
    writers = {}
    first = 0
    for column in columns:
        declared = schema[column]
        coordinates = [_Coordinate(scaling, first + k, dtype) for k in range(len(declared.features(column)))]
        writers[column] = kinds[type(declared)](column, declared, coordinates, origin)
        first += len(coordinates)
    return writers


class _Coordinate:
    """Scales the values of one coordinate and keeps them within its reach, to the last bit of the storage."""

    def __init__(self, scaling: Scaling, j: int, dtype: np.dtype[Any]) -> None:
        self.j = j
        self.shift, self.width = scaling.shift[j], scaling.width[j]
        lo, hi = scaling.lo[j], scaling.hi[j]
        self.bounded = bool(np.isfinite(lo) and np.isfinite(hi))
        self.lo, self.hi = toward_zero(lo, dtype), toward_zero(hi, dtype)

    def scale(self, values: Vector) -> Matrix:
        """Return (x − shift)/width in the storage's precision, clamped; overwrites `values`."""
        with np.errstate(over="ignore"):
            if self.shift:
                values -= self.shift
            if self.width != 1.0:
                values /= self.width
            stored = values.astype(self.lo.dtype, copy=False)
        return np.clip(stored, self.lo, self.hi, out=stored) if self.bounded else stored


def toward_zero(bounds: npt.ArrayLike, dtype: np.dtype[Any]) -> Any:
    """Return bounds in the storage's precision: float32 may round them outwards, beyond a sensitivity."""
    exact = np.asarray(bounds, dtype=np.float64)
    with np.errstate(over="ignore"):
        stored = exact.astype(dtype)
    return np.where(abs(stored.astype(np.float64)) > abs(exact), np.nextafter(stored, dtype.type(0)), stored)


def _number_writer(
    column: str, declared: Numeric, coordinates: Sequence[_Coordinate], origin: Origin
) -> Callable[[pa.Array, Matrix], None]:
    coordinate, *indicator = coordinates

    def write(cells: pa.Array, rows: Matrix) -> None:
        values = numbers(cells, column, origin)
        _indicate(np.isnan(values), indicator, rows)
        stored = coordinate.scale(_filled(values, declared.instead, column, origin))
        if not coordinate.bounded and not np.isfinite(stored).all():
            raise origin.error(infinite(column))
        rows[:, coordinate.j] = stored

    return write


def _boolean_writer(
    column: str, declared: Boolean, coordinates: Sequence[_Coordinate], origin: Origin
) -> Callable[[pa.Array, Matrix], None]:
    coordinate, *indicator = coordinates

    def write(cells: pa.Array, rows: Matrix) -> None:
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        if _is_text(cells.type):
            text = cells
            cells = _unless_refused(lambda: text.cast(pa.string()).cast(pa.bool_()))
            if cells is None:
                raise origin.not_boolean(column)
        values = numbers(cells, column, origin)
        _indicate(np.isnan(values), indicator, rows)
        values = _filled(values, declared.instead, column, origin)
        if not ((values == 0) | (values == 1)).all():
            raise origin.not_boolean(column)
        rows[:, coordinate.j] = coordinate.scale(values)

    return write


def _category_writer(
    column: str, declared: Categorical, coordinates: Sequence[_Coordinate], origin: Origin
) -> Callable[[pa.Array, Matrix], None]:
    code_of = _lookup(declared.categories)
    fill = None if declared.fill is None else code_of(declared.fill)
    own, indicator = coordinates[: len(declared.texts)], coordinates[len(declared.texts) :]

    def write(cells: pa.Array, rows: Matrix) -> None:
        codes = _codes(cells, code_of, column, origin)
        _indicate(codes == _MISSING, indicator, rows)
        if fill is not None:
            codes[codes == _MISSING] = fill
        if not indicator and (codes == _MISSING).any():
            raise origin.error(missing(column))
        if declared.unknown == "refuse" and (codes == _UNKNOWN).any():
            raise origin.error(
                f"column {column!r} holds a category that is not declared: declare it, or let such values be none of "
                "them: Categorical(..., unknown='zero')"
            )
        for code, coordinate in enumerate(own):
            rows[:, coordinate.j] = coordinate.scale((codes == code).astype(np.float64))

    return write


def _indicate(absent: npt.NDArray[np.bool_], indicator: Sequence[_Coordinate], rows: Matrix) -> None:
    """Write which cells are missing to the column's indicator, if it has one."""
    for coordinate in indicator:
        rows[:, coordinate.j] = coordinate.scale(absent.astype(np.float64))


def numbers(cells: pa.Array, column: str, origin: Origin) -> Vector:
    """Return a column's cells as (m,) float64 of its own, NaN where missing. Raises DataError for other content."""
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    kind = cells.type
    if _is_text(kind):
        raise origin.not_a_number(column)
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    if not any(fits(kind) for fits in numeric):
        raise origin.error(f"column {column!r} holds values of type {kind}, not numbers: convert or leave it out")
    values = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    # Arrow's own memory may be shared with the user's table, and is read-only.
    return np.array(values, dtype=np.float64)


def _is_text(kind: pa.DataType) -> bool:
    names = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary", "is_binary_view")
    return any(getattr(pa.types, name)(kind) for name in names if hasattr(pa.types, name))


def _unless_refused(convert: Callable[[], pa.Array]) -> pa.Array | None:
    """Return convert(), or None where Arrow refuses; its message would quote a cell."""
    try:
        return convert()
    except pa.ArrowInvalid:
        return None


def infinite(column: str) -> str:
    """Return what is wrong with a column that is not finite in its storage."""
    return (
        f"column {column!r} holds infinite values, or larger ones than the storage can: declare its bounds, to which "
        "they are then clamped"
    )


def missing(column: str) -> str:
    """Return what is wrong with a column that lacks cells and a fill."""
    return f"column {column!r} has missing values: declare fill={{{column!r}: value}}, or complete it"


def _filled(values: Vector, fill: float | None, column: str, origin: Origin) -> Vector:
    absent = np.isnan(values)
    if absent.any():
        if fill is None:
            raise origin.error(missing(column))
        values[absent] = fill
    return values


def _lookup(categories: Iterable[Category]) -> Callable[[object], int]:
    """Return the function from a cell to the position of its category, _MISSING or _UNKNOWN.

    Text is compared as a number where all categories are numbers: '1.0' in a file is the declared 1.
    """
    listed = tuple(categories)
    codes = {canonical_category(category): code for code, category in enumerate(listed)}
    numeric = all(isinstance(c, int | float) and not isinstance(c, bool) for c in listed)

    def code_of(value: object) -> int:
        if value is None or value != value:  # NaN
            return _MISSING
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        text = canonical_category(value)
        if text not in codes and isinstance(value, str):
            text = _as_number(value) if numeric else value.strip()
        return codes.get(text, _UNKNOWN)

    return code_of


def _as_number(text: str) -> str:
    """Return text in the canonical form of the number that it spells, if it does, and else as it is in lower case."""
    try:
        return canonical_category(float(text))
    except ValueError:
        return text.strip().lower()


def _codes(cells: pa.Array, code_of: Callable[[object], int], column: str, origin: Origin) -> Integers:
    """Return (m,) code_of(cell), calling it once for each distinct cell. Raises DataError for lists and the like."""
    if not pa.types.is_dictionary(cells.type):
        if pa.types.is_nested(cells.type):
            raise origin.error(
                f"column {column!r} holds values of type {cells.type}, not categories: convert or leave it out"
            )
        cells = cells.dictionary_encode()
    table = np.array([*(code_of(value) for value in cells.dictionary.to_pylist()), _MISSING], dtype=np.int64)
    positions: Integers = cells.indices.cast(pa.int64()).fill_null(len(table) - 1).to_numpy(zero_copy_only=False)
    return table[positions]


class LabelReader:
    """Collects the label, chunk by chunk, and says what is wrong with it."""

    def __init__(self, label: tuple[str, Label], origin: Origin, at_most: int) -> None:
        self.column, declared = label
        self._declared = declared
        self._origin = origin
        self._values = np.empty(at_most)
        if isinstance(declared, BinaryLabel):
            # Without declared classes: 0, 1 and −1, spelt as numbers, text or truth values.
            self._code_of = _undeclared_class if declared.classes is None else _lookup(declared.listed)

    def add(self, cells: pa.Array, rows: slice) -> None:
        """Take the label's cells of some records."""
        if isinstance(self._declared, RealLabel):
            values = numbers(cells, self.column, self._origin)
            absent = np.isnan(values)
        else:
            codes = _codes(cells, self._code_of, self.column, self._origin)
            absent = codes == _MISSING
            values = codes.astype(np.float64)
        if absent.any():
            raise self._origin.error(
                f"label {self.column!r} has missing values: a record without a label must be left out"
            )
        self._values[rows] = values

    def values(self, count: int) -> Vector:
        """Return y, (count,)."""
        values = self._values[:count]
        if isinstance(self._declared, RealLabel):
            if self._declared.bounds is not None:
                return np.clip(values, *self._declared.bounds)
            if not np.isfinite(values).all():
                raise self._origin.error(f"label {self.column!r} holds infinite values: declare its bounds")
            return values.copy() if count < len(self._values) else values
        if self._declared.classes is not None:
            if (values < 0).any():
                raise self._origin.misread(f"label {self.column!r} holds values other than the two declared classes")
            return np.where(values == len(self._declared.listed) - 1, 1.0, -1.0)
        if (values == _UNKNOWN).any() or ((values == 0).any() and (values == _MINUS_ONE).any()):
            raise self._origin.misread(f"label {self.column!r} is not binary: declare classes=(negative, positive)")
        return np.where(values == 1, 1.0, -1.0)


_MINUS_ONE = 2


def _undeclared_class(value: object) -> int:
    """Return 0, 1 or _MINUS_ONE for what a binary label may hold without declared classes."""
    if value is None or value != value:  # NaN
        return _MISSING
    text = _as_number(value) if isinstance(value, str) else canonical_category(value)
    return {"0": 0, "false": 0, "1": 1, "true": 1, "-1": _MINUS_ONE}.get(text, _UNKNOWN)
