"""Released model from which training starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.base.arguments import check_options, number, option, require_number
from vfl.errors import SpecificationError, nearest
from vfl.privacy.gaussian_dp import epsilon_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


EXACT, SUM = "gdp", "sum"
IS_COST = "is the cost of the model to start from"
_COST = number(lambda cost: 0.0 <= cost < math.inf, IS_COST)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Released model from which training starts, with the cost of all releases behind that model.

    Guarantee. Let a run with ε, δ start from a model with the cost stated here. For a record on which that model was not
    trained, the run is (ε, δ)-DP. For every record, in either data set or in both, the run and the model together have the
    (ε, δ) of `total`. Every start is therefore flagged, unless all its coefficients are 0.

    Proof. Given the starting model, the run is (ε, δ)-DP, since its noise does not depend on that model. A record that only the
    model was trained on enters the run through the model, which is post-processing. A record of both enters two releases, the
    second of which may depend on the first: μ² adds up for Gaussian releases (Dong, Roth, Su 2022, Cor. 3.3), and ε and δ add
    up for any others (Dwork & Roth 2014, Thm. 3.16). Both rules take the budgets as fixed before either run; a budget that was
    chosen after a look at the model needs the cap of a ledger. A model with a start of its own has the cost of its `total`.

    model : SHA-256 of the model, as the model's certificate states it.
    coefficients : {coordinate: coefficient in original units}, the intercept under '(intercept)'; `Result.original`.
    dataset : name of the data set in the model's certificate; None if it names none.
    mu : μ of all releases behind the model, if all of them are Gaussian.
    epsilon, delta : their ε and δ, for any other releases; 0 and 0 for a model of public records. A model with neither `mu` nor
        `epsilon` has no known guarantee, and then this job's certificate gives none either. These numbers are the caller's:
        verification compares them with the model's certificate if it is given.
    """

    model: str
    coefficients: Mapping[str, float]
    dataset: str | None = None
    mu: float | None = option(_COST, None)
    epsilon: float | None = option(_COST, None)
    delta: float | None = option(number(lambda delta: 0.0 <= delta < 1.0, IS_COST), None)

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
        check_options(self, "start: ")
        if (self.epsilon is None) != (self.delta is None) or (self.mu is not None and self.epsilon is not None):
            raise SpecificationError(
                "start: give mu, or both epsilon and delta, as the certificate of the model to start from states its cost"
            )

    @property
    def private(self) -> bool:
        """True if the model has a guarantee. A model of zeros depends on no record."""
        return not self.informed or self.mu is not None or self.epsilon is not None

    @property
    def informed(self) -> bool:
        """True if the model may depend on records: all models but the zero vector."""
        return any(self.coefficients.values())

    def stated(self) -> dict[str, str | float]:
        """Return model, data set and cost, as a certificate states them; {} for a model of zeros."""
        own = (
            {name: getattr(self, name) for name in ("model", "dataset", "mu", "epsilon", "delta")}
            if self.informed
            else {}
        )
        return {name: value for name, value in own.items() if value is not None}

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


def total_of(start: Mapping[str, Any], epsilon: float, delta: float, mu: float | None) -> dict[str, Any]:
    """Return the cost for every record of a run and of the model that it starts from; {} if there is no start of known cost.

    start : `Start.stated`. epsilon, delta : cost of the run alone. mu : μ of the run if all its releases are Gaussian.

    The result is {rule, epsilon, delta}, and also mu under the rule 'gdp'. The rule is 'gdp' if μ² of both could be added up
    exactly, and 'sum' if their ε and δ were. All values are rounded up.
    """
    if not ("mu" in start or "epsilon" in start) or not 0.0 < delta < 1.0:
        return {}
    if mu is not None and "mu" in start:
        both = math.nextafter(math.hypot(mu, start["mu"]), math.inf)
        return {"rule": EXACT, "epsilon": epsilon_of(both, delta), "delta": delta, "mu": both}
    before = (epsilon_of(start["mu"], delta), delta) if "mu" in start else (start["epsilon"], start["delta"])
    sums = (math.nextafter(one + other, math.inf) for one, other in zip(before, (epsilon, delta), strict=True))
    return {"rule": SUM, **dict(zip(("epsilon", "delta"), sums, strict=True))}
