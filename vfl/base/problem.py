"""Public description of a run's problem: objective, layout of coordinates, kinds of vectors, bounds and budget. No data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from vfl.errors import PartitionError, PrivacyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from vfl.base.losses import Loss
    from vfl.base.penalties import ColumnTerms, Penalty
    from vfl.base.persons import RowRule
    from vfl.base.types import Vector


class Parts(NamedTuple):
    """Labels (n,); offsets log(exposure) (n,), None without exposure; weights s/s_max (n,), None without weights.

    person : number of each row's person, (n,), if persons have several rows; else None.
    """

    labels: Vector
    offsets: Vector | None = None
    weights: Vector | None = None
    person: Vector | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Per-record vectors that a job has besides the labels, and the form of the job's margins.

    exposure : True if records have offsets, which are the first margins. weights : True if records have weights between 0 and
        1.
    n_outputs : margins per record, K with multinomial loss. A vector of margins is then (K·n,), one class after another.
    kind : type of the margins that a party sees in a pass. 'float32' rounds the margins, and parties answer with changes in
        float32.
    rows : rule for persons with several rows, whose numbers follow the other vectors; None if every row is a record.
    """

    exposure: bool = False
    weights: bool = False
    n_outputs: int = 1
    kind: str = "float64"
    rows: RowRule | None = None

    @property
    def count(self) -> int:
        """Return the number of vectors, labels included."""
        return 1 + self.exposure + self.weights + (self.rows is not None)

    def rows_at(self, party: str) -> int:
        """Return the number of entries per record in a party's vectors."""
        return 1 if self.rows is None or self.rows.party != party else self.rows.most_rows

    @property
    def measured(self) -> Targets:
        """Return the targets for measures of a released model, without weights: measures count every record once."""
        return replace(self, weights=False, rows=None)

    def parts(self, given: Any) -> Parts:
        """Split `given`, (count·n,) or (count, n), into the labels and the other vectors, which it holds one after another."""
        others = iter(given.reshape(self.count, -1))
        present = True, self.exposure, self.weights, self.rows is not None
        return Parts(*(next(others) if there else None for there in present))  # type: ignore[arg-type]  # labels are present


def weighed(r: Vector, weights: Vector | None) -> Vector:
    """Return s_i·r_i, (n,); for K values per record (K·n,), one class after the other.

    A weight s_i lies between 0 and 1, so no |r_i| grows: caps and bounds that hold for r hold for s·r. A record of weight 0
    contributes 0 for any r.
    """
    if weights is None or not weights.size:
        return r
    with np.errstate(invalid="ignore"):
        return np.ravel(np.where(weights > 0.0, r.reshape(-1, weights.size) * weights, 0.0))


def beside(labels: Vector, weights: Vector | None) -> Vector:
    """Return the vector that a party reads during a pass: the labels y, (n,), or y followed by the weights s, (2n,)."""
    return labels if weights is None else np.concatenate([labels, weights])


def apart(given: Vector, n_records: int) -> tuple[Vector, Vector | None]:
    """Return y and s, (n,) each, from the result of `beside`; s is None if records have no weights."""
    return given[:n_records], given[n_records:] if given.size > n_records else None


INTERCEPT = "(intercept)"

A = TypeVar("A", bound=np.ndarray)


