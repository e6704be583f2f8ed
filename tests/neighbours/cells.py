"""Cells that a table may hold: ordinary ones that readers easily misread, and odd ones of every kind."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st


def nan_with(payload: int) -> float:
    """Return a NaN with this payload in its low bits."""
    (value,) = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0000 | payload & 0x800F_FFFF_FFFF_FFFF | 1))
    return float(value)


NUMBERS_AS_TEXT = (
    *("1", "01", "1.0", "1.00", "+1", "-1", "1e0", "1E+0", "0x1", "1_0", "1,000", "1 000", "1'000", " 1", "1 ", "\t1"),
    *("10", "1e1", "0.1", ".1", "1.", "0,1", "1e400", "-0", "-0.0", "00", "١", "１", "½", "1\u00a0000", "1/2", "1%"),
    *("9007199254740993", "18446744073709551616", "1" * 400, "5e-324", "inf", "-Infinity", "INF", "1d0", "1f"),
)
WORDS = (
    *(
        "",
        " ",
        "NA",
        "N/A",
        "NaN",
        "nan",
        "-nan",
        "null",
        "NULL",
        "None",
        "#N/A",
        "true",
        "True",
        "TRUE",
        "false",
        "yes",
    ),
    *("T", "t", "0", "2", "02", "2A", "a", "ä", "a\u0308", "\ud800", "a\udfff", "\x00", "a\x00b", "a\nb", 'a"b', "a,b"),
    *("\ufeff1", "\u200b1", "🙂", "x" * 300, "2026-01-01", "12:00", "1970-01-01T00:00:00Z", "=1+1"),
)
texts = st.sampled_from(NUMBERS_AS_TEXT + WORDS) | st.text(max_size=4)
floats = st.floats() | st.builds(nan_with, st.integers(0, 2**64 - 1)) | st.sampled_from([0.0, -0.0, 1.0, 2.5, 5e-324])
integers = st.integers(-2, 3) | st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, -(10**400)])
decimals = st.decimals() | st.sampled_from(
    [Decimal(text) for text in ("1", "1.0", "1.00", "1E+2", "2.5", "-0.00", "sNaN", "1E-40", "1E+60", "Infinity")]
)
dates = st.sampled_from(
    [
        *(
            dt.date(2026, 1, 1),
            dt.date.min,
            dt.datetime(2026, 1, 1),  # noqa: DTZ001 - a cell without a zone
            dt.datetime.max,  # noqa: DTZ901
            dt.time(12),
            dt.timedelta(days=1),
        ),
        *(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.timedelta.max, dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
    ]
)
numpy_scalars = st.sampled_from(
    [
        *(
            np.dtype(code).type(1)
            for code in ("b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "g", "?", "F", "D")
        ),
        *(np.float16("nan"), np.float32(0.1), np.longdouble("1e4000"), np.int64(2**62 + 1), np.uint64(2**64 - 1)),
        *(np.str_("01"), np.bytes_(b"01"), np.datetime64("2026-01-01"), np.datetime64("NaT"), np.timedelta64(1, "s")),
        *(np.array(1), np.array([1.0]), np.array([]), np.void(b"1"), np.ma.masked),
    ]
)
nested = st.sampled_from(
    [[], [1], [1.0, [2]], (1, 2), {}, {"a": 1}, {1, 2}, frozenset(), [None], [[]], range(2), object, Ellipsis, len]
)
others = st.sampled_from(
    [
        *(
            None,
            True,
            False,
            b"1",
            b"01",
            b"\xff",
            b"",
            bytearray(b"1"),
            memoryview(b"1"),
            1j,
            Fraction(1),
            Fraction(1, 3),
        ),
        *(pa.scalar(1), pa.scalar("01"), pa.scalar(None), NotImplemented),
    ]
)
odd = st.one_of(texts, floats, integers, decimals, dates, numpy_scalars, nested, others)
"""Every kind of cell that somebody may hold in a list, an array of objects or a frame of objects."""


def typed(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return the cells of an Arrow column of a type, including missing ones."""
    return st.none() | _OF_TYPE[kind]


def _fitting(strategy: st.SearchStrategy[Any], kind: pa.DataType) -> st.SearchStrategy[Any]:
    def fits(cell: Any) -> bool:
        try:
            pa.array([cell], kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return False
        return True

    return strategy.filter(fits)


_CHOICES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): texts,
    pa.large_string(): texts,
    pa.binary(): st.sampled_from([b"01", b"1", b"\xff", b"", b"2A"]),
    pa.float64(): floats,
    pa.float32(): floats,
    pa.int64(): integers,
    pa.uint64(): integers,
    pa.int8(): integers,
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 0): decimals,
    pa.decimal128(38, 4): decimals,
    pa.date32(): dates,
    pa.timestamp("ns"): dates,
    pa.timestamp("us", "UTC"): dates,
    pa.duration("s"): dates,
    pa.time64("us"): dates,
    pa.list_(pa.float64()): st.sampled_from([[], [1.0], [1.0, 2.0]]),
    pa.struct([("a", pa.float64())]): st.just({"a": 1.0}),
    pa.dictionary(pa.int32(), pa.string()): texts,
}
_OF_TYPE = {kind: _fitting(cells, kind) for kind, cells in _CHOICES.items()}
TYPES = tuple(_OF_TYPE)
