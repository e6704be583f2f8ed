"""Curves on kinds of columns whose effect is known: error where records lie, inventions where none lie, and bands.

    python -m tests.benchmarks curve-shapes [--quick] [--only NAME ...] [--runs N] [--output DIR]

A party holds the column, the other a normal column and the label. "error" is the root mean square over the records of curve
minus effect, both centred, divided by the effect's own (by 1 without effect). "invented" is the largest distance, in the
margin's unit, from the curve outside the records to the range of its values at the two neighbouring records. "drawn" is the
same where the curve is drawn as a line with a band, and "dashed" is the share of the records where it is dashed. "held" is the
share of the others at which the band holds the effect.

`problem` draws problems of several columns, by AUC and log loss on fresh records. CHOSEN are the seeds that rules may be chosen
on. HELD_OUT were committed before any run, and are reported apart.
"""

from __future__ import annotations

import functools
import math
import sys
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.metrics import log_loss, roc_auc_score

import vfl
from tests.benchmarks.command import alone
from tests.benchmarks.results import Result, Settings, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Draw = Callable[[np.random.Generator, int], np.ndarray]

EPSILONS = (0.1, 1.0, 4.0)
CHOSEN = (1, 2, 3, 4)
DEFAULT = vfl.Curve()
HELD_OUT = (1001, 1002, 1003, 1004, 1005, 1006)


@dataclass(frozen=True, eq=False)
class Kind:
    """Draw of a column, its declared bounds, and its effect on the margin. curve : declaration."""

    draw: Draw
    bounds: tuple[float, float]
    effect: Callable[[np.ndarray], np.ndarray]
    curve: vfl.Curve = DEFAULT

    def frame(self, seed: int, n: int, loss: str) -> pd.DataFrame:
        """Return records with columns x, z and y."""
        rng = np.random.default_rng(seed)
        x, z = self.draw(rng, n), np.clip(rng.normal(size=n), -5, 5)
        margin = self.effect(x) - self.effect(x).mean() + 0.5 * z
        y = margin + rng.normal(0, 1, n) if loss == "squared" else (rng.random(n) < expit(margin)) * 1.0
        return pd.DataFrame({"x": x, "z": z, "y": np.clip(y, -8, 8)})

    def run(self, epsilon: float, seed: int, n: int, loss: str) -> dict[str, float]:
        """Train, and return {measure: value}."""
        frame = self.frame(seed, n, loss)
        job = vfl.Job(
            partition=vfl.FeaturePartition({"a": ["x"], "b": ["z"]}, label=("b", "y")),
            columns={"x": self.curve, "z": vfl.Numeric()},
            bounds={"x": self.bounds, "z": (-5, 5)} | ({"y": (-8, 8)} if loss == "squared" else {}),
            loss=loss,
            penalty=vfl.L2(1.0 / n),
            privacy=vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(seed)),
        )
        with tempfile.TemporaryDirectory() as folder:
            result = vfl.train(job, frame, at="inprocess", output=f"{folder}/run")
            drawn = result.curves(f"{folder}/run")["x"]
        x = np.sort(frame["x"].to_numpy())

        def at(points: np.ndarray) -> np.ndarray:
            rows = frame.drop(columns="y").iloc[:1].loc[lambda own: own.index.repeat(len(points))].assign(x=points)
            return np.asarray(result.decision_function(rows))

        value, truth = at(x), self.effect(x)
        miss = value - value.mean() - truth + truth.mean()
        grid = np.linspace(*self.bounds, 401)
        before, after = np.searchsorted(x, grid, side="right") - 1, np.searchsorted(x, grid)
        far = (
            (x[np.minimum(after, n - 1)] - x[np.maximum(before, 0)] > 0.02 * np.ptp(self.bounds))
            | (before < 0)
            | (after == n)
        )
        one, other = value[np.maximum(before, 0)], value[np.minimum(after, n - 1)]
        invented = np.maximum(at(grid) - np.maximum(one, other), np.minimum(one, other) - at(grid))[far]
        found = {"error": math.sqrt(float(np.square(miss).mean())) / (truth.std() or 1.0)}
        found["invented"] = float(invented.max(initial=0.0))
        solid = np.interp(grid, drawn.x, drawn.seen * 1.0, left=0.0, right=0.0)[far] == 1.0
        found["drawn"] = float(invented[solid].max(initial=0.0))
        found["dashed"] = float((np.interp(x, drawn.x, drawn.seen * 1.0) < 1.0).mean())
        if drawn.band is not None and not np.isnan(drawn.band).all():
            known = np.interp(x, drawn.x, drawn.band)
            shown = ~np.isnan(known)
            centred = np.interp(x, drawn.x, drawn.value) - truth
            found["held"] = float((abs(centred - centred.mean()) <= known)[shown].mean())
        return found


