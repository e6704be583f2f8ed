"""Privacy part of a job: the guarantee that the job requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from vfl.base.arguments import check_options, explained, option, require, require_fraction, require_positive, that
from vfl.errors import WITHOUT_PRIVACY, PrivacyError, SpecificationError, nearest

if TYPE_CHECKING:
    from vfl.privacy.noise import SeededNoise

SMOOTHNESS = ("private", "bounds", "data")
_EPSILON = partial(require_positive, error=PrivacyError, remedy=f"; or {WITHOUT_PRIVACY}")
_DELTA = partial(require_fraction, error=PrivacyError, remedy="; leave it out for 1/n²")
_SHARE = partial(require_fraction, error=PrivacyError)
_NAMED = that(lambda text: isinstance(text, str) and bool(text), "must be text, or left out")


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """Privacy of a job: (ε, δ)-differential privacy of the published model under replace-one of an aligned record.

    epsilon : ε > 0.
    delta : 0 < δ < 1; None takes 1/n².
    noise : None draws from the operating system's generator. SeededNoise(seed) repeats its noise, and then NOTHING IS PRIVATE.
    smoothness : source of the smoothness constants M_j. 'private' releases them with `smoothness_share` of the budget (μ²),
        together with the means that centre the columns. 'bounds' uses L·B_j², from the bounds B_j and the loss's curvature L. A
        mapping {column: M_j} declares the constants. 'data' computes them exactly from the data, uncharged, which the
        certificate flags.
    read_from_data : names, in words, of declarations of the job that were read from the records, such as 'the names of the
        classes'. Reading these was not charged, so the certificate says NOT PRIVATE. None means that all declarations are
        public knowledge.
    """

    epsilon: float = option(_EPSILON)
    delta: float | None = option(_DELTA, None)
    noise: SeededNoise | None = None
    smoothness: str | Mapping[str, float] = "private"
    smoothness_share: float = option(_SHARE, 0.1)
    read_from_data: str | None = option(_NAMED, None)

    def __post_init__(self) -> None:
        check_options(self)
        if self.noise is not None and not callable(getattr(self.noise, "stream", None)):
            raise PrivacyError(
                f"noise must be left out, or vfl.SeededNoise(seed) ([privacy.noise] with a seed in a job file), "
                f"not {self.noise!r}"
            )
        kinds = f"one of {', '.join(SMOOTHNESS)}, or a mapping from columns to M_j"
        if isinstance(self.smoothness, str):
            if self.smoothness not in SMOOTHNESS:
                close = nearest(self.smoothness, SMOOTHNESS)
                raise SpecificationError(f"unknown smoothness {self.smoothness!r}{close}; give {kinds}")
        else:
            require("smoothness", self.smoothness, kinds, fits=isinstance(self.smoothness, Mapping))
            for column, value in self.smoothness.items():
                require_positive(f"smoothness of column {column!r}", value)
            object.__setattr__(self, "smoothness", dict(self.smoothness))

    def numbered(self, number: int) -> Privacy:
        """Return the privacy of one of several runs on the same records. Seeded noise differs: equal noise would cancel."""
        if self.noise is None:
            return self
        return replace(self, noise=replace(self.noise, seed=self.noise.seed * 1_000_003 + number))
