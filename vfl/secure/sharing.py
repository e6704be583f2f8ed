"""Public facts of one run on secret shares. Every participant derives these facts from the job and n, without messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vfl.errors import PrivacyError
from vfl.secure.homomorphic import library
from vfl.secure.ring import RESIDUAL_BITS, caps
from vfl.secure.roles import ENCRYPTION
from vfl.secure.sigmoid import SERIES, chosen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.privacy.events import Gaussian, ReleaseKey
    from vfl.queries import Gram
    from vfl.secure.cost import Cost
    from vfl.secure.gram import GramBits, Pair
    from vfl.secure.measures import Measuring
    from vfl.secure.noise import Deviations
    from vfl.secure.ring import Bits
    from vfl.secure.roles import Roles, Secure

SAME = 1e-9
"""Largest accepted relative difference between two machines' results, since their mathematical libraries may differ."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Roles, bits and caps of a run of logistic regression on secret shares.

    bits : bits of an opened sum. places : indices in vfl.secure.sigmoid.SERIES of all series that the run may use.
    residual : R, the bound on an integer residual for all these series.
    squares : {party: weight of the party's columns when the squared cap is split}.
    fine : True to use a series with more terms, which has less bias.
    bias : bound on the bias of a sum at margins up to V, divided by the charged standard deviation. The value is the bound if
        every entry is as large as the largest |x̃|; real runs have far less bias.
    multiplier : smallest σ/Δ among the planned releases.
    versions : number of versions of the model at which residuals are shared.
    costs : {K: bytes sent if the series of every model has K terms}, for all series that the run may use, the largest K last.
    products : facts of the products of columns that the run opens for joint steps; None without joint steps.
    library : library of homomorphic encryption of the process that plans; only a run without a dealer uses it.
    measuring : facts of the measures of held-out records; None without a hold-out.
    """

    secure: Secure
    roles: Roles
    bits: Bits
    residual: int
    places: frozenset[int]
    squares: Mapping[str, float]
    fine: bool
    bias: float
    multiplier: float
    versions: int
    costs: Mapping[int, Cost]
    products: GramSharing | None = None
    library: str = field(default_factory=library, kw_only=True)
    measuring: Measuring | None = None

    @property
    def n_bytes(self) -> int:
        """Return the largest number of bytes that the run may send: the cost of the series with the most terms."""
        return self.costs[max(self.costs)].total

    @property
    def seconds(self) -> float:
        """Return a bound on the time of all computations: that of the series with the most terms."""
        return self.costs[max(self.costs)].seconds

    @property
    def price(self) -> float:
        """Return the noise of an opened sum, divided by the charged noise."""
        return self.roles.price

    @property
    def largest(self) -> float:
        """Return r_max, the bound on the magnitude of a residual."""
        return self.residual / 2.0**RESIDUAL_BITS

    def caps(self, cap: float) -> dict[str, float]:
        """Return {party: c_q}, each party's cap on its rows. cap : C, the cap on rows over all parties."""
        return caps(cap, self.residual, self.squares)

    def deviations(self, party: str, cap: float, sigma: float) -> Deviations:
        """Return the standard deviations of the noise in a sum over a party's columns, in steps.

        cap : C. sigma : the event's σ.
        """
        from vfl.secure.noise import deviations  # loads the code that draws noise

        step = self.bits.step(self.caps(cap)[party])
        try:
            return deviations(sigma, step, len(self.roles.parties), self.roles.collude, dealt=self.roles.dealt)
        except OverflowError:
            raise PrivacyError("the noise of a sum is too large to be computed") from None

    def require_planned(self, event: Gaussian) -> None:
        """Raise PrivacyError if the event has a smaller ratio σ/Δ than every planned release.

        Only this ratio determines the contributors' deviations in steps of a sum. Every contributor makes this check, so no
        message can lower these deviations.
        """
        if not event.sigma >= self.multiplier * event.sensitivity * (1.0 - SAME):
            raise PrivacyError("the coordinator asked for a sum with less noise than any release of the job's plan has")

    def place(self, needed: float) -> int:
        """Return the index in SERIES of the series for |margin| ≤ needed. A `margin` in the job replaces `needed`."""
        return chosen(self.secure.margin or needed, fine=self.fine)

    def stated(self) -> dict[str, Any]:
        """Return the certificate's statement of the threat model."""
        products = {} if self.products is None else {"products": self.products.price}
        return _stated(self, self.roles.holders, self.bits.total) | products

    def described(self) -> tuple[str, ...]:
        """Return sentences on bits, bias and traffic."""
        return (
            f"{self.bits.total} after the binary point of an opened sum",
            f"bias of a sum at most {self.bias:.2g} of its noise, in the worst case at linear predictors up to V",
            f"{self.versions:,} models at which residuals are shared",
            f"at most {self._traffic()}",
            *((_once(self.roles),) if self.products is not None else ()),
            TWICE,
        )

    def _traffic(self) -> str:
        sizes = {K: f"{cost.total / 1e6:.3g}" for K, cost in self.costs.items()}
        if len(sizes) == 1:
            return f"{sizes[max(sizes)]} MB"
        margins = {SERIES[self.place(series.margin)].terms: series.margin for series in SERIES}
        *most, (_, beyond) = sizes.items()
        return (
            f"{', '.join(f'{own} MB up to |linear predictor| {margins[K]:g}' for K, own in most)}, {beyond} MB beyond"
        )


TWICE = "twice that across organisations, since all of it passes through the coordinator"
CUTS = (
    "each party cuts its rows by itself, which biases the model where a cut row leaves the regression line: give a clip that "
    "cuts few"
)


@dataclass(frozen=True, slots=True)
class GramSharing:
    """Roles, bits and caps of one release of all products of columns on secret shares.

    Guarantee. A product of two parties' columns has noise from both parties and from the dealer, each with half of the charged
    variance. So at least the charged noise stays unknown to the dealer. It also stays unknown to parties that pool what they
    saw, unless both owners are among these parties.

    sigma : σ of the opened products. widths : {party: number of its columns, including a label}.
    bits : bits of a column. cap : C, the largest norm of a row over all parties, label included.
    squares : {party: its part of C²}.
    label_scale, label_centre : t and c of t(y − c), the label as last column of its party; None and 0 for no label.
    first : query under which the release is charged. unit : opened products divided by the products of the query.
    library : as in `Sharing`.
    """

    secure: Secure
    roles: Roles
    bits: GramBits
    cap: float
    squares: Mapping[str, float]
    sigma: float
    label_scale: float | None
    label_centre: float
    widths: Mapping[str, int]
    cost: Cost
    first: Gram
    unit: float = 1.0
    library: str = field(default_factory=library, kw_only=True)

    @property
    def products(self) -> GramSharing:
        """Return this object, which holds the facts of the products; `Sharing` has an attribute of this name, too."""
        return self

    @property
    def n_bytes(self) -> int:
        """Return the number of bytes that the run sends."""
        return self.cost.total

    @property
    def seconds(self) -> float:
        """Return a bound on the time of all computations."""
        return self.cost.seconds

    @property
    def price(self) -> float:
        """Return the noise of a product of two parties' columns, divided by the charged noise."""
        return self.roles.price_of_products

    def caps(self) -> dict[str, float]:
        """Return {party: c_q}, each party's cap on its rows."""
        from vfl.secure.gram import gram_caps  # loads compiled loops

        return gram_caps(self.cap, self.squares)

    def pair(self, first: str, second: str, key: ReleaseKey) -> Pair:
        """Return the `Pair` for the products between the columns of two parties, or of one party if the names are equal."""
        from vfl.secure.gram import Pair  # loads compiled loops

        caps, order = self.caps(), self.roles.parties
        first, second = sorted((first, second), key=order.index)
        return Pair(first, second, key, self.sigma, self.bits.step(caps[first], caps[second]), self.roles.dealt)

    def stated(self) -> dict[str, Any]:
        """Return the certificate's statement of the threat model."""
        return _stated(self, self.roles.parties, 2 * self.bits.columns)

    def described(self) -> tuple[str, ...]:
        """Return sentences on bits, cut rows and traffic."""
        return (
            f"{2 * self.bits.columns} after the binary point of an opened product, in units of C²",
            CUTS,
            _once(self.roles),
            TWICE,
        )


def _once(roles: Roles) -> str:
    held = "all parties hold masked columns of all others" if roles.dealt else "the label party holds encrypted columns"
    return f"products of columns are opened once, so {held}"


def _stated(sharing: Sharing | GramSharing, holders: tuple[str, ...], bits: int) -> dict[str, Any]:
    roles = sharing.roles
    return {
        "mode": "secure",
        "participants": "semi-honest",
        "dealer": sharing.secure.dealer,
        "collude": roles.collude,
        "holders": list(holders),
        "contributors": list(roles.contributors),
        "price": sharing.price,
        "bits": bits,
    } | ({} if roles.dealt else {"encryption": ENCRYPTION | {"library": sharing.library}})
