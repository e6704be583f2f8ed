"""Interface of a solver: frozen options with their checks, a plan of the releases, and a schedule of queries."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from vfl.base.arguments import check_options
from vfl.base.types import Adjacency, Kept, Vector
from vfl.errors import WITHOUT_PRIVACY, PrivacyError, SpecificationError
from vfl.privacy.events import Gaussian
from vfl.queries import Query, Weighting

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.privacy.events import Event
    from vfl.queries import Gram

T = TypeVar("T")
Released: TypeAlias = tuple[Vector, ...]
Exchange: TypeAlias = Generator[Query, Released, T]
"""Generator that yields queries, receives their releases, and returns a T."""
Schedule: TypeAlias = Exchange[Vector]
"""Generator that yields queries, receives their releases, and returns w (p,) on the scaled features.

A schedule sees only releases, never records. The coordinator throws failures into the generator: BudgetExceeded if charges
for lost releases used up the planned budget, and PartyLost if the coordinator gives a party up. A solver with
`goes_on_without` then rebuilds Xw, and ends with 0 for the lost party's coordinates.
"""


class Vectors(NamedTuple):
    """Numbers of vectors with one entry per record that are sent in a run. A vector counts once per party.

    out : number of vectors of margins or residuals sent to parties. back : number of vectors of margins returned by parties.
    in_steps : part of `out`, and of `back`, in messages for which a party takes several steps; the job may send float32.
    labels, limits : numbers of vectors of labels, and of residual limits, that parties receive and keep. norms : number of
        vectors of record norms returned by parties.
    """

    out: int
    back: int
    in_steps: int = 0
    labels: int = 0
    limits: int = 0
    norms: int = 0


class Solver(Protocol):
    """Training algorithm. The fields are its public options. From public facts only, rules decide options left at None.

    goes_on_without : True if the schedule continues without a party that was given up.
    multinomial : True if the schedule can train K margins per record.
    infers : True if the schedule can make the releases that standard errors need.
    warm_starts : True if the schedule can start from a released model.
    takes_terms : True if the schedule supports terms of single columns (vfl.base.penalties.ColumnTerms).
    weighs : True if the schedule uses only derivatives of the loss, so that record weights can multiply the derivatives.
    penalises_intercept : True if the intercept is penalised like other coefficients.
    """

    __slots__ = ()
    name: ClassVar[str]
    goes_on_without: ClassVar[bool] = False
    multinomial: ClassVar[bool] = False
    infers: ClassVar[bool] = False
    warm_starts: ClassVar[bool] = False
    takes_terms: ClassVar[bool] = False
    weighs: ClassVar[bool] = True
    penalises_intercept: ClassVar[bool] = False

    @property
    def option_names(self) -> frozenset[str]:
        """Names of all options."""
        return frozenset(f.name for f in fields(self))  # type: ignore[arg-type]

    def changed(self, **options: Any) -> Self:
        """Return a copy with other options."""
        return replace(self, **options)  # type: ignore[type-var]

    def __post_init__(self) -> None:
        """Check each option by itself."""
        check_options(self, f"{self.name}: ")

    @property
    def sequential(self) -> bool:
        """True if parties compute one after another, so that each party can use all cores of a shared machine."""
        return False

    @property
    def adaptive(self) -> bool:
        """True if a released value can decide the next event. In no other way do events depend on data."""
        return False

    @property
    def sealed(self) -> bool:
        """True if the schedule works on exact values and releases only the final result, with noise."""
        return False

    @property
    def several_steps(self) -> bool:
        """True if a party takes several steps per message, for which the party gets margins instead of residuals."""
        return False

    @property
    def shows_columns(self) -> bool:
        """True if, under trust='trusted', participants may see others' columns before noise. Policies then ask for consent."""
        return False

    @property
    def by_pass(self) -> bool:
        """True if a pass over disjoint blocks is charged as one release. Records are then capped by their whole rows."""
        return False

    def asks_norms(self, problem: Problem) -> bool:
        """Return True if residuals are capped by norms: parties then send the coordinator the norms of their rows."""
        return self.by_pass

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with every option decided by public rules.

        Raise SpecificationError if the solver cannot run this problem. By default, the solver has no open options.
        """
        return self

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return the charges of a whole run as (event, count), for a resolved solver."""
        ...

    def schedule(self, problem: Problem) -> Schedule:
        """Run the algorithm of a resolved solver. The queries are deterministic, given the released values."""
        ...

    def pieces(self, problem: Problem) -> tuple[Gram, ...]:
        """Return the queries of a release of products of columns, for a resolved solver; () if it releases no products.

        Pieces, columns and kinds of clips depend on public facts alone, so a party can compare them with a query.
        """
        del problem
        return ()

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option of a resolved solver."""
        ...

    def remark(self, problem: Problem, resolved: Self) -> str:
        """Return a sentence for the plan about an option that the user might add, or that has no effect; '' if there is none.

        resolved : this solver with every option decided.
        """
        return ""

    def messages(self, problem: Problem) -> int:
        """Return the number of messages that the coordinator waits for in a run, for a resolved solver."""
        ...

    def vectors(self, problem: Problem) -> Vectors:
        """Return the number of vectors that a run sends, for a resolved solver.

        By default messages alternate: all parties receive one vector, then all parties answer with one vector.
        """
        parties = len(problem.layout.whole())
        pairs = parties * (self.messages(problem) // 2)
        return Vectors(pairs, pairs, norms=parties * self.asks_norms(problem))

    def last_pass(self, problem: Problem) -> int | None:
        """Return the number of passes of a run that never meets the stopping rule; None for a solver without such a rule."""
        return None


@dataclass(frozen=True, slots=True)
class Derivative(Weighting):
    """Weights r_i = ℓ'(v_i, y_i), the derivatives of the loss."""

    loss: Loss

    @property
    def kernel(self) -> str:
        """Name of the loss's fused kernel (compiled loop); '' if the loss has none."""
        return self.loss.kernel

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and {}, since this weighting keeps no per-record state."""
        return self.loss.derivative(margins, labels), {}


def require_clip(solver: str, problem: Problem, clip: float | str | None) -> None:
    """Raise PrivacyError if a private run has no finite clip."""
    if problem.private and clip == math.inf:
        raise PrivacyError(f"{solver}: clip=inf bounds no record's influence: give a finite clip, or {WITHOUT_PRIVACY}")


def require_groups(problem: Problem) -> None:
    """Raise SpecificationError for a group penalty if the partition names no blocks."""
    if problem.penalty.grouped and problem.layout.explicit is None:
        raise SpecificationError(
            f"the {problem.penalty.name} penalty groups columns by the partition's blocks: name them, "
            "FeaturePartition(..., blocks=...)"
        )


def options_of(solver: Any) -> dict[str, Any]:
    """Return {name: value} of all options. Nested options have names such as 'details.early_share'."""
    found: dict[str, Any] = {}
    for f in fields(solver):
        value = getattr(solver, f.name)
        nested = is_dataclass(value) and not isinstance(value, type)
        found |= {f"{f.name}.{name}": one for name, one in options_of(value).items()} if nested else {f.name: value}
    return found


def require_bearable(deviation: float) -> None:
    """Raise PrivacyError if noise of this standard deviation, in units of the cap, would overflow the exact integer sums.

    The check reads only public values and runs during planning. vfl.privacy.rounded_gaussian draws noise of a standard
    deviation of up to 2⁴⁸ grid steps, and a grid step is more than 2⁻²¹ of the cap.
    """
    if not deviation <= 2.0**26:
        raise PrivacyError(
            "epsilon is too small for so many releases: they need more noise than exact sums can carry; raise epsilon, "
            "or lower the number of releases (passes, or larger blocks)"
        )


def bearable(sensitivity: float, z: float, dimension: int) -> Gaussian:
    """Return the event of a release of sensitivity Δ with σ = zΔ, which is 1/z-GDP, if exact sums can hold its noise."""
    require_bearable(z * sensitivity)
    return Gaussian(Adjacency.REPLACE_ONE, sensitivity, z * sensitivity, dimension)
