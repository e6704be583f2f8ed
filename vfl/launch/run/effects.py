"""Curves of a model: the contribution of each column, and of each pair of columns, to the score. Post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.arguments import package
from vfl.base.columns import Boolean, Categorical, categories_of
from vfl.base.features import Crossed, Curve, OfCells, own_of
from vfl.base.problem import coordinates_of
from vfl.errors import SpecificationError, nearest
from vfl.planning import plan as make_plan
from vfl.solvers.releases.smoothness import places, spreads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vfl.base.columns import Bounds
    from vfl.base.features import Side
    from vfl.base.schema import Schema
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.launch.run.history import History
    from vfl.launch.run.model import Model

POINTS = 65
"""Number of equal steps at which a curve is evaluated, in addition to the curve's knots."""
POINTS_OF_PAIRS = 17
"""Number of equal steps along each of two multiplied columns."""
FEWEST = 4
"""Smallest number of iterates from which the noise is estimated."""
GAP = 1 / 20
"""Share of the range that a gap between the stretches in which records are seen must have to be marked."""
NEAR = 1 / 200
"""Share of the range below which the first or last piece of a curve is too short to be drawn as a line."""
DOT_NOTE = (
    "A dot at an end of a curve is its value there alone, because a bend lies too close to be drawn as a line. Many records "
    "often have this number."
)
GAP_NOTE = (
    "Dashed: no records seen. The histogram that placed the knots shows none there above its noise, which may hide some. Few "
    "or no records hold the curve there, and it has no band."
)
BAND_NOTE = (
    "Grey: plus and minus two standard deviations of the iterates in the second half of the training, which shows its noise. "
    "Noise that changes over the whole run only is missed, and so are the sampling of the records, bends that pieces cannot "
    "follow, and the bias of clips and penalty: it is not a confidence interval. Curves with a shape have no band, since the "
    "limits of their coefficients hide noise."
)


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """Contribution of one column to the score, shifted to mean 0: over the records, or over x if no means were released.

    The contribution includes those of products with other columns (pairs), averaged over the other column.

    column, party : the column (with several classes 'column[class]') and its owner.
    x : (m,) numbers in the column's unit, ascending; or names of categories. A `flat` curve is drawn between its first and
        last knot, and is constant outside.
    value : (m,) part of the score. band : (m,) half-width of a band for the noise; None if it is not known, as for a `shape`,
        and NaN where no records are seen.
    size : number by which curves are sorted. It is √Σ w_j² v_j, with coefficients w_j and released variances v_j of the
        column's coordinates; without released variances, the root mean square of `value`.
    seen : (m,) False in gaps of at least GAP of the range in which the released histogram of the column shows no records above
        its noise (vfl.solvers.releases.knots); True everywhere without the run's log, and for columns without such a histogram.
    """

    column: str
    party: str
    x: Vector | tuple[str, ...]
    value: Vector
    band: Vector | None
    size: float
    seen: Any

    @property
    def shown(self) -> Vector:
        """The values, (m,); NaN where no records are seen, if they are seen elsewhere."""
        return np.where(self.seen | ~self.seen.any(), self.value, np.nan)

    @property
    def numeric(self) -> bool:
        """True for a curve over numbers; False for one value per category."""
        return not isinstance(self.x, tuple)

    @property
    def strokes(self) -> tuple[slice, ...]:
        """Ranges of points that are drawn as one line each. If the piece at an end is too short, the end is its own range."""
        return tuple(part for part in self._parts if self.seen[part.start])

    @property
    def gaps(self) -> tuple[slice, ...]:
        """Ranges of points without seen records, with the seen points beside them. They are drawn dashed."""
        return tuple(slice(max(0, p.start - 1), p.stop + 1) for p in self._parts if not self.seen[p.start])

    @property
    def _parts(self) -> list[slice]:
        x, m = np.asarray(self.x, dtype=np.float64), len(self.x)
        near = NEAR * (x[-1] - x[0])
        ends = {0, m, int(x[1] - x[0] < near), m - int(x[-1] - x[-2] < near), *(np.flatnonzero(np.diff(self.seen)) + 1)}
        return [slice(*ends) for ends in pairwise(sorted(ends))]

    @property
    def dotted(self) -> bool:
        """True if an end of the curve is drawn as a dot, not a line."""
        return self.numeric and any(part.stop - part.start == 1 for part in self.strokes)


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Contribution of a product of two columns (pair) to the score, in addition to the curves of both columns.

    The mean of `value` along x and along y is 0, with means taken as for `Effect`: the curves hold everything that depends on
    only one of the columns. A column that is not in the partition has no curve; that column's part is included here.

    a, b : names of the columns. x, y : (m,) and (k,) numbers or categories of each.
    value, band : (m, k), as for `Effect`. size : root mean square of `value`.
    """

    column: str
    party: str
    a: str
    b: str
    x: Vector | tuple[str, ...]
    y: Vector | tuple[str, ...]
    value: Vector
    band: Vector | None
    size: float

    @property
    def shown(self) -> Vector:
        """The values, (m, k)."""
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Curves of all columns, and products of two columns (pairs), both with the largest first."""

    effects: tuple[Effect, ...]
    pairs: tuple[Joint, ...] = ()

    def __iter__(self) -> Iterator[Effect]:
        return iter(self.effects)

    def __len__(self) -> int:
        return len(self.effects)

    def __getitem__(self, column: str) -> Any:
        found: dict[str, Any] = {own.column: own for own in self._all}
        if column not in found:
            raise SpecificationError(f"there is no curve of {column!r}{nearest(column, found)}")
        return found[column]

    @property
    def _all(self) -> tuple[Effect | Joint, ...]:
        return (*self.effects, *self.pairs)

    def __repr__(self) -> str:
        lines = [f"  {e.column} ({e.party}): {np.nanmin(e.shown):.3g} to {np.nanmax(e.shown):.3g}" for e in self._all]
        return "\n".join(("Curves, the largest first, in units of the score:", *lines))

    def frame(self) -> Any:
        """Return a pandas DataFrame with column, party, x, y, value, band and seen, one row per point. Only pairs have y."""
        pd = package("pandas", "frames", "a frame of curves")
        found = []
        for e in self._all:
            points = product(e.x, e.y) if isinstance(e, Joint) else ((x, None) for x in e.x)
            bands = np.full(e.value.size, np.nan) if e.band is None else e.band.ravel()
            seen = np.broadcast_to(getattr(e, "seen", True), e.value.size)
            for (x, y), *values in zip(points, e.value.ravel(), bands, seen, strict=True):
                found.append((e.column, e.party, x, y, *values))
        return pd.DataFrame(found, columns=["column", "party", "x", "y", "value", "band", "seen"])

    def plot(self, columns: int = 3) -> Any:
        """Return a matplotlib Figure with one panel per curve, then one heat map per pair, `columns` panels in a row."""
        Figure = package("matplotlib.figure", "plot", "a plot of curves").Figure

        drawn = self._all
        rows = max(1, math.ceil(len(drawn) / columns))
        figure = Figure(figsize=(3.4 * columns, 2.3 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, effect in zip(panels, drawn, strict=False):
            _draw(axes, effect)
        for axes in panels[len(drawn) :]:
            axes.set_axis_off()
        return figure


def _draw(axes: Any, effect: Effect | Joint) -> None:
    axes.set_title(f"{effect.column} ({effect.party})", fontsize=9)
    axes.tick_params(labelsize=7)
    if isinstance(effect, Joint):
        far = float(abs(effect.value).max()) or 1.0
        x, y = (np.arange(len(own)) if isinstance(own, tuple) else own for own in (effect.x, effect.y))
        drawn = axes.pcolormesh(x, y, effect.value.T, cmap="RdBu_r", vmin=-far, vmax=far, shading="nearest")
        axes.figure.colorbar(drawn, ax=axes)
        for axis, name, own in ((axes.xaxis, effect.a, effect.x), (axes.yaxis, effect.b, effect.y)):
            axis.set_label_text(name, fontsize=7)
            if isinstance(own, tuple):
                axis.set_ticks(range(len(own)), own, fontsize=6)
        return
    if effect.numeric:
        axes.axhline(0.0, color="0.8", linewidth=0.8)
        for part in effect.gaps:
            axes.plot(effect.x[part], effect.value[part], "--", color="0.6", linewidth=1.0)
        for part in effect.strokes:
            at, value, alone = effect.x[part], effect.value[part], len(effect.x[part]) == 1
            if effect.band is not None and alone:
                axes.errorbar(at, value, effect.band[part], color="0.7", linewidth=3)
            elif effect.band is not None:
                axes.fill_between(at, value - effect.band[part], value + effect.band[part], color="0.8", linewidth=0)
            axes.plot(at, value, "C0o" if alone else "C0-", linewidth=1.4, markersize=4)
        return
    order = np.argsort(effect.value)
    axes.axvline(0.0, color="0.8", linewidth=0.8)
    error = None if effect.band is None else effect.band[order]
    axes.barh(np.arange(order.size), effect.value[order], xerr=error, error_kw={"ecolor": "0.5", "linewidth": 1})
    axes.set_yticks(np.arange(order.size), [effect.x[k] for k in order], fontsize=6)


def effects_of(result: Model, told: History | None = None) -> Effects:
    """Return the curves of a model; the largest comes first.

    told : history of the run, whose iterates give the noise band; None draws no band.
    """
    job, schema = result.job, result.applied.schema
    scaling = job.scaling_of(job.partition.features)
    units_of = {name: at for name, *at in zip(scaling.features, scaling.shift, scaling.width, strict=True)}
    by_name, owners = dict(zip(result.coordinates, result.w, strict=True)), result.owners
    moves, (means, variances) = _iterates(result, told), _moments(result)
    crossed = {
        column: _Surface(column, declared, job, schema, means, units_of)
        for column in job.partition.features
        if isinstance(declared := schema[column], Crossed)
    }

    def summed(names: Sequence[str], scaled: Vector, k: int) -> tuple[Vector, Vector | None]:
        """Return what these coordinates add to the score of class k, and a noise band. scaled : (..., len(names))."""
        own = [coordinates_of(name, job.class_names)[k] for name in names]
        if not all(name in moves for name in own):
            return scaled @ np.array([by_name[name] for name in own]), None
        # The standard error of the average would be smaller, but iterates of one run are too correlated to estimate it.
        band = 2.0 * (scaled @ np.array([moves[name] for name in own])).std(axis=-1, ddof=1)
        return scaled @ np.array([by_name[name] for name in own]), band

    found, joint = [], []
    for column in (c for c in job.partition.features if c not in crossed):
        x = _points(column, schema[column], POINTS)
        x, seen = _seen(x, told.seen[column]) if told and column in told.seen else (x, np.ones(len(x), dtype=bool))
        basis, names = coordinates_at(schema[column], x), own_of(schema[column], column)
        shift, width = np.array([units_of[name] for name in names]).T
        scaled = (basis - shift) / width
        added = [surface.added(column, x) for surface in crossed.values() if column in surface.columns]
        for k, shown in enumerate(coordinates_of(column, job.class_names)):
            own = [coordinates_of(name, job.class_names)[k] for name in names]
            released = all(name in means for name in own)
            centred = scaled - ([means[name] for name in own] if released else scaled.mean(axis=0))
            w = np.array([by_name[name] for name in own])
            square = w**2 @ [variances[name] for name in own] if released else np.square(centred @ w).mean()
            value, band = summed(
                [*names, *(name for more, _ in added for name in more)],
                np.hstack([centred, *(parts for _, parts in added)]),
                k,
            )
            if getattr(schema[column], "shape", None):
                band = None
            band = np.where(seen, band, np.nan) if band is not None and seen.any() else None
            found.append(Effect(shown, owners[own[0]], x, value, band, math.sqrt(float(square)), seen))
    for column, surface in crossed.items():
        for k, shown in enumerate(coordinates_of(column, job.class_names)):
            value, band = summed(surface.names, surface.parts, k)
            size = math.sqrt(float(np.square(value).mean()))
            (a, b), (x, y) = surface.columns, surface.points
            joint.append(Joint(shown, job.partition.owner(column), a, b, x, y, value, band, size))
    found.sort(key=lambda effect: -effect.size)
    return Effects(tuple(found), tuple(sorted(joint, key=lambda pair: -pair.size)))


def _seen(x: Vector, stretches: Sequence[Bounds]) -> tuple[Vector, Any]:
    """Return the points with the ends of the stretches beside gaps (GAP), and False for points in these gaps."""
    ends = np.array([-np.inf, *(end for own in stretches for end in own), np.inf]).reshape(-1, 2)
    inside = np.clip(ends, x[0], x[-1])
    wide = np.ptp(inside, axis=1) >= GAP * (x[-1] - x[0])
    x = np.union1d(x, inside[wide])
    return x, ~((x > ends[wide, :1]) & (x < ends[wide, 1:])).any(axis=0)


class _Surface:
    """A product of two columns (pair), evaluated at the points of both columns.

    A product c·a(x)·b(y) has four parts: c (a − ā)(b − b̄), which is drawn here; c (a − ā) b̄, which belongs to the curve of
    the first column; c ā (b − b̄), which belongs to the curve of the second column; and a constant. ā and b̄ are means over
    the records if the run released such means, else over the points. The drawn part is therefore 0 on average along each
    column.

    columns, points : names and points of both columns. names : names of the coordinates. parts : (m, k, len(names)), factors of
        the scaled coefficients.
    """

    def __init__(
        self,
        column: str,
        pair: Crossed,
        job: Job,
        schema: Schema,
        means: Mapping[str, float],
        units_of: Mapping[str, Sequence[float]],
    ) -> None:
        self._pair = pair
        self.columns, self.names = tuple(side.column for side in pair.sides), pair.own(column)
        self.points = [_points(side.column, side.declared, POINTS_OF_PAIRS) for side in pair.sides]
        self._means = [_mean(side, schema[side.column], means, units_of) for side in pair.sides]
        self._width = np.array([units_of[name][1] for name in self.names])
        left, right = (
            _of_side(side, x) - (mean if side.column in job.partition.features else 0.0)
            for side, x, mean in zip(pair.sides, self.points, self._means, strict=True)
        )
        self.parts = np.einsum("mi,kj->mkij", left, right).reshape(len(left), len(right), -1) / self._width

    def added(self, column: str, x: Any) -> tuple[tuple[str, ...], Vector]:
        """Return the names and the contributions, (m, len(names)), of coordinates that belong to the curve of a column at x."""
        k = self.columns.index(column)
        own = _of_side(self._pair.sides[k], x) - self._means[k]
        other = self._means[1 - k]
        parts = own[:, :, None] * other if k == 0 else other[:, None] * own[:, None, :]
        return self.names, parts.reshape(len(own), -1) / self._width


def _mean(side: Side, main: Any, means: Mapping[str, float], units_of: Mapping[str, Sequence[float]]) -> Vector:
    """Return the mean of each coordinate of one multiplied column: over the records if means were released, else over points.

    For a column of numbers, the coordinates in the product are linear in the coordinates of the column's curve, since the
    knots of the curve include all knots in the product.
    """
    x, names = _points(side.column, main, POINTS), own_of(main, side.column)
    own = _of_side(side, x)
    if not all(name in means for name in names):
        return np.asarray(own.mean(axis=0))
    shift, width = np.array([units_of[name] for name in names]).T
    mean = np.array([means[name] for name in names]) * width + shift
    if isinstance(x, tuple):
        return np.asarray(mean - side.middles)
    whole = np.column_stack([np.ones(len(x)), coordinates_at(main, x)])
    linear = np.linalg.lstsq(whole, own)[0]
    return np.asarray(np.array([1.0, *mean]) @ linear)


def _of_side(side: Side, x: Any) -> Vector:
    return np.asarray(coordinates_at(side.declared, x) - side.middles)


def _points(column: str, declared: Any, number: int) -> Any:
    if ends := _ends(declared):
        inner = [*(getattr(declared, "knots", None) or ()), *getattr(declared, "edges", ())]
        return np.union1d(np.linspace(*ends, number), [knot for knot in inner if ends[0] <= knot <= ends[1]])
    if isinstance(declared, Boolean):
        return categories_of(declared)
    return declared.texts if isinstance(declared, Categorical) else own_of(declared, column)


def coordinates_at(declared: Any, x: Any) -> Any:
    """Return the coordinates of a column at these points, (m, k), without the coordinate that marks missing cells."""
    if isinstance(declared, Boolean):
        return np.array([[0.0], [1.0]])
    if isinstance(x, tuple):
        return np.eye(len(x))
    if isinstance(declared, OfCells):
        return np.column_stack(list(declared.made(x.copy())))
    return np.clip(x, *declared.limits)[:, None]


def _ends(declared: Any) -> tuple[float, float] | None:
    """Return the range over which to draw a numeric column; None for other columns."""
    if isinstance(declared, Boolean | Categorical) or getattr(declared, "content", "number") != "number":
        return None
    if isinstance(declared, Curve):
        return declared.points[0], declared.points[-1]
    if (bounds := getattr(declared, "bounds", None)) is not None:
        return bounds  # type: ignore[no-any-return]
    if knots := getattr(declared, "knots", None):
        return knots[0], knots[-1]
    if edges := getattr(declared, "edges", None):
        width = (edges[-1] - edges[0]) / max(1, len(edges) - 1) or 1.0
        return edges[0] - width, edges[-1] + width
    if hasattr(declared, "period"):
        return declared.start, declared.start + declared.period
    return None


def _moments(result: Model) -> tuple[dict[str, float], dict[str, float]]:
    """Return the released mean and variance of each scaled coordinate; {} and {} if the run released no means."""
    problem = make_plan(result.job, result.certificate.n_records).problem
    if not result.moments or problem.layout.names != result.coordinates or not problem.centred_coordinates.any():
        return {}, {}
    means, _ = places(problem, result.moments)
    variances = np.maximum(spreads(problem, result.moments)[0], 0.0)
    kept = [j for j in range(means.size) if problem.centred_coordinates[j]]
    names = result.coordinates
    reach = problem.reach
    return {names[j]: float(means[j] * reach[j]) for j in kept}, {names[j]: float(variances[j]) for j in kept}


def _iterates(result: Model, told: History | None) -> Mapping[str, Vector]:
    """Return {coordinate: (t,) values in the second half of the run}; {} for a run without noise or with too few iterates."""
    found: dict[str, Vector] = {}
    if told is None or not told.noise:
        return found
    owners = result.owners
    for party, iterates in told.iterates.items():
        own = [name for name in result.coordinates if owners[name] == party]
        late = np.array(iterates[len(iterates) // 2 :])
        if len(late) >= FEWEST and late.shape[1] == len(own):
            found |= dict(zip(own, late.T, strict=True))
    return found
