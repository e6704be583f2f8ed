"""Solver DP-CD (Mangold, Bellet, Salmon, Tommasi 2022): SkGD with blocks of one coordinate and the options of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from vfl.errors import SpecificationError
from vfl.solvers.skgd import SkGD

if TYPE_CHECKING:
    from vfl.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CD(SkGD):
    """DP coordinate descent. A pass is one release, μ-GDP with μ = Δ/σ under replace-one; the run is √passes·Δ/σ-GDP.

    This holds under a record cap C, the default if a pass visits every coordinate once: Δ = `Clip(C, p).sensitivity`. With
    clip="coordinate" or a number κ, each coordinate update is one release instead, and the run is √(p·passes)·Δ/σ-GDP. Such a
    release is Σ_i clip_κ(r_i x_ij/√M_j), with M_j the smoothness constant of coordinate j, rounded to the grid g:
    Δ = 2(κ(1 + 2⁻⁵⁰) + g/2), `Clip(κ, 1).sensitivity`, in units of √M_j. This is the paper's rule C_j = C√(M_j/ΣM) with
    κ = C/√ΣM. The step prox_{γψ_j/M_j}(w_j − γ√M_j u/(nM_j)) is post-processing. Source: Mangold et al. 2022, Algorithm 1
    with its prox, and appendix F for private M_j (`smoothness="private"`). The accounting here is exact and uses Δ for
    replace-one; the paper's accounting is looser.

    CD is SkGD with other defaults: whole steps γ = 1 and the last iterate, as in the paper's experiments. SkGD's rules decide
    options left at None. `sampling="uniform"` is the paper's algorithm. The default is 'shuffled', since the paper's tables
    can only be reached by an order without replacement. The options are those of SkGD, except the options of blocks.
    """

    step_size: float | None = 1.0
    iterate: str | None = "last"

    name: ClassVar[str] = "CD"
    block_size: ClassVar[int] = 1  # type: ignore[misc]  # no options, since a block is one coordinate
    tau: ClassVar[None] = None  # type: ignore[misc]
    parallel: ClassVar[int] = 1  # type: ignore[misc]
    noise_geometry: ClassVar[str] = "scaled"  # type: ignore[misc]
    joint: ClassVar[bool] = False  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.sampling in ("nice", "full"):
            raise SpecificationError(
                f"CD: sampling={self.sampling!r} moves several coordinates at once: use SkGD, or one of shuffled, cyclic, "
                "uniform, importance"
            )
        SkGD.__post_init__(self)

    def remark(self, problem: Problem, resolved: Self) -> str:
        """Return '', since CD takes no joint steps on which to remark."""
        return ""

    def _check(self, problem: Problem) -> None:
        if problem.layout.explicit is not None or problem.penalty.grouped:
            raise SpecificationError(
                "CD moves one coordinate at a time: leave the blocks out of the partition and penalties of groups out of "
                "the job, or use SkGD"
            )
        SkGD._check(self, problem)