def _zeros(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(rng.random(n) < 0.9, 0.0, np.minimum(rng.lognormal(6, 1, n), 1e5))


def _uneven(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.41 * np.array([0, 2, -1, 1, 0, 2])[x.astype(int)])


KINDS: dict[str, Kind] = {
    "two values, no effect": Kind(lambda rng, n: rng.integers(2, 4, n) * 1.0, (0, 10), lambda x: 0.0 * x),
    "two values": Kind(lambda rng, n: rng.integers(2, 4, n) * 1.0, (0, 10), lambda x: x * 1.0),
    "a gap": Kind(
        lambda rng, n: rng.uniform(0, 2, n) + 8.0 * (rng.random(n) < 0.5), (0, 10), lambda x: 0.5 * x - 5.0 * (x > 5)
    ),
    "integers 0 to 5": Kind(lambda rng, n: rng.integers(0, 6, n) * 1.0, (0, 5), _uneven),
    "integers 0 to 5, wide": Kind(lambda rng, n: np.minimum(rng.poisson(1.2, n), 5.0), (0, 20), lambda x: 1.0 * (x > 1)),
    "integers 0 to 20": Kind(lambda rng, n: rng.binomial(20, 0.5, n) * 1.0, (0, 20), lambda x: np.abs(x - 10) / 2),
    "lognormal": Kind(lambda rng, n: np.minimum(rng.lognormal(0, 1.2, n), 100), (0, 100), np.log1p),
    "200 times too wide": Kind(lambda rng, n: rng.uniform(0, 1, n), (-100, 100), lambda x: np.sin(6 * x)),
    "90 % zeros": Kind(_zeros, (0, 1e5), lambda x: np.where(x > 0, 0.3 * np.log1p(x) - 1.0, 0.0)),
    "uniform": Kind(lambda rng, n: rng.uniform(0, 1, n), (0, 1), lambda x: np.sin(6 * x)),
    "normal": Kind(lambda rng, n: np.clip(rng.normal(0, 1, n), -5, 5), (-5, 5), np.abs),
    "monotone step": Kind(
        lambda rng, n: rng.uniform(0, 1, n), (0, 1), lambda x: 1.2 * (x > 0.37), vfl.Curve(shape="increasing")
    ),
}  # fmt: skip


def problem(seed: int) -> tuple[vfl.Job, pd.DataFrame, pd.DataFrame]:
    """Return a job without ε, records to train on, and fresh ones: six to nine columns of random kinds and effects."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.choice([12_000, 40_000])), int(rng.integers(6, 10))
    columns, bounds, margin = {}, {}, np.zeros(n + 20_000)
    size = len(margin)
    for j in range(m):
        width = 10.0 ** rng.uniform(0.0, 1.0)
        x, ends = (  # only the chosen one draws
            lambda: (rng.uniform(0, 1, size), (0.0, 1.0)),
            lambda width=width: (rng.normal(0, 1, size), (-3.0 * width, 3.0 * width)),
            lambda width=width: (rng.lognormal(0, 1.3, size), (0.0, 20.0 * width)),
            lambda width=width: (np.where(rng.random(size) < 0.8, 0.0, rng.lognormal(2, 1, size)), (0.0, 40.0 * width)),
            lambda width=width: (rng.geometric(0.4, size) * 1.0, (1.0, 20.0 * width)),
            lambda: (rng.integers(0, 6, size) * 1.0, (0.0, 5.0)),
            lambda width=width: (rng.gamma(1.2, 1.0, size), (0.0, 5.0 * width)),
        )[rng.integers(0, 7)]()
        rank = np.searchsorted(np.sort(x), x) / size  # effects by rank bend where records are dense
        effect = (
            lambda r=rank: np.sin(2 * np.pi * (r * rng.uniform(0.4, 1.5) + rng.random())),
            lambda r=rank: 1.5 * (r > rng.uniform(0.2, 0.9)),
            lambda x=x: np.log1p(abs(x)),
            lambda r=rank: np.maximum(0.0, r - rng.uniform(0.5, 0.95)) * 6.0,
            lambda r=rank: 2.0 * r,
        )[rng.integers(0, 5)]()
        margin += rng.choice([-1, 1]) * 1.4 * effect / (1 + j / 3)
        columns[f"x{j}"], bounds[f"x{j}"] = np.clip(x, *ends), ends
    names = np.array([f"c{k}" for k in range(5)])
    drawn = rng.integers(0, 5, size)
    margin += rng.normal(0, 0.5, 5)[drawn]
    margin -= np.quantile(margin, 1.0 - rng.choice([0.1, 0.25, 0.5]))
    frame = pd.DataFrame(columns | {"k": names[drawn], "y": (rng.random(size) < expit(margin)).astype(int)})
    held = [*bounds, "k"]
    job = vfl.Job(
        partition=vfl.FeaturePartition({"a": held[::2], "b": held[1::2]}, label=("b", "y")),
        columns={"*": vfl.Curve(), "k": vfl.Categorical(tuple(names))},
        bounds=bounds,
        loss="logistic",
        penalty=vfl.L2(1.0 / n),
        privacy=None,
    )
    return job, frame.iloc[:n], frame.iloc[n:]


def measured(seed: int, epsilon: float, noise: int, curve: vfl.Curve = DEFAULT) -> tuple[float, float]:
    """Return AUC and log loss of one run on a problem's fresh records."""
    job, train, test = problem(seed)
    columns = job.columns | {"*": curve}
    job = replace(job, columns=columns, privacy=vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(noise)))
    p = vfl.train(job, train, at="inprocess").predict_proba(test)[:, 1]
    return float(roc_auc_score(test["y"], p)), float(log_loss(test["y"], p))


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield a task for each kind and ε, and one for each problem."""
    for epsilon in EPSILONS[1:2] if settings.quick else EPSILONS:
        for name in KINDS:
            yield Task(f"{name}, ε = {epsilon:g}", functools.partial(shapes, name, epsilon, settings))
        for seed in (*CHOSEN, *HELD_OUT):
            yield Task(f"problem {seed}, ε = {epsilon:g}", functools.partial(columns, seed, epsilon, settings))


def shapes(name: str, epsilon: float, settings: Settings) -> Iterator[Result]:
    """Yield error, inventions and share held for each loss and number of records."""
    seeds = settings.seeds(whole=6)
    for loss in ("logistic", "squared"):
        for n in (3_000,) if settings.quick else (3_000, 30_000):
            runs = [KINDS[name].run(epsilon, seed, n, loss) for seed in seeds]
            for measure in runs[0]:
                values = tuple(run[measure] for run in runs if measure in run)
                about: dict[str, Any] = {"at": {"epsilon": epsilon, "n": n}, "seeds": seeds, "tuned": "default"}
                yield Result(
                    part="curve-shapes", case=f"{name}, {loss}", arm="vfl.Curve()", measure=measure, values=values,
                    less=measure != "held", **about,
                )  # fmt: skip


def columns(seed: int, epsilon: float, settings: Settings) -> Iterator[Result]:
    """Yield AUC and log loss on a problem's fresh records."""
    seeds = settings.seeds(whole=4)
    found = [measured(seed, epsilon, noise) for noise in seeds]
    about: dict[str, Any] = {"at": {"epsilon": epsilon}, "seeds": seeds, "tuned": "default"}
    case = f"problem {seed}, {'held out' if seed in HELD_OUT else 'chosen on'}"
    for measure, values in zip(("AUC", "log loss"), zip(*found, strict=True), strict=True):
        less = measure == "log loss"
        yield Result(
            part="curve-shapes", case=case, arm="vfl.Curve()", measure=measure, values=values, less=less, **about
        )


if __name__ == "__main__":
    sys.exit(alone("curve-shapes"))
