"""Features of a number with one coordinate: its logarithm, a power, or its distance from a public center."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vfl.columns import Bounds, checked_bounds
from vfl.errors import SpecificationError
from vfl.features.base import OfBounded, Steps, finite


@dataclass(frozen=True, slots=True)
class Log(OfBounded):
    """Logarithm of a number, log(x + offset). Range: [log(low + offset), log(high + offset)].

    bounds : (low, high) of the column, with low + offset > 0; also the job's bounds for it. Cells outside are clamped.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "log"
    offset: float = 0.0
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", finite("offset", self.offset))
        self._check()

    def _ends(self, low: float, high: float) -> Bounds:
        if low + self.offset <= 0:
            raise SpecificationError(
                f"log needs bounds above {-self.offset:g}, not from {low:g}: raise the lower bound, or the offset"
            )
        return float(np.log(low + self.offset)), float(np.log(high + self.offset))

    @property
    def steps(self) -> Steps:
        """Return two operations: add the offset, then take the logarithm."""
        return (("add", self.offset), ("log",))


@dataclass(frozen=True, slots=True)
class Power(OfBounded):
    """Power of a number, x^exponent. Range: the powers of the bounds; from 0 for an even power if they include 0.

    exponent : finite and not 0. A fraction needs bounds ≥ 0; a negative exponent needs bounds that exclude 0.
    bounds : (low, high) of the column; also the job's bounds for this column. Cells outside are clamped.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "power"
    exponent: float
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", finite("exponent", self.exponent))
        if self.exponent == 0:
            raise SpecificationError("exponent 0 makes a constant: leave the column out")
        self._check()

    def _ends(self, low: float, high: float) -> Bounds:
        if low < 0 and not self.exponent.is_integer():
            raise SpecificationError(f"exponent {self.exponent:g} needs bounds of at least 0, not from {low:g}")
        if self.exponent < 0 and low <= 0 <= high:
            raise SpecificationError(f"exponent {self.exponent:g} needs bounds that exclude 0, not [{low:g}, {high:g}]")
        with np.errstate(over="ignore"):
            ends = sorted(float(x) for x in np.power(np.array([low, high]), self.exponent))
        turns = low < 0 < high and self.exponent % 2 == 0
        return (0.0 if turns else ends[0]), ends[1]

    @property
    def steps(self) -> Steps:
        """Return one operation, the power."""
        return (("power", self.exponent),)


@dataclass(frozen=True, slots=True)
class Scaled(OfBounded):
    """Distance of a number from a public center in units of a public spread, (x − center)/spread.

    Range: the bounds, converted in the same way. Without bounds it is [−reach, reach], and cells beyond it are clamped.

    center, spread : a typical value and a typical deviation, publicly known; spread > 0. reach : largest distance from the
    center, in units of the spread.
    bounds : (low, high) of the column, which replace the reach; also the job's bounds for this column.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "scaled"
    center: float
    spread: float
    reach: float = 3.0
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        for name in ("center", "spread", "reach"):
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        if self.spread <= 0 or self.reach <= 0:
            raise SpecificationError(f"spread and reach must be positive, not {self.spread:g} and {self.reach:g}")
        checked_bounds((self.center - self.reach * self.spread, self.center + self.reach * self.spread))
        self._check()

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return the range of the single coordinate."""
        return ((-self.reach, self.reach),) if self.bounds is None else (self._ends(*self.bounds),)

    def _ends(self, low: float, high: float) -> Bounds:
        return (low - self.center) / self.spread, (high - self.center) / self.spread

    @property
    def steps(self) -> Steps:
        """Return two operations: subtract the center, then divide by the spread."""
        return (("subtract", self.center), ("divide", self.spread))
