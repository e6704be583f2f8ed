"""Multinomial loss against one model per class, at the same ε and on the same seeds; seeded noise, nothing is private.

    python -m tests.benchmarks.classes [--seeds 5]

`simulated` draws 4 classes from a softmax model of 10 columns. `digits` is scikit-learn's, 64 columns and 10 classes. The
table states log loss and accuracy on records that were not trained on, as mean ± standard deviation over the seeds.
Probabilities of one-vs-rest are its classes' probabilities, scaled to sum to 1. Without noise, the largest difference between a
coefficient and scikit-learn's is printed first.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import expit, softmax
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import vfl
from vfl.privacy.gaussian_dp import epsilon_of, mu_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.base.types import Vector

EPSILON, PENALTY = 1.0, 1e-3


@dataclass(frozen=True)
class Scene:
    """Records of a problem, in [−1, 1], and labels 0 to K − 1; those from `train` on are measured on."""

    name: str
    X: Vector
    y: Vector
    train: int

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return [f"x{j}" for j in range(self.X.shape[1])]

    @property
    def classes(self) -> tuple[int, ...]:
        """Return the classes."""
        return tuple(range(int(self.y.max()) + 1))

    def table(self) -> pd.DataFrame:
        """Return the training records."""
        return pd.DataFrame(self.X[: self.train], columns=self.names).assign(label=self.y[: self.train])

    def job(self, **options: Any) -> vfl.Job:
        """Return a job over two parties."""
        half = len(self.names) // 2
        return vfl.Job(
            partition=vfl.FeaturePartition({"a": self.names[:half], "b": self.names[half:]}, label=("b", "label")),
            bounds={"*": (-1, 1)},
            penalty=vfl.L2(PENALTY),
            **options,
        )

    def measured(self, probabilities: Vector) -> tuple[float, float]:
        """Return log loss and accuracy on the other records."""
        y = self.y[self.train :].astype(int)
        own = np.maximum(probabilities[np.arange(y.size), y], 1e-12)
        return float(-np.log(own).mean()), float((probabilities.argmax(axis=1) == y).mean())


def scenes() -> Iterator[Scene]:
    """Yield the problems."""
    rng = np.random.default_rng(0)
    for n in (2_000, 20_000):
        X = rng.uniform(-1, 1, (n + 20_000, 10))
        P = softmax(X @ (2.0 * rng.normal(size=(10, 4))), axis=1)
        y = (P.cumsum(axis=1) > rng.random((len(X), 1))).argmax(axis=1).astype(float)
        yield Scene(f"simulated, n = {n:,}, K = 4", X, y, n)
    X, y = load_digits(return_X_y=True)
    order = rng.permutation(len(X))
    yield Scene("digits, n = 1,400, K = 10", (X[order] / 8.0 - 1.0), y[order].astype(float), 1_400)


def figures(scene: Scene, seeds: int) -> dict[str, list[tuple[float, float]]]:
    """Return {model: (log loss, accuracy) of each seed}; scikit-learn's has no noise."""
    table, rest = scene.table(), pd.DataFrame(scene.X[scene.train :], columns=scene.names)
    strength = 1.0 / (PENALTY * scene.train)
    exact = LogisticRegression(C=strength, max_iter=5000).fit(scene.X[: scene.train], scene.y[: scene.train])
    found = {"no noise": [scene.measured(exact.predict_proba(scene.X[scene.train :]))], "multinomial": [], "rest": []}
    for seed in range(seeds):
        privacy = vfl.Privacy(epsilon=EPSILON, noise=vfl.SeededNoise(seed))
        joint = scene.job(loss="multinomial", classes=scene.classes, privacy=privacy)
        result = vfl.train(joint, table, at="inprocess")
        found["multinomial"].append(scene.measured(result.predict_proba(rest)))
        each = expit(np.column_stack([one.decision_function(rest) for one in against_the_rest(scene, seed)]))
        found["rest"].append(scene.measured(each / each.sum(axis=1, keepdims=True)))
    return found


def against_the_rest(scene: Scene, seed: int) -> Iterator[vfl.Result]:
    """Yield one model per class against the rest, each with μ/√K."""
    delta = 1.0 / scene.train**2
    share = epsilon_of(mu_of(EPSILON, delta) / math.sqrt(len(scene.classes)), delta)
    for number, positive in enumerate(scene.classes):
        privacy = vfl.Privacy(epsilon=share, delta=delta, noise=vfl.SeededNoise(seed)).numbered(number)
        rest = tuple(name for name in scene.classes if name != positive)
        yield vfl.train(scene.job(classes=(rest, positive), privacy=privacy), scene.table(), at="inprocess")


def apart(scene: Scene) -> float:
    """Return the largest difference between a coefficient of a fit without noise and scikit-learn's."""
    result = vfl.train(
        scene.job(loss="multinomial", classes=scene.classes, privacy=None), scene.table(), at="inprocess"
    )
    exact = LogisticRegression(C=1.0 / (PENALTY * scene.train), max_iter=20_000, tol=1e-10)
    exact.fit(scene.X[: scene.train], scene.y[: scene.train])
    return float(abs(result.coef_ - exact.coef_).max())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    for scene in scenes():
        print(f"| {scene.name} | largest difference of a coefficient without noise | {apart(scene):.2g} |", flush=True)
        for model, values in figures(scene, seeds).items():
            (loss, accuracy), (a, b) = np.mean(values, axis=0), np.std(values, axis=0)
            print(f"| {scene.name} | {model} | {loss:.3f} ± {a:.3f} | {accuracy:.3f} ± {b:.3f} |", flush=True)


if __name__ == "__main__":
    main()
