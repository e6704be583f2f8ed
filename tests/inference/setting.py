"""A small job of two parties that asks for intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

import vfl

N = 4000
NAMES = tuple(f"x{j}" for j in range(5))
PARTITION = vfl.FeaturePartition({"a": NAMES[:2], "b": NAMES[2:]}, label=("b", "y"))
SLOPES = np.array([0.5, -0.3, 0.2, 0.0, 0.1])


def table(loss: str = "squared", n: int = N, seed: int = 0) -> dict[str, Any]:
    """Return columns and labels."""
    rng = np.random.default_rng(seed)
    X = np.clip(rng.normal(size=(n, 5)), -4.0, 4.0)
    v = X @ SLOPES + 0.3
    y = (rng.random(n) < expit(v)).astype(int) if loss == "logistic" else v + rng.normal(size=n)
    return dict(zip(NAMES, X.T, strict=True)) | {"y": y}


def job(loss: str = "squared", **options: Any) -> vfl.Job:
    """Return the job; options of privacy are given as a mapping `privacy`."""
    privacy = {"epsilon": 1.0} | options.pop("privacy", {})
    label = {} if loss in ("logistic", "smoothed_hinge") else {"y": (-8.0, 8.0)}
    given = {
        "partition": PARTITION,
        "loss": loss,
        "bounds": dict.fromkeys(NAMES, (-4.0, 4.0)) | label,
        "intervals": True,
    }
    return vfl.Job(**given | {"privacy": vfl.Privacy(**privacy)} | options)
