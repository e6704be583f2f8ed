"""Placement of the knots of curves (splines of columns) by one joint release of histograms before training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.features.curve import edges_of
from vfl.privacy import magnitudes
from vfl.privacy.calibration import noise_multiplier
from vfl.queries import Ranges
from vfl.queries.protocol import bearable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vfl.base.columns import Bounds
    from vfl.base.features import Crossed, Curve
    from vfl.base.types import Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries import Query
    from vfl.queries.protocol import Released

    Placed = Mapping[str, tuple[tuple[float, ...], ...]]

SHARE = 0.08
"""Share of a run's μ² for the histograms.

Other shares were not compared. The number of pieces, TAIL and LINE were chosen on credit and one simulated data set, and
checked on four others: adult, electricity, California, simulated.
"""
CELLS = (160, 80, 40)
"""Candidates for the number of cells per histogram. Many cells place knots finely; with few cells, less noise adds up."""
BLUR = 0.05
"""Largest standard error of a quantile due to noise, as a share of the records. If the error of a histogram would be larger,
the histogram gets fewer cells.
"""
TAIL = (1 / 16, 1 / 4, 1 / 64)
"""Positions of knots in a long tail, as shares of the way from the last quantile to the declared bound. Curves of few pieces
use only the first of these positions.
"""
LONG, EXTREME = 0.5, 0.1
"""A tail is long if it takes up more than LONG of the bounds' width. EXTREME is the share of the records in each tail."""
SLACK, CLEAR, WIDE = 2.0, 4.0, 100.0
"""Standard deviations of the noise by which a range of cells may seem to lack records, and by which a single cell stands out.

Bounds at least WIDE times as wide as the records are far too wide. With smaller factors, curves lose tails that matter
(docs/studies/curves.md).
"""
FEW = 1 / 4
"""Largest share of the cells that stand out in a column of few values."""
LINE = 10.0
"""Value of μn per column below which curves without a declared number of pieces become straight lines."""


def cells_for(sigma: float, n_records: int) -> int:
    """Return the number of cells per histogram, from public facts, for noise of this standard deviation."""
    fitting = (cells for cells in CELLS if sigma * math.sqrt(cells) / 2.0 <= BLUR * n_records)
    return next(fitting, CELLS[-1])


def event_for(columns: int, mu: float, n_records: int) -> Gaussian:
    """Return the event of the joint histograms of this number of columns, μ-GDP under replace-one.

    Replacing a record lowers one cell of each column by one and raises another by one: Δ = √(2·columns) over all parties.
    """
    Δ, z = magnitudes.sensitivity(columns), noise_multiplier(mu, 1)
    return bearable(Δ, z, columns * cells_for(z * Δ, n_records))


