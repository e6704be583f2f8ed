"""Features of text: the position of a category in an order, and hashed buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.arguments import flag, option, whole
from vfl.base.columns import Bounds, Categorical, Category, canonical_category
from vfl.base.features.base import UNDECLARED, OfCells
from vfl.base.features.formula import UNKNOWN, Case, Cell, Condition, apply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.base.features.formula import Formula
    from vfl.base.types import Integers, Vector

FEWEST_BUCKETS, MOST_BUCKETS = 2, 1 << 16


@dataclass(frozen=True, slots=True)
class Ordinal(OfCells):
    """Position of a category in a public order, one coordinate. Range: [0, k − 1] for k categories.

    categories : at least two, in order. Categories are compared as text (vfl.base.columns.canonical_category).
    unknown : treatment of cells that are not in `categories`: 'refuse' (DataError at the column's owner) or 'missing'.
    fill : category that replaces missing cells. of, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "ordinal"
    content: ClassVar[str] = "text"
    categories: tuple[Category, ...]
    unknown: str = option(UNDECLARED, "refuse")

    def __post_init__(self) -> None:
        Categorical(self.categories, fill=self.fill)
        object.__setattr__(self, "categories", tuple(self.categories))
        OfCells.__post_init__(self)

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return [0, k − 1] for the single coordinate."""
        return ((0.0, len(self.categories) - 1.0),)

    @property
    def form(self) -> str:
        """Return 'number' if all categories are numbers, else 'text'."""
        return form_of(self.categories)

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return the formula of the position. Its value is unknown for an undeclared cell."""
        return [Case(tuple((is_category(cell, c), float(k)) for k, c in enumerate(self.categories)), UNKNOWN)]

    def undeclared(self, cell: Cell) -> Formula:
        """Return a formula that is 1 for a cell that is not a declared category, else 0."""
        return Case(tuple((is_category(cell, c), 0.0) for c in self.categories), 1.0)

    def filled_cell(self) -> Vector:
        """Return the code, (1,), that replaces a missing cell."""
        code = -1 if self.fill is None else Categorical(self.categories).texts.index(canonical_category(self.fill))
        return np.array([float(code)])

    def _made(self, values: Integers) -> Iterator[Vector]:
        yield np.where(values < 0, np.nan, values.astype(np.float64))


@dataclass(frozen=True, slots=True)
class Hashed(OfCells):
    """Hash of text with many distinct values into a fixed number of buckets, one coordinate per bucket.

    Range: [0, 1], or [−1, 1] if signed.

    A public hash (MurmurHash3 of the text in UTF-8, as in scikit-learn's FeatureHasher) selects the bucket and, if signed,
    the value −1 or 1. A missing cell is in no bucket.

    buckets : number of buckets, from 2 to 65,536. Texts in one bucket share a coefficient.
    fill : text that replaces missing cells. of, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "hashed"
    content: ClassVar[str] = "text"
    buckets: int = option(
        whole(FEWEST_BUCKETS, MOST_BUCKETS, f"are a whole number from {FEWEST_BUCKETS} to {MOST_BUCKETS:,}")
    )
    signed: bool = option(flag, False)

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column#0', 'column#1', ... for the buckets."""
        return tuple(f"{column}#{j}" for j in range(self.buckets))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return [0, 1] for each bucket; [−1, 1] if signed."""
        return ((-1.0 if self.signed else 0.0, 1.0),) * self.buckets

    @property
    def form(self) -> str:
        """Return the type of the cells in formulas for SQL and ONNX: 'hash', the MurmurHash3 of the text."""
        return "hash"

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return one formula per bucket: 1, or the sign, in the bucket |hash| mod k, and 0 in all other buckets."""
        negative = Condition("less", cell, 0.0)
        lowest = (Condition("equal", cell, -(2.0**31)), float((2**31 - self.buckets) % self.buckets))
        size = Case(((negative, apply("subtract", 0.0, cell)),), cell)
        bucket = Case((lowest,), apply("remainder", size, float(self.buckets)))
        sign = Case(((negative, -1.0),), 1.0) if self.signed else 1.0
        return [Case(((Condition("equal", bucket, float(j)), sign),), 0.0) for j in range(self.buckets)]

    def filled_cell(self) -> Integers:
        """Return the code, (1,), of the fill; without a fill −1, which is in no bucket."""
        return np.array([-1 if self.fill is None else self.code(self.fill)])

    def code(self, cell: object) -> int:
        """Return the code of a text: 2·bucket, plus 1 for a negative sign."""
        hashed = murmur(canonical_category(cell).encode(errors="surrogatepass"))
        # −2³¹ has no positive counterpart in 32 bits; scikit-learn assigns it this bucket.
        bucket = (2**31 - self.buckets if hashed == -(2**31) else abs(hashed)) % self.buckets
        return 2 * bucket + (self.signed and hashed < 0)

    def _made(self, values: Integers) -> Iterator[Vector]:
        for bucket in range(self.buckets):
            vector = (values == 2 * bucket).astype(np.float64)
            vector[values == 2 * bucket + 1] = -1.0
            yield vector


def form_of(categories: tuple[Category, ...]) -> str:
    """Return the type of cells in formulas of these categories: 'number' if all categories are numbers, else 'text'."""
    numeric = all(isinstance(c, int | float) and not isinstance(c, bool) for c in categories)
    return "number" if numeric else "text"


def is_category(cell: Cell, category: Category) -> Condition:
    """Return the condition that a cell equals a declared category."""
    if cell.content == "number":
        return Condition("equal", cell, float(category))
    return Condition("is", cell, canonical_category(category))


def murmur(data: bytes) -> int:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of bytes, as a signed number (Appleby, 2011)."""
    whole, mask = 0, 0xFFFFFFFF
    end = len(data) // 4 * 4
    for start in range(0, end, 4):
        whole ^= _mixed(int.from_bytes(data[start : start + 4], "little"))
        whole = (whole << 13 | whole >> 19) & mask
        whole = (whole * 5 + 0xE6546B64) & mask
    if end < len(data):
        whole ^= _mixed(int.from_bytes(data[end:], "little"))
    whole ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        whole = ((whole ^ whole >> shift) * factor) & mask
    return whole - (1 << 32) if whole >> 31 else whole


def _mixed(word: int) -> int:
    mask = 0xFFFFFFFF
    word = word * 0xCC9E2D51 & mask
    return (word << 15 | word >> 17) * 0x1B873593 & mask
