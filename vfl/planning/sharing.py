"""Public facts of a run with trust='secure' (on shares): roles, bits, bias and traffic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.errors import SpecificationError
from vfl.privacy.events import Gaussian
from vfl.secure.cost import gram, logistic
from vfl.secure.ring import RESIDUAL_BITS, bits
from vfl.secure.roles import Roles
from vfl.secure.sharing import GramSharing, Sharing
from vfl.secure.sigmoid import SERIES, chosen, error, residual_bound
from vfl.solvers.on_shares import products_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.job import Job
    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.secure.ring import Bits
    from vfl.secure.specification import Secure
    from vfl.solvers.on_shares import Products
    from vfl.solvers.protocol import Solver

SLACK = 1.001
"""Safety factor on the sensitivity 2C of a sum that is clipped at C. The factor covers the rounding of values to a grid."""
TYPICAL_MARGIN = 8.0
"""Default of V, the largest absolute margin for which a plan bounds the bias and counts the traffic."""
LARGEST_BIAS = 0.5
"""Largest allowed ratio of bias to σ. Beyond this ratio, a run uses more Fourier terms."""


def sharing_of(
    job: Job, problem: Problem, solver: Solver, trained: Sequence[tuple[Event, int]]
) -> Sharing | GramSharing | None:
    """Return the public facts of a run on shares; None for other runs. Raises SpecificationError or PrivacyError.

    solver : the solver, with all options resolved. trained : the solver's releases.
    """
    if job.trust != "secure" or job.secure is None:
        return None
    secure, parties = job.secure, job.partition.parties
    roles = Roles(parties, job.partition.label_party, secure.collude)
    found = products_of(solver, problem, roles.label)
    products = None if found is None else _of_products(job.secure, roles, problem, found)
    if products is not None and products.label_scale is not None:
        if secure.margin is not None:
            raise SpecificationError(
                "secure: margin limits the sigmoid, which squared loss does not have: leave margin out"
            )
        return products
    places = range(len(SERIES)) if secure.margin is None else [chosen(secure.margin), chosen(secure.margin, fine=True)]
    residual = residual_bound(places)
    rows = rows_of(solver, problem)
    squares = rows.squares
    once = None if products is None else products.first.event  # its noise follows from the plan alone
    multipliers = [e.sigma / e.sensitivity for e, _ in trained if isinstance(e, Gaussian) and e != once]
    smallest = min(squares.values()) / math.fsum(squares.values())
    deviation = 2.0 * SLACK * max(multipliers) * residual / 2.0**RESIDUAL_BITS / math.sqrt(smallest)
    width = bits(problem.n_records, residual, deviation, len(parties))
    typical = [chosen(secure.margin or TYPICAL_MARGIN, fine=fine) for fine in (False, True)]
    biases = [_bias(problem, parties, place, rows.size, residual, width) / multipliers[-1] for place in typical]
    fine = biases[0] > LARGEST_BIAS
    widths = {q: len(names) for q, names in problem.layout.columns.items()}
    margins = [secure.margin] if secure.margin else sorted({series.margin for series in SERIES})
    used = dict.fromkeys(SERIES[chosen(margin, fine=fine)] for margin in margins)
    costs = {series.terms: logistic(roles, problem.n_records, widths, series.terms, rows.models) for series in used}
    if products is not None:
        costs = {terms: cost.then(products.cost) for terms, cost in costs.items()}
    return Sharing(
        secure,
        roles,
        width,
        residual,
        frozenset(places),
        squares,
        fine,
        biases[fine],
        min(multipliers),
        rows.models.count,
        costs,
        products,
    )


def _of_products(secure: Secure, roles: Roles, problem: Problem, products: Products) -> GramSharing:
    """Return the public facts of one release of all products of two columns."""
    from vfl.secure.gram import gram_bits, gram_caps  # loads compiled loops

    smallest, sigma = min(gram_caps(products.clip, products.squares).values()), products.event.sigma * products.unit
    found = gram_bits(problem.n_records, sigma / smallest**2)
    labelled = products.label_scale is not None
    widths = {q: len(names) + (labelled and q == roles.label) for q, names in problem.layout.columns.items()}
    return GramSharing(
        secure,
        roles,
        found,
        products.clip,
        products.squares,
        sigma,
        products.label_scale,
        products.label_centre,
        widths,
        gram(roles, problem.n_records, widths),
        products.first,
        products.unit,
    )


def _bias(problem: Problem, parties: Sequence[str], place: int, size: float, residual: int, found: Bits) -> float:
    """Return a bound on the bias of an opened sum for margins up to V, in units of 2C = σ/z.

    The bound is half of n·(error of a residual)·size + n·r_max·2^−(FX + 1). Here r_max is the largest residual, C the clip, z
    the noise multiplier and FX = `Bits.columns`. The second term is due to the rounding of rows.
    """
    series = SERIES[place]
    residuals = error(series, len(parties), series.margin) * size
    rows = residual / 2.0**RESIDUAL_BITS * 2.0 ** -(found.columns + 1)
    return problem.n_records * (residuals + rows) / 2.0
