"""Options of block coordinate descent."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from vfl.base.arguments import (
    CLIP,
    SHARE,
    check_options,
    explained,
    flag,
    number,
    one_of,
    option,
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
MESSAGES = ("party", "consecutive", "block")
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


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Options of SkGD and CD for studies. Public rules decide fields that are None (vfl.solvers.rules).

    tau : number of blocks that sampling='nice' draws.
    parallel : number of different parties whose blocks may move at once, from the same margins. The draws of a pass are then
        joined into fewer rounds; which blocks are drawn does not change.
    local_passes : number of passes that a party makes over its own columns per message, before the next party moves. Such
        passes need clip='record', and cost as much as passes with one message each. None takes several under a record cap if
        passes and blocks are left open and the run would otherwise take more than 40 passes (`record_defaults.local_passes`).
    outer_rounds, inner_rounds : T and K of the paper. K counts the draws of blocks in one outer round. Xw is rebuilt at the
        start of every outer round.
    reserve_passes : passes reserved for repeats, with clip='record'. A run that loses an answer, or is resumed, charges one
        more pass, since earlier releases may have been made. Without reserve passes, such a run omits its last passes.
    noise_geometry : 'scaled' clips and noises M_S^{-1/2} r_i x_{i,S}, so each coordinate gets noise in its own unit;
        'isotropic' (the DP-SkGD paper) clips r_i x_{i,S} itself at κ√(Σ M_j).
    momentum : β of joint steps, at most ½, the default: a step goes on from the move of the step before, at no cost in budget.
    tol : without privacy, stop once whole steps would move no coordinate by more than this share of the largest one
        (vfl.solvers.iterates.convergence), and return the current iterate. None takes 1e-9, but never stops early if the
        number of steps is given. With privacy `tol` must be None: the number of steps must not depend on data.
    iterate : result of an outer round: the 'last' θ of the round, or the 'average' of all θ in the round (as in the paper).
        With 'tail' the run ends with the average over its last half.
    message : 'party' sends one message per party and pass, and orders a pass by party. 'consecutive' sends one message for
        consecutive blocks of one party, in the order drawn. 'block' sends one block per message, and parties see only
        residuals.
    record_clip : record cap C, divided by √p, in units of √M_j, for clip='record'.
    early_share : share of the passes' μ² for the first 30 % of the passes, under clip='record'. The tail average omits these
        first passes. 0 gives every pass the same share.
    residual_share : share of the μ² left by releases of moments and labels. This share pays for a histogram of residuals after
        the early passes, under clip='record' and squared or Huber loss. C is then chosen from this histogram
        (vfl.solvers.releases.residuals). 0 releases no histogram.
    excess_share : share of the μ² left by these releases. This share pays for two sums of the gradient parts that C
        cuts off, under clip='record' and logistic or squared loss. If these sums show a bias that exceeds the noise of a wider
        cap, C is multiplied by 1.6 or 2.6 (vfl.solvers.releases.excess). 0 releases no sums.
    label_share : share of the μ² that the moments leave. This share pays for label statistics, which decide where the intercept
        starts (vfl.solvers.releases.start). For squared loss, κ (the cap) is also multiplied by the released spread of the
        labels over the typical spread. 0 releases no statistics.
    """

    tau: int | None = None
    parallel: int = option(whole(), 1)
    local_passes: int | None = option(whole(), None)
    outer_rounds: int | None = option(whole(), None)
    inner_rounds: int | None = option(whole(), None)
    reserve_passes: int = option(whole(0), 0)
    noise_geometry: str = option(one_of(GEOMETRIES), "scaled")
    momentum: float | None = option(number(lambda β: 0.0 <= β <= 1.0, "must lie between 0 and ½"), None)
    tol: float | None = option(TOLERANCE, None)
    iterate: str | None = option(one_of(ITERATES), None)
    message: str = option(one_of(MESSAGES), "party")
    record_clip: float | None = option(number(lambda clip: 1e-90 <= clip <= 1e90, "must be positive and finite"), None)
    early_share: float | None = option(SHARE, None)
    residual_share: float | None = option(SHARE, None)
    excess_share: float | None = option(SHARE, None)
    label_share: float | None = option(SHARE, None)

    def __post_init__(self) -> None:
        check_options(self, "details: ")


_DETAILS = that(lambda value: isinstance(value, Details), "must be vfl.solvers.Details(...)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOptions(Solver):
    """Options of SkGD and CD, and what follows from them alone. `SkGD` documents the fields.

    Each field of `Details` is an attribute, too.
    """

    block_size: int | None = option(whole(), None)
    sampling: str = "shuffled"
    passes: int | None = option(whole(), None)
    clip: float | str | None = option(clip_or_rule, None)
    step_size: float | None = option(require_positive, None)
    joint: bool | None = option(flag, None)
    seed: int = 0
    details: Details | None = option(_DETAILS, None)

    def __getattr__(self, name: str) -> Any:
        if name not in OF_DETAILS:
            raise AttributeError(f"{type(self).__name__} has no option {name!r}")
        return getattr(self.decided, name)

    @property
    def option_names(self) -> frozenset[str]:
        """Names of all options, among them the fields of `Details`."""
        return frozenset((*(f.name for f in fields(self)), *OF_DETAILS))

    def changed(self, **options: Any) -> Self:
        """Return a copy with other options, among them fields of `Details`."""
        inner = {name: options.pop(name) for name in OF_DETAILS if name in options}
        details = options.pop("details", self.details) or Details()
        return replace(self, details=replace(details, **inner), **options)

    @property
    def sequential(self) -> bool:
        """True unless a round moves blocks of several parties."""
        return self.parallel == 1 and self.sampling not in ("nice", "full")

    @property
    def turns(self) -> int:
        """Number of passes that a party makes over its own columns per message."""
        return self.local_passes or 1

    @property
    def several_steps(self) -> bool:
        """True if a party takes several steps per message, each from the margins after the step before."""
        return self.message != "block" and self.sampling not in ("nice", "full") and self.parallel == 1

    @property
    def adaptive(self) -> bool:
        """True if released values decide the order of blocks or the noise. Importance sampling and some caps depend on M.

        The charge for passes under a record cap depends only on their number, never on released values.
        """
        if self.by_pass:
            return False
        return self.sampling == "importance" or self.noise_geometry == "isotropic" or self.clip == BOUNDS

    @property
    def decided(self) -> Details:
        """The details. In a resolved solver all of them are set."""
        return self.details or Details()

    @property
    def by_pass(self) -> bool:
        """True if a pass is charged as one release."""
        return self.clip == RECORD


OF_DETAILS = tuple(f.name for f in fields(Details))
