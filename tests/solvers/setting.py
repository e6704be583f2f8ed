"""One small problem over two parties, for solvers that move the whole model at once."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize

import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Log, Round
from parties.loading import load
from vfl.base.losses import loss_of
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.privacy.noise import SeededNoise

if TYPE_CHECKING:
    from coordinator.coordinator import Outcome

N = 300
COLUMNS = ("a0", "a1", "a2", "b0")
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(COLUMNS, (-1.0, 1.0))
STRENGTH = 0.05


@functools.cache
def table(loss: str) -> dict[str, np.ndarray]:
    """Columns within their bounds, and a noisy label."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (N, len(COLUMNS)))
    signal = X @ np.array([1.5, -2.0, 0.1, 1.0]) + 0.3
    y = signal + 0.3 * rng.normal(size=N)
    return {c: X[:, j] for j, c in enumerate(COLUMNS)} | {"y": y if loss == "squared" else (y > 0).astype(int)}


def job(solver: Any, loss: str = "logistic", *, epsilon: float | None = None, **options: Any) -> vfl.Job:
    """Return a job of `solver`; with an ε it is private with seeded noise."""
    seed = options.pop("noise", 5)
    privacy = None if epsilon is None else vfl.Privacy(epsilon=epsilon, delta=1e-5, noise=SeededNoise(seed))
    defaults: dict[str, Any] = {"penalty": vfl.L2(STRENGTH), "intercept": False, "privacy": privacy}
    bounds = BOUNDS | ({"y": (-6.0, 8.0)} if loss == "squared" else {})
    return vfl.Job(partition=PARTITION, loss=loss, bounds=bounds, solver=solver, **(defaults | options))


def optimum(loss: str, *, column_of_ones: bool = False) -> np.ndarray:
    """Return the minimiser of the smooth F with L2, by a quasi-Newton method on the columns as given."""
    X = np.column_stack([table(loss)[c] for c in COLUMNS] + ([np.ones(N)] if column_of_ones else []))
    y = table(loss)["y"] if loss == "squared" else 2.0 * table(loss)["y"] - 1.0
    term = loss_of(loss)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        v = X @ w
        return (
            float(term.value(v, y).mean() + STRENGTH / 2 * w @ w),
            X.T @ term.derivative(v, y) / N + STRENGTH * w,
        )

    options = {"maxiter": 10_000, "ftol": 1e-16, "gtol": 1e-11}
    return np.asarray(minimize(objective, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options=options).x)


def drive(spec: vfl.Job, log: Log | None = None) -> tuple[list[Round], Outcome]:
    """Run a job in this process, from a log if there is one."""
    sources = sources_of(spec, table(spec.loss)).items()
    coordinator = Coordinator(
        InProcessTransport({name: load(spec.for_party(name), source) for name, source in sources})
    )
    *events, outcome = coordinator.stream(spec, log=log)
    return [event for event in events if isinstance(event, Round)], outcome


def log_of(made: list[Round], length: int) -> Log:
    """Return the log of a process that was cut off after so many queries."""
    kept = made[:length]
    charged = tuple(tuple(key for key, _ in record.charges) for record in kept)
    return Log(tuple(record.released for record in kept), charged, N)


def distance(spec: vfl.Job, w: np.ndarray) -> float:
    """Return the largest difference of a coordinate."""
    return float(abs(drive(spec)[1].w - w).max()) if math.isfinite(w.sum()) else math.inf
