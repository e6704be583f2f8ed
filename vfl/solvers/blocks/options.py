"""Options of block coordinate descent, and the shares of its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vfl.base.arguments import (
    CLIP,
    SHARE,
    check_options,
    flag,
    number,
    one_of,
    option,
    require_number,
    require_positive,
    that,
    whole,
)
from vfl.errors import SpecificationError
from vfl.queries.protocol import Solver
from vfl.solvers.iterates.convergence import TOLERANCE

BOUNDS = "bounds"
COORDINATE = "coordinate"
RECORD = "record"
CLIPS = (RECORD, COORDINATE, BOUNDS)
SWEEPS = ("party", "visit", "block")
ITERATES = ("last", "average", "tail")
GEOMETRIES = ("scaled", "isotropic")


def clip_or_rule(argument: str, clip: float | str) -> float | str:
    """Return a clip: a positive number, as float, or one of CLIPS."""
    if isinstance(clip, str):
        if clip not in CLIPS:
            raise SpecificationError(f"{argument} must be a positive number or one of {', '.join(CLIPS)}, not {clip!r}")
        return clip
    if not (1e-90 <= CLIP(argument, clip) <= 1e90 or clip == math.inf):
        raise SpecificationError(f"{argument}={clip!r} is beyond what exact sums can hold: rescale the columns")
    return float(clip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Record cap and shares of μ², for studies. Public rules decide fields that are None (vfl.solvers.rules.record_defaults).

    record_clip : record cap C, divided by √p, in units of √M_j, for clip='record'.
    early_share : share of the passes' μ² for the first 30 % of the passes, under clip='record'. The tail average omits these
        first passes. 0 gives every pass the same share.
    residual_share : share of the μ² left by releases of moments and labels. It pays for a histogram of residuals after the
        early passes, under clip='record' and squared or Huber loss. C is then chosen from it (vfl.solvers.releases.residuals).
        0 releases no histogram.
    excess_share : share of the μ² left by these releases. It pays for two sums of the gradient parts that C
        cuts off, under clip='record' and logistic or squared loss. If these sums show a bias that exceeds the noise of a wider
        cap, C is multiplied by 1.6 or 2.6 (vfl.solvers.releases.excess). 0 releases no sums.
    label_share : share of the μ² that the moments leave. It pays for label statistics, which decide where the intercept starts
        (vfl.solvers.releases.start). For squared loss, κ (the cap) is also multiplied by the released spread of the labels over
        the typical spread. 0 releases no statistics.
    """

    record_clip: float | None = option(number(lambda clip: 1e-90 <= clip <= 1e90, "must be positive and finite"), None)
    early_share: float | None = option(SHARE, None)
    residual_share: float | None = option(SHARE, None)
    excess_share: float | None = option(SHARE, None)
    label_share: float | None = option(SHARE, None)

    def __post_init__(self) -> None:
        check_options(self, "Shares: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOptions(Solver):
    """Options of SkGD and CD, and what follows from them alone. `SkGD` documents the fields."""

    block_size: int | None = option(whole(), None)
    sampling: str = "shuffled"
    tau: int | None = None
    parallel: int = option(whole(), 1)
    passes: int | None = option(whole(), None)
    local_passes: int | None = option(whole(), None)
    outer_rounds: int | None = option(whole(), None)
    inner_rounds: int | None = option(whole(), None)
    clip: float | str | None = option(clip_or_rule, None)
    reserve_passes: int = option(whole(0), 0)
    shares: Shares | None = option(
        that(lambda value: isinstance(value, Shares), "must be vfl.solvers.Shares(...)"), None
    )
    noise_geometry: str = option(one_of(GEOMETRIES), "scaled")
    step_size: float | None = option(require_positive, None)
    momentum: float | None = option(require_number, None)
    joint: bool | None = option(flag, None)
    tol: float | None = option(TOLERANCE, None)
    iterate: str | None = option(one_of(ITERATES), None)
    sweep: str = option(one_of(SWEEPS), "party")
    seed: int = 0

    @property
    def sequential(self) -> bool:
        """True unless a round moves blocks of several parties."""
        return self.parallel == 1 and self.sampling not in ("nice", "full")

    @property
    def turns(self) -> int:
        """Number of passes that a party makes over its own columns per message."""
        return self.local_passes or 1

    @property
    def sweeps(self) -> bool:
        """True if a party takes several steps per message, each from the margins after the step before."""
        return self.sweep != "block" and self.sampling not in ("nice", "full") and self.parallel == 1

    @property
    def adaptive(self) -> bool:
        """True if released values decide the order of blocks or the noise. Importance sampling and some caps depend on M.

        The charge for passes under a record cap depends only on their number, never on released values.
        """
        if self.by_pass:
            return False
        return self.sampling == "importance" or self.noise_geometry == "isotropic" or self.clip == BOUNDS

    @property
    def decided(self) -> Shares:
        """Record cap, and the share of μ² that each kind of release spends. In a resolved solver all of these are set."""
        return self.shares or Shares()

    @property
    def label_share(self) -> float:
        """Share of μ² for label statistics, which decide where the intercept starts; 0 until a rule has decided."""
        return self.decided.label_share or 0.0

    @property
    def by_pass(self) -> bool:
        """True if a pass is charged as one release."""
        return self.clip == RECORD