@dataclass(frozen=True, slots=True, eq=False)
class Knots:
    """Release of the knots of all curves whose knots are not declared, before the first query of the solver.

    The number of pieces of each curve follows from public facts. Released histograms decide only where the pieces end. If
    two knots of a curve fall on one position, one coordinate of the curve is always 0.

    The first and the last knot are the ends of a curve, outside of which it is constant. A column of few values has its knots
    on the values. If the bounds are far too wide, the ends are those of the narrowest range that may hold all records
    (`support_of`), else the bounds. If a curve has a long tail (LONG), one of four inner knots lies at a quantile and the
    others in the longer tail. Otherwise all lie at quantiles.

    curves : {party: ((column, declaration), ...)} in the order of storage.
    signal : μn per column of the job. If `signal` is below LINE, curves without a declared number of pieces are straight lines.
    event : event of the joint release; None without privacy, and if nothing is released.
    pairs : products of two columns in the job. The curves in a product use a selection of these knots (`Crossed.placed`).
    """

    curves: Mapping[str, tuple[tuple[str, Curve], ...]]
    n_records: int
    signal: float
    event: Gaussian | None
    pairs: tuple[Crossed, ...] = ()

    @property
    def bent(self) -> dict[str, tuple[int, ...]]:
        """Return {party: positions of the curves that are not straight lines}."""
        found = {
            party: tuple(k for k, (_, declared) in enumerate(own) if self.knots_of(declared))
            for party, own in self.curves.items()
        }
        return {party: indices for party, indices in found.items() if indices}

    def knots_of(self, declared: Curve) -> int:
        """Return the largest number of knots between the ends of a curve; 0 for a straight line."""
        return 0 if declared.pieces is None and self.signal < LINE else declared.n_pieces - 1

    @property
    def unused(self) -> int:
        """Number of coordinates that are 0 whatever is released, because their curves are straight lines."""
        curves = {column: declared for own in self.curves.values() for column, declared in own}
        used = {column: 1 + self.knots_of(declared) for column, declared in curves.items()}
        found = sum(declared.n_pieces - used[column] for column, declared in curves.items())
        for pair in self.pairs:
            sizes = [(len(side.ranges), used.get(side.column)) for side in pair.sides]
            found += math.prod(size for size, _ in sizes) - math.prod(min(size, most or size) for size, most in sizes)
        return found

    @property
    def cells(self) -> int:
        """Number of cells per histogram."""
        return cells_for(self.sigma, self.n_records)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise of a cell."""
        return 0.0 if self.event is None else self.event.sigma

    def query(self) -> Query:
        """Return the query of the histograms."""
        return Ranges(self.bent, self.cells, self.event, of_curves=True)

    def lines(self) -> Placed:
        """Return an empty tuple of knots for every curve, which makes all curves straight lines."""
        return {party: ((),) * len(own) for party, own in self.curves.items()}

    def placed(self, released: Released) -> Placed:
        """Return the knots of every curve of each party, by post-processing the released histograms."""
        found = {party: list(own) for party, own in self.lines().items()}
        for party, k, counts, edges in self._read(released):
            found[party][k] = self._of(self.curves[party][k][1], counts, edges)
        return {party: tuple(own) for party, own in found.items()}

    def seen(self, released: Released) -> dict[str, tuple[Bounds, ...]]:
        """Return {column: stretches in which its released histogram shows records (`stretches_of`)}."""
        return {
            self.curves[party][k][0]: stretches_of(counts, edges, self.sigma)
            for party, k, counts, edges in self._read(released)
        }

    def _read(self, released: Released) -> Iterator[tuple[str, int, Vector, Vector]]:
        """Yield party, position of the curve, counts and edges of each histogram."""
        for (party, indices), counts in zip(self.bent.items(), released, strict=True):
            for k, own in zip(indices, counts.reshape(len(indices), -1), strict=True):
                declared = self.curves[party][k][1]
                if declared.missing is None or declared.fill is not None:  # the number of counted records is public
                    own = own + (self.n_records - own.sum()) / own.size  # noqa: PLW2901 - corrected
                yield party, k, own, edges_of(declared.limits, own.size)

    def by_column(self, placed: Placed) -> dict[str, tuple[float, ...]]:
        """Return {column: knots of the column}."""
        return {
            column: knots
            for party, own in self.curves.items()
            for (column, _), knots in zip(own, placed[party], strict=True)
        }

    def explain(self) -> str:
        """Return a sentence about the curves for the plan."""
        count = sum(map(len, self.curves.values()))
        if not self.bent:
            return f"straight lines for {count} curves: noise at this ε would outweigh the gain of bends; nothing is released"
        blur = "" if self.event is None else f", each count with noise of standard deviation {self.event.sigma:.3g}"
        shapes = sorted({1 + self.knots_of(declared) for own in self.curves.values() for _, declared in own})
        pieces = " or ".join(map(str, shapes))
        return f"{count} curves of at most {pieces} pieces, placed by histograms of {self.cells} cells{blur}"

    def _of(self, declared: Curve, counts: Vector, edges: Vector) -> tuple[float, ...]:
        most = self.knots_of(declared)
        if values := few_values(counts, edges, self.sigma, most + 2):
            return values
        start, stop = support_of(counts, edges, self.sigma)
        counts, edges = counts[start:stop], edges[start : stop + 1]
        low, high = float(edges[0]), float(edges[-1])

        def quantiles(number: int) -> tuple[float, ...]:
            return quantiles_of(counts, edges, [k / (number + 1) for k in range(1, number + 1)])

        tail = TAIL[: most - max(1, most // 4)]
        nearly_all = (low, *quantiles_of(counts, edges, (EXTREME, 1.0 - EXTREME)), high)
        below, above = nearly_all[1] - low, high - nearly_all[-2]
        if max(below, above) <= LONG * (high - low) or not tail:
            found = quantiles(most)
        else:
            found = quantiles(most - len(tail))
            last, bound = ((low, *found)[-1], high) if above >= below else ((*found, high)[0], low)
            found = (*found, *(last + (bound - last) * place for place in tail))
        return (low, *shortened(found, (low, high))[:most], high)


def shortened(points: Sequence[float], bounds: Bounds) -> tuple[float, ...]:
    """Return the distinct points inside the bounds, rounded to 6 digits. Further digits are due to interpolation and noise."""
    rounded = {float(f"{point:.6g}") for point in points}
    return tuple(sorted(point for point in rounded if bounds[0] < point < bounds[1]))


def support_of(counts: Vector, edges: Vector, sigma: float) -> tuple[int, int]:
    """Return first and last edge of the narrowest range of cells that may hold all records, if the whole is WIDE times as wide.

    The range lacks at most SLACK standard deviations of the noise of its count, and at most the share BLUR of the records.
    counts : noisy, with their total known. sigma : standard deviation σ of the noise of a cell. The count of L of M cells then
        has noise of standard deviation σ√(L(M − L)/M).
    """
    m, running = counts.size, np.concatenate([[0.0], np.cumsum(counts)])
    first, last = np.triu_indices(m + 1, 1)
    cells, total = last - first, float(running[-1])
    slack = np.minimum(SLACK * sigma * np.sqrt(cells * (m - cells) / m), BLUR * total) + 1e-9 * abs(total)
    fits = (running[last] - running[first] >= total - slack) | (cells == m)
    widths = edges[last] - edges[first]
    best = np.argmin(np.where(fits & (widths > 0.0), widths, math.inf))  # skip ranges of width 0
    width = widths[best]
    return (int(first[best]), int(last[best])) if WIDE * width <= edges[-1] - edges[0] else (0, m)


def stretches_of(counts: Vector, edges: Vector, sigma: float) -> tuple[Bounds, ...]:
    """Return the ends of the stretches that show records, ascending: the union of the shortest ranges of cells that stand out.

    The count of such a range exceeds CLEAR standard deviations of its noise. Other cells have no records, or fewer than noise
    hides.
    """
    at = np.arange(counts.size + 1)
    running = np.concatenate([[0.0], np.cumsum(counts)])
    cells = np.maximum(at - at[:, None], 0)
    clear = (cells > 0) & (running - running[:, None] > CLEAR * sigma * np.sqrt(cells))
    first = np.where(clear, at[:, None], -1).max(axis=0)  # the shortest range that ends at each edge
    inside = np.zeros(counts.size + 2, dtype=int)
    for last in np.flatnonzero(np.diff(np.maximum.accumulate(first), prepend=-1) > 0):
        inside[first[last] + 1 : last + 1] = 1
    return tuple(pairwise(edges[np.flatnonzero(np.diff(inside))].tolist()))[::2]


def few_values(counts: Vector, edges: Vector, sigma: float, most: int) -> tuple[float, ...]:
    """Return the middles of at most `most` cells of a column of few values; () for any other column.

    A column has few values if at most FEW of the cells stand out from the noise, others lie between them, and together they
    may hold all records: rare values outside the ends matter (docs/studies/curves.md).
    """
    heavy = np.flatnonzero(counts > CLEAR * sigma)
    m, k = counts.size, heavy.size
    slack = SLACK * sigma * math.sqrt(k * (m - k) / m)
    if not 2 <= k <= FEW * m or heavy[-1] - heavy[0] < 2 * k - 1 or not counts[heavy].sum() >= counts.sum() - slack:
        return ()
    running = np.cumsum(counts[heavy]) / counts[heavy].sum()
    spread = np.unique(np.searchsorted(running, np.arange(1, most - 1) / (most - 1)))
    largest = np.argsort(-counts[heavy])  # fill up with the most frequent values where quantiles coincide
    chosen = heavy[np.sort(list(dict.fromkeys([0, k - 1, *spread, *largest]))[:most])]
    found = tuple(np.unique(edges[chosen] / 2 + edges[chosen + 1] / 2).tolist())
    return found if len(found) > 1 else ()


def quantiles_of(counts: Vector, edges: Vector, shares: Sequence[float]) -> tuple[float, ...]:
    """Return ascending points at which the noisy running sum exceeds share·total, at most one point per share.

    The running sum is made monotone: it is replaced by the mean of its running maximum from below and its running minimum
    from above. If several shares fall in one cell, which may hold many equal values, the ends of the cell are returned.
    """
    noisy = np.cumsum(counts)
    running = (np.maximum.accumulate(noisy) + np.minimum.accumulate(noisy[::-1])[::-1]) / 2.0
    total = float(running[-1])
    if not total > 0.0:
        return ()
    running = np.clip(running, 0.0, total)
    at = np.searchsorted(running, np.multiply(shares, total))
    found: list[float] = []
    for cell, number in zip(*np.unique(at, return_counts=True), strict=True):
        low, high = float(edges[cell]), float(edges[cell + 1])
        if number > 1 or cell in (0, running.size - 1):
            found += [low, high]
            continue
        before = float(running[cell - 1]) if cell else 0.0
        (share,) = (s for s, own in zip(shares, at, strict=True) if own == cell)
        found.append(low + (high - low) * (share * total - before) / max(float(running[cell]) - before, 1e-300))
    return tuple(sorted(set(found)))
