"""Released model from which training starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfl.arguments import require_number
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True, kw_only=True)
class Start:
    """Released model from which training starts. The start costs no budget, since the model is public.

    The guarantee of this job's run is for this job's records. The records on which the starting model was trained have the
    guarantee of that model's own certificate. A ledger adds up both costs for records that are in both data sets.

    model : SHA-256 of the model, as the model's certificate states it.
    coefficients : {coordinate: coefficient in original units}, the intercept under '(intercept)'; `Result.original`.
    private : False if the model's own certificate gives no guarantee. Then this job's certificate gives no guarantee either.
    """

    model: str
    coefficients: Mapping[str, float]
    private: bool = True

    def __post_init__(self) -> None:
        digits = set("0123456789abcdef")
        if not (isinstance(self.model, str) and len(self.model) == 64 and set(self.model) <= digits):
            raise SpecificationError(
                f"start: model is the SHA-256 of a released model, 64 hexadecimal digits, not {self.model!r}"
            )
        for name, value in self.coefficients.items():
            require_number(f"start: the coefficient of {name!r}", value)
            if not math.isfinite(value):
                raise SpecificationError(f"start: the coefficient of {name!r} is not finite: {value!r}")
        object.__setattr__(self, "coefficients", {str(k): float(v) for k, v in self.coefficients.items()})

    def require(self, coordinates: Collection[str]) -> None:
        """Raise SpecificationError unless the starting model has exactly these coordinates."""
        for name in coordinates:
            if name not in self.coefficients:
                raise SpecificationError(
                    f"the model to start from has no coefficient of {name!r}{nearest(name, self.coefficients)}: give a model "
                    "of the same columns and categories"
                )
        for name in self.coefficients:
            if name not in coordinates:
                raise SpecificationError(
                    f"the model to start from has a coefficient of {name!r}, which the job does not have"
                    f"{nearest(name, coordinates)}: give a model of the same columns and categories"
                )
