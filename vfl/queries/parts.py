"""Parts of queries and answers: blocks of columns, weightings, rules, statistics, and per-record vectors."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.base.problem import Block
    from vfl.base.types import Integers, Kept, Vector
    from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian
    from vfl.privacy.geometry import Clip
    from vfl.privacy.selection import NoisyScore

    Knots = Mapping[str, tuple[tuple[float, ...], ...]]
    """{party: released knots of each curve without declared knots, in the order of the party's columns}."""
    RawVector: TypeAlias = Vector
    """A vector that may hold NaN and infinite numbers, because it was computed from releases."""
    Names: TypeAlias = frozenset[str]
    Shift: TypeAlias = float | Vector
    """A number to add to every margin; with K margins per record, (K,)."""
    Stride: TypeAlias = tuple[str, int]
    """A column of groups, and the factor of its codes."""
    Sums: TypeAlias = Integers | Vector
    """Sums over records: exact integers in multiples of a grid, or float64 if nothing clips the records' contributions."""


HELD_OUT, HELD_NORMS, HELD_GROUPS = "held out", "held out: norms", "held out: groups"
"""Names under which `LinearPredictors` (coordinator.states) keeps Xw, norms and groups of the held-out part. A
weighting cannot read these vectors."""
HELD_OFFSETS = "held out: offsets"
"""Name of the offsets log(exposure) of the held-out records."""
COLUMNS = "columns"
"""Name under which `LinearPredictors` keeps one party's columns, one after another, until products with them are released."""
HELD_POSITIONS = "held out: positions"
"""Name under which `LinearPredictors` keeps the public positions of its held-out records among all held-out records."""


Placed: TypeAlias = "tuple[Block, RawVector]"
"""A block with one number per column."""
Scaled: TypeAlias = "tuple[Block, Vector, Vector]"
"""A block with the centres and the scales of its columns, so that z_ij = scale_j (x_ij − c_j)."""


class Update(NamedTuple):
    """Change of the public model: w_S + Δ for each party's block S, and numbers to add to every margin.

    reset : True to start from w = 0. coordinates : {party: (block, Δ)}. shifts : {party: number}.
    """

    reset: bool
    coordinates: Mapping[str, Placed]
    shifts: Mapping[str, Shift]


class Term(Protocol):
    """One sum over a block of columns that a query releases, Σ_i clip(scale ∘ r_i (x_{i,S} − centre)) + noise of the event."""

    @property
    def block(self) -> Block: ...  # noqa: D102 - the docstring of the class

    @property
    def centre(self) -> Vector: ...  # noqa: D102

    @property
    def scale(self) -> Vector: ...  # noqa: D102

    @property
    def clip(self) -> Clip: ...  # noqa: D102

    @property
    def event(self) -> Gaussian | PoissonSubsampledGaussian | None: ...  # noqa: D102


class Weighting(Protocol):
    """Elementwise function of a record's margin, label and state. The value r_i multiplies the record's row in a sum."""

    __slots__ = ()

    @property
    def kernel(self) -> str:
        """Return the name of a fused kernel that computes r from only margins and labels; '' if there is none."""
        return ""

    @property
    def squares_weights(self) -> bool:
        """Return True if records count by the squares of their weights."""
        return False

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and the per-record state to replace, {name: (n,)}. No argument is changed.

        kept : {name: per-record state}. Only `LinearPredictors` sees this state. Empty if a party evaluates the weighting.
        """
        ...


class Rule(Protocol):
    """Update of a block: Δ = rule(w_S, u), a deterministic function of released values that party and solver both evaluate.

    A rule may have an attribute `near`, positions of other coordinates of the party that it also reads, as a third argument. A
    rule with an attribute `classes` = K changes K margins per record. A rule without this attribute changes one.
    """

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return Δ, (s,)."""
        ...


class ScoreRule(Protocol):
    """Scores of coordinates for a greedy selection. Each score has sensitivity `sensitivity` under replace-one.

    w, u : (s,) the party's coordinates, and its clipped sums, exact and without noise, in units of the cap.
    """

    @property
    def sensitivity(self) -> float:
        """Return the largest change of one score under replace-one."""
        ...

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return one score per coordinate, (s,)."""
        ...

    def least(self, w: Vector, contribution: float, n_records: int) -> float:
        """Return the smallest valid sensitivity of the scores at w. A party refuses a rule that claims a smaller one.

        contribution : a, the largest amount that one record adds to a sum u_j, in the units of u_j. Replacing a record changes
            u_j by at most 2a.
        """
        ...


class Statistic(Protocol):
    """A sum, over records, of a vector that depends on margin and label. The sum is a multiple of a grid.

    grid : value of one step of the sum. dimension : s. sensitivity : Δ of the sum under replace-one, in units of the sum, not
        in steps; inf for a statistic that may only be released without noise.
    """

    __slots__ = ()

    @property
    def grid(self) -> float:
        """Return the value of one step of the sum."""
        ...

    @property
    def dimension(self) -> int:
        """Return the length of the sum."""
        ...

    @property
    def sensitivity(self) -> float:
        """Return the largest change of the sum when one record is replaced."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Return names such as HELD_NORMS of vectors that `LinearPredictors` keeps.

        A statistic of held-out records is called with them, in this order, after margins and labels.
        """
        return ()

    @property
    def labels_only(self) -> bool:
        """Return True for a statistic that ignores the margins, so that the label party can compute it without others."""
        return False

    @property
    def weighed(self) -> bool:
        """Return True for a statistic of training records that is also called with their weights, after margins and labels."""
        return False

    def __call__(self, margins: Vector, labels: Vector) -> Integers | Vector:
        """Return the sum, (s,) int64; float64 if the sensitivity is infinite. Defined for every input, even NaN."""
        ...

    def of(self, margins: Vector, labels: Vector, *kept: Vector | None) -> Integers | Vector:
        """Return the sum. kept : the vectors that the statistic needs, or the weights."""
        function: Any = self
        sums: Integers | Vector = function(margins, labels, *kept)
        return sums


class Need(enum.Enum):
    """Kinds of per-record vectors that parties see for a query."""

    NOTHING = "nothing"
    WEIGHTS = "weights"
    MARGINS = "margins and labels"


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Per-record vectors that a query uses, (n,) each. The vectors are data: never logged, and never kept by a party.

    The vectors are float64, except that margins are float32 if the job has precision='float32'.

    weights : r, if the party may see only residuals.
    margins, labels : Xw and y, if the party may see both. If records have weights s, labels are (2n,): y, then s.
    limits : C/‖z_i‖, the largest residual under a record cap; given only together with margins and labels.
    """

    weights: Vector | None = None
    margins: Vector | None = None
    labels: Vector | None = None
    limits: Vector | None = None

    def given(self, name: str) -> Vector:
        """Return the vector of this name. Raises PrivacyError if the query came without the vector."""
        vector: Vector | None = getattr(self, name)
        if vector is None:
            raise PrivacyError("a query arrived without the per-record vectors that it needs")
        return vector

    def of(self, party: str) -> Records:
        """Return the vectors that a party sees."""
        del party
        return self


@dataclass(frozen=True, slots=True, eq=False)
class RowRecords(Records):
    """Vectors with an entry per row, for the party whose persons have several rows; all others see folded ones.

    party : the label party. folded : vectors with an entry per person (vfl.base.persons).
    """

    party: str = field(kw_only=True)
    folded: Records = field(kw_only=True)

    def of(self, party: str) -> Records:
        """Return the vectors that a party sees."""
        return self if party == self.party else self.folded


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """Reply of a party.

    released : one vector per release, with noise, so the vectors may be published.
    vector : (n,), for `LinearPredictors` only, in the floating-point type of the margins that came with the query.
    selected : the party's best coordinate in w with its noisy score, for the executor only. The executor discards all
        scores and all losing coordinates.
    seconds : time that the party took for computing, in seconds.
    """

    released: tuple[Vector, ...] = ()
    vector: Vector | None = None
    selected: NoisyScore | None = None
    seconds: float = 0.0
