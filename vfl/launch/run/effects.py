"""Curves of a model: the part of the margin that each column adds, over the column's range. Post-processing of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.columns import Boolean, Categorical, categories_of
from vfl.errors import SpecificationError, nearest
from vfl.features import Feature, Pair, own_of
from vfl.planning import plan as make_plan
from vfl.problem import coordinates_of
from vfl.solvers.releases.smoothness import places, spreads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vfl.launch.run.history import History
    from vfl.launch.run.result import Result
    from vfl.types import Vector

POINTS = 65
"""Number of equal steps at which a curve is evaluated, besides its knots."""
BATCHES = 8
"""Largest number of batches of iterates."""
FEWEST = 4
"""Least number of iterates from which the noise is estimated."""
BAND_NOTE = (
    "Grey: plus and minus two standard errors of the noise in the training, from batch means of its iterates. It leaves out "
    "the sampling of the records and the bias of clips and penalty, so it is not a confidence interval."
)


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """Part of the margin that one column adds, minus its mean: over the records if the run released means, else over x.

    column, party : the column, as 'column[class]' with several classes, and its owner.
    x : (m,) numbers in the column's unit, ascending; or names of categories.
    value : (m,) part of the margin. band : (m,) half-width of the noise's band; None if it is not known.
    size : by which curves are sorted. √Σ w_j² v_j of the column's coefficients and released variances; without these, the
        root mean square of the value over x.
    """

    column: str
    party: str
    x: Vector | tuple[str, ...]
    value: Vector
    band: Vector | None
    size: float

    @property
    def numeric(self) -> bool:
        """True for a curve over numbers, False for one value per category."""
        return not isinstance(self.x, tuple)


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Curves of all columns, the largest first."""

    effects: tuple[Effect, ...]

    def __iter__(self) -> Iterator[Effect]:
        return iter(self.effects)

    def __len__(self) -> int:
        return len(self.effects)

    def __getitem__(self, column: str) -> Effect:
        found = {effect.column: effect for effect in self.effects}
        if column not in found:
            raise SpecificationError(f"there is no curve of {column!r}{nearest(column, found)}")
        return found[column]

    def __repr__(self) -> str:
        lines = [f"  {e.column} ({e.party}): {e.value.min():.3g} to {e.value.max():.3g}" for e in self.effects]
        return "\n".join(("Curves, the largest first, in units of the margin:", *lines))

    def frame(self) -> Any:
        """Return a pandas DataFrame with the columns column, party, x, value and band, one row per point."""
        import pandas as pd

        rows = [
            {"column": e.column, "party": e.party, "x": x, "value": float(value), "band": band}
            for e in self.effects
            for x, value, band in zip(
                e.x, e.value, np.full(e.value.size, np.nan) if e.band is None else e.band, strict=True
            )
        ]
        return pd.DataFrame(rows, columns=["column", "party", "x", "value", "band"])

    def plot(self, columns: int = 3) -> Any:
        """Return a matplotlib Figure with one panel per curve, `columns` in a row, on a common vertical axis."""
        from matplotlib.figure import Figure

        rows = max(1, math.ceil(len(self.effects) / columns))
        figure = Figure(figsize=(3.4 * columns, 2.3 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, effect in zip(panels, self.effects, strict=False):
            _draw(axes, effect)
        for axes in panels[len(self.effects) :]:
            axes.set_axis_off()
        return figure


def _draw(axes: Any, effect: Effect) -> None:
    axes.set_title(f"{effect.column} ({effect.party})", fontsize=9)
    axes.tick_params(labelsize=7)
    if effect.numeric:
        axes.axhline(0.0, color="0.8", linewidth=0.8)
        if effect.band is not None:
            axes.fill_between(
                effect.x, effect.value - effect.band, effect.value + effect.band, color="0.8", linewidth=0
            )
        axes.plot(effect.x, effect.value, linewidth=1.4)
        return
    order = np.argsort(effect.value)
    axes.axvline(0.0, color="0.8", linewidth=0.8)
    error = None if effect.band is None else effect.band[order]
    axes.barh(np.arange(order.size), effect.value[order], xerr=error, error_kw={"ecolor": "0.5", "linewidth": 1})
    axes.set_yticks(np.arange(order.size), [effect.x[k] for k in order], fontsize=6)


def effects_of(result: Result, told: History | None = None, iterate: str | None = None) -> Effects:
    """Return the curves of a model, the largest first.

    told : history of the run, from whose iterates the band follows; None draws no band. iterate : the solver's option.
    """
    job, schema = result.job, result.applied.schema
    scaling = job.scaling_of(job.partition.features)
    units_of = {name: at for name, *at in zip(scaling.features, scaling.shift, scaling.width, strict=True)}
    by_name, owners = dict(zip(result.coordinates, result.w, strict=True)), result.owners
    moves, (means, variances) = _iterates(result, told), _moments(result)
    found = []
    for column in job.partition.features:
        x, basis, names = _basis(column, schema[column])
        shift, width = np.array([units_of[name] for name in names]).T
        scaled = (basis - shift) / width
        for k, shown in enumerate(coordinates_of(column, job.class_names)):
            own = [coordinates_of(name, job.class_names)[k] for name in names]
            released = all(name in means for name in own)
            centred = scaled - ([means[name] for name in own] if released else scaled.mean(axis=0))
            w = np.array([by_name[name] for name in own])
            value = centred @ w
            band = None
            if all(name in moves for name in own):
                walked = centred @ np.array([moves[name] for name in own])
                band = 2.0 * _noise(walked, last=iterate == "last")
            square = w**2 @ [variances[name] for name in own] if released else (value @ value) / value.size
            found.append(Effect(shown, owners[own[0]], x, value, band, math.sqrt(float(square))))
    return Effects(tuple(sorted(found, key=lambda effect: -effect.size)))


def _basis(column: str, declared: Any) -> tuple[Any, Vector, list[str]]:
    """Return the points x, the coordinates there (m, k), and the coordinates' names; without the indicator of missing cells."""
    if ends := _ends(declared):
        inner = [*(getattr(declared, "knots", None) or ()), *getattr(declared, "edges", ())]
        x = np.union1d(np.linspace(*ends, POINTS), [knot for knot in inner if ends[0] <= knot <= ends[1]])
        if isinstance(declared, Feature):
            return x, np.column_stack(list(declared.made(x.copy()))), list(own_of(declared, column))  # type: ignore[attr-defined]
        return x, x[:, None], [column]
    if isinstance(declared, Boolean):
        return categories_of(declared), np.array([[0.0], [1.0]]), [column]
    names = list(own_of(declared, column))
    if isinstance(declared, Categorical):
        return declared.texts, np.eye(len(names)), names
    return tuple(names), np.eye(len(names)), names


def _ends(declared: Any) -> tuple[float, float] | None:
    """Return the range over which to draw a column of numbers; None for other columns."""
    if isinstance(declared, Boolean | Categorical | Pair) or getattr(declared, "content", "number") != "number":
        return None
    if (bounds := getattr(declared, "bounds", None)) is not None:
        return bounds  # type: ignore[no-any-return]
    points = getattr(declared, "knots", None) or getattr(declared, "edges", None)
    if points:
        beyond = (points[-1] - points[0]) / max(1, len(points) - 1) if hasattr(declared, "edges") else 0.0
        return points[0] - (beyond or hasattr(declared, "edges")), points[-1] + (beyond or hasattr(declared, "edges"))
    if hasattr(declared, "period"):
        return declared.start, declared.start + declared.period
    return None


def _moments(result: Result) -> tuple[dict[str, float], dict[str, float]]:
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


def _iterates(result: Result, told: History | None) -> Mapping[str, Vector]:
    """Return {coordinate: (t,) its values in the second half of the run}; {} for a run without noise or too few visits."""
    found: dict[str, Vector] = {}
    if told is None or not told.noise:
        return found
    owners = result.owners
    for party, visits in told.iterates.items():
        own = [name for name in result.coordinates if owners[name] == party]
        late = np.array(visits[len(visits) // 2 :])
        if len(late) >= FEWEST and late.shape[1] == len(own):
            found |= dict(zip(own, late.T, strict=True))
    return found


def _noise(walked: Vector, *, last: bool) -> Vector:
    """Return the standard error, (m,), of the mean of the iterates' values (m, t), by batch means; of one iterate if `last`.

    Iterates of neighbouring passes are correlated, and means of long batches hardly are (Flegal & Jones 2010).
    """
    t = walked.shape[1]
    if last:
        return np.asarray(walked.std(axis=1, ddof=1))
    batches = min(BATCHES, t // 2)
    size = t // batches
    means = walked[:, t - batches * size :].reshape(walked.shape[0], batches, size).mean(axis=2)
    return np.asarray(means.std(axis=1, ddof=1) / math.sqrt(batches))