def coordinates_of(column: str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a column's coordinates: the column's own name, or 'column[class]' for each class."""
    return tuple(f"{column}[{name}]" for name in classes) or (column,)


def _kept(array: A) -> A:
    """Make an array read-only, since several objects share it; return the array."""
    array.flags.writeable = False
    return array


@dataclass(frozen=True)
class Layout:
    """Position of each party's coordinates in w. The intercept is the last column of the label party.

    A column has one coordinate. With K classes a column has K consecutive coordinates, one for each class.

    columns : {party: names of its columns in canonical order}, so that every block is contiguous.
    explicit : {party: sizes of its blocks, in columns} if the partition names blocks; None lets the solver choose the size.
    classes : names of the K classes of multinomial loss; () for losses of one margin per record.
    unused : number of columns that are 0 for every record. Public rules for curves leave such columns.
    """

    columns: Mapping[str, tuple[str, ...]]
    explicit: Mapping[str, tuple[int, ...]] | None = None
    classes: tuple[str, ...] = ()
    unused: int = 0

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of all coordinates of w."""
        listed = (name for names in self.columns.values() for name in names)
        return tuple(own for name in listed for own in coordinates_of(name, self.classes))

    @property
    def width(self) -> int:
        """Return the number of coordinates per column, and of margins per record: K with K classes, else 1."""
        return max(1, len(self.classes))

    @property
    def n_columns(self) -> int:
        """Return p, the number of columns, including the intercept."""
        return sum(len(names) for names in self.columns.values())

    @property
    def n_used(self) -> int:
        """Return the number of columns that are not unused. Rules and caps use this number."""
        return self.n_columns - self.unused

    @property
    def n_coordinates(self) -> int:
        """Return the length of w, p·K with K classes."""
        return self.n_columns * self.width

    def of_columns(self, values: Sequence[float] | Vector) -> Vector:
        """Return per-column values (p,) repeated for each of the column's coordinates."""
        return np.repeat(np.asarray(values, dtype=np.float64), self.width)

    @property
    def has_intercept(self) -> bool:
        """True if a column is the intercept."""
        return any(INTERCEPT in names for names in self.columns.values())

    def whole(self) -> dict[str, Block]:
        """Return one block per party that has columns, with all columns of the party."""
        blocks: dict[str, Block] = {}
        offset = 0
        for party, names in self.columns.items():
            if names:
                blocks[party] = Block(len(blocks), party, 0, len(names) * self.width, offset)
            offset += len(names) * self.width
        return blocks

    def blocks(self, size: int | None) -> tuple[Block, ...]:
        """Cut every party's columns into blocks of `size` columns, the last perhaps smaller. Explicit blocks need size=None."""
        blocks: list[Block] = []
        for party, whole in self.whole().items():
            if self.explicit is not None:
                if size is not None:
                    raise PartitionError(
                        "the partition names its blocks: leave block_size out, or leave the blocks out"
                    )
                sizes = [columns * self.width for columns in self.explicit[party]]
            else:
                step = whole.size if size is None else size * self.width
                sizes = [min(step, whole.size - start) for start in range(0, whole.size, step)]
            start = 0
            for width in sizes:
                blocks.append(Block(len(blocks), party, start, start + width, whole.offset))
                start += width
        return tuple(blocks)

    def singles(self) -> tuple[Block, ...]:
        """Return one block per column, even if the partition names larger blocks."""
        return replace(self, explicit=None).blocks(1)


@dataclass(frozen=True, eq=False)
class Problem:
    """Optimisation problem F(w) = (1/n) Σ ℓ((Xw)_i, y_i) + ψ(w) on the scaled features, with public facts about the problem.

    reach : (p,) B_j, the largest |x_ij| that scaling and clamping allow; inf without declared bounds.
    label_range : width of the declared label bounds; inf without bounds, 2 for classification.
    label_centre : middle of the declared label bounds; 0 without bounds and for classification.
    label_low : lower declared bound of the label; -inf without bounds.
    epsilon, delta, mu : the budget; None without privacy. μ² is what Gaussian DP allows under (ε, δ), minus `besides`.
    besides : μ² of the run's other Gaussian releases, such as those for the knots of curves. ε includes these releases.
    smoothness : source of the constants M_j: 'private', 'bounds', 'data', or (p,) declared M_j.
    smoothness_share : share of μ² that a private release of the M_j may spend.
    one_sided : True if most declared ranges do not cross 0, so that columns are far from orthogonal to the intercept.
    sparse : parties with sparse columns. These columns are never centred, so that entries that are not stored remain 0.
    exposure : declared bounds of the exposures; None without exposure. Margins are then Xw + log(exposure).
    weighted : True if records have weights s between 0 and 1; then F(w) = (1/n) Σ s_i ℓ((Xw)_i, y_i) + ψ(w). Bounds on the
        slope and curvature of ℓ also hold for s·ℓ.
    inference : share that standard errors may spend of the μ² left by other releases outside the passes; None without standard
        errors.
    subsamples : number of disjoint subsamples, of n_records each, on which the run trains in turn; 1 for other runs.
    start : (p,) the released model from which training starts, on the scaled features; None for the constant model.
    terms : penalties and bounds of single columns, in addition to ψ; None if there are none.
    penalise_intercept : True if ψ includes the intercept. Only solvers that need a strongly convex F set this option.
    """

    n_records: int
    layout: Layout
    loss: Loss
    penalty: Penalty
    reach: Vector
    label_range: float
    label_centre: float
    epsilon: float | None
    delta: float | None
    mu: float | None
    smoothness: str | Vector
    smoothness_share: float
    one_sided: bool = False
    penalise_intercept: bool = False
    sparse: frozenset[str] = frozenset()
    label_low: float = -math.inf
    start: Vector | None = None
    exposure: tuple[float, float] | None = None
    weighted: bool = False
    inference: float | None = None
    subsamples: int = 1
    terms: ColumnTerms | None = None
    besides: Fraction = Fraction(0)

    @property
    def private(self) -> bool:
        """True if releases are noised and charged."""
        return self.mu is not None

    @property
    def inferred(self) -> bool:
        """True if the result will have standard errors, from releases of the run or from subsamples."""
        return self.inference is not None or self.subsamples > 1

    @cached_property
    def intercept(self) -> Vector:
        """Return (p,) values: 1 for the intercept, 0 for features."""
        columns = (name for names in self.layout.columns.values() for name in names)
        return _kept(self.layout.of_columns([1.0 if name == INTERCEPT else 0.0 for name in columns]))

    @property
    def begin(self) -> Vector:
        """Return the model (p,) from which training starts without a release: `start`, else the middle of the labels."""
        return self.intercept * self.label_centre if self.start is None else self.start

    @property
    def centred(self) -> bool:
        """True if columns are centred at released means. An unpenalised intercept absorbs the centring."""
        return self.layout.has_intercept and not self.penalise_intercept

    @cached_property
    def centred_coordinates(self) -> npt.NDArray[np.bool_]:
        """Return (p,) booleans: True for features that are centred at their released means."""
        free = np.zeros(self.layout.n_coordinates, dtype=bool)
        for party, block in self.layout.whole().items():
            free[block.coordinates] = self.centred and party not in self.sparse
        return _kept(free & (self.intercept == 0.0))

    @cached_property
    def penalised(self) -> Vector:
        """Return (p,) values: 1 for penalised coordinates (features; the intercept if `penalise_intercept`), else 0."""
        return _kept(np.ones(self.layout.n_coordinates) if self.penalise_intercept else 1.0 - self.intercept)

    def describe(self) -> str:
        """Return the objective F as one line of text."""
        said = ", the intercept included" if self.penalise_intercept and self.layout.has_intercept else ""
        term = self.penalty.describe()
        weights = "s_i·" if self.weighted else ""
        own = "" if self.terms is None else " + the smoothness and shape of curves"
        return f"F(w) = (1/n)·Σ {weights}{self.loss.name}((Xw)_i, y_i){'' if term == '0' else f' + {term}'}{said}{own}"

    def value(self, w: Vector, margins: Vector, labels: Vector) -> float:
        """Return F(w), which depends on the data and has no noise: for tests, benchmarks and non-private use only."""
        return float(self.loss.value(margins, labels).mean()) + self.penalty_of(w)

    def penalty_of(self, w: Vector) -> float:
        """Return ψ(w), including the terms of single columns."""
        parts = self.layout.blocks(None) if self.penalty.grouped else self.layout.whole().values()
        kept = self.penalised > 0
        own = 0.0 if self.terms is None else self.terms.value(w)
        return own + sum(self.penalty.value(w[part.coordinates][kept[part.coordinates]]) for part in parts)


@dataclass(frozen=True, slots=True)
class Block:
    """Columns start..stop − 1 of one party (a set S), in the canonical order of the party's layout.

    index : position of the block among all blocks.
    offset : position in w of the party's first coordinate.
    """

    index: int
    party: str
    start: int
    stop: int
    offset: int

    @property
    def size(self) -> int:
        """Return |S|, the number of columns."""
        return self.stop - self.start

    @property
    def local(self) -> slice:
        """Return the block as a slice of the party's coordinates."""
        return slice(self.start, self.stop)

    @property
    def coordinates(self) -> slice:
        """Return the block as a slice of w."""
        return slice(self.offset + self.start, self.offset + self.stop)

    def fits(self, *vectors: Vector) -> None:
        """Raise PrivacyError unless each vector has one entry per column of the block."""
        if any(len(vector) != self.size for vector in vectors):
            raise PrivacyError(f"a block of {self.size} columns came with a vector of another length")
