"""One small problem over two parties, and a neighbour that differs in one record as much as the bounds allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import vfl

if TYPE_CHECKING:
    from collections.abc import Mapping

    Table = dict[str, Any]

N = 12
RECORD = 3
PARTIES = {"bank": ("a", "b"), "telco": ("c",)}
PARTITION = vfl.FeaturePartition(PARTIES, label=("telco", "y"))
BOUNDS = dict.fromkeys("abc", (-1.0, 1.0))
CLASSES = ("logistic", "smoothed_hinge")
ENDS = dict.fromkeys(CLASSES, (0, 1)) | {
    "poisson": (0.0, 2.0),
    "gamma": (0.1, 2.0),
    "tweedie": (0.0, 2.0),
    "squared": (-2.0, 2.0),
    "huber": (-2.0, 2.0),
}
"""The least and the largest label."""


def table(loss: str = "logistic", n: int = N) -> Table:
    """Return columns within their bounds, and labels for the loss."""
    rng = np.random.default_rng(0)
    columns: Table = {name: rng.uniform(-1, 1, n) for name in "abc"}
    y = columns["a"] - columns["c"] + 0.3 * rng.normal(size=n)
    return columns | {"y": (y > 0).astype(int) if loss in CLASSES else y if loss in ("squared", "huber") else np.abs(y)}


def replaced(table: Mapping[str, Any], record: int = RECORD, **cells: Any) -> Table:
    """Return the table with other cells in one record; arrays stay arrays, and lists stay lists."""
    changed = {name: column.copy() for name, column in table.items()}
    for name, cell in cells.items():
        changed[name][record] = cell
    return changed


def turned(loss: str = "logistic", n: int = N) -> tuple[Table, Table]:
    """Return neighbours that differ in one record: it has the largest row, and either end of the label."""
    low, high = ENDS[loss]
    whole = replaced(table(loss, n), a=-1e9, b=np.inf, c=1.0)
    return replaced(whole, y=high), replaced(whole, y=low)


def mirrored(loss: str = "logistic", n: int = N) -> tuple[Table, Table]:
    """Return neighbours that differ in one record: it lies at either end of every bound."""
    whole = replaced(table(loss, n), y=ENDS[loss][1])
    return replaced(whole, a=-1e9, b=-1.0, c=-np.inf), replaced(whole, a=1.0, b=1.0, c=1.0)


def job(solver: Any, loss: str = "logistic", **options: Any) -> vfl.Job:
    """Return a private job on the tables."""
    label = {} if loss in CLASSES else {"y": ENDS[loss]}
    privacy = vfl.Privacy(**{"epsilon": 2.0, "delta": 1e-6} | options.pop("privacy", {}))
    given: dict[str, Any] = {"partition": PARTITION, "bounds": BOUNDS | label, "penalty": vfl.L2(0.1), "loss": loss}
    return vfl.Job(**given | {"privacy": privacy, "solver": solver} | options)
