"""A small job and its data, for tunes that take a fraction of a second."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import vfl

CANDIDATES = [{}, {"penalty.strength": 0.05}, {"solver": {"passes": 2}}]


def table(n: int = 400) -> pd.DataFrame:
    """Return n records whose label depends on the first two of four columns."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (n, 4))
    y = (X @ [3.0, -2.0, 0.0, 0.0] + rng.logistic(size=n) > 0).astype(int)
    return pd.DataFrame(X, columns=["a", "b", "c", "d"]).assign(y=y)


def held(**options: Any) -> vfl.Evaluation:
    return vfl.Evaluation(**{"holdout": 0.25} | options)


def job(**changes: Any) -> vfl.Job:
    """Return a job on `table`, with a hold-out."""
    options: dict[str, Any] = {
        "partition": vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c", "d"]}, label=("bank", "y")),
        "bounds": {"*": (-1.0, 1.0)},
        "privacy": vfl.Privacy(epsilon=1.0, delta=1e-6),
        "evaluation": vfl.Evaluation(holdout=0.25),
        "penalty": vfl.L2(0.01),
        "solver": vfl.SkGD(passes=1),
        "name": "small",
    }
    return vfl.Job(**options | changes)
