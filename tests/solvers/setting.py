"""One small problem over two parties, and an audit, for the solvers that move the whole model at once."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtri
from scipy.stats import beta

import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Log, Round
from parties.columns import Columns
from parties.loading import load
from parties.party import Party
from vfl.launch.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.losses import loss_of
from vfl.privacy.gaussian_dp import mu_of
from vfl.privacy.noise import SeededNoise

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """A job of `solver`, private with seeded noise when it is given an ε."""
    seed = options.pop("noise", 5)
    privacy = None if epsilon is None else vfl.Privacy(epsilon=epsilon, delta=1e-5, noise=SeededNoise(seed))
    defaults: dict[str, Any] = {"penalty": vfl.L2(STRENGTH), "intercept": False, "privacy": privacy}
    bounds = BOUNDS | ({"y": (-6.0, 8.0)} if loss == "squared" else {})
    return vfl.Job(partition=PARTITION, loss=loss, bounds=bounds, solver=solver, **(defaults | options))


def optimum(loss: str, *, column_of_ones: bool = False) -> np.ndarray:
    """The minimiser of the smooth F with L2, by a quasi-Newton method on the columns as they are."""
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
    sources = sources_of(PARTITION, table(spec.loss)).items()
    coordinator = Coordinator(InProcessTransport({name: load(spec, name, source) for name, source in sources}))
    *events, outcome = coordinator.stream(spec, log=log)
    return [event for event in events if isinstance(event, Round)], outcome


def log_of(made: list[Round], length: int) -> Log:
    """Return what a process would have left behind that was cut off after so many queries."""
    kept = made[:length]
    rebuilt = max((number for number, record in enumerate(kept) if record.resets), default=0)
    return Log(tuple(record.released for record in kept), rebuilt, N)


# The audit: one record, whose contribution is on the clip in every release, against its opposite; all others are zero.
RUNS = 200
FAILURE = 0.01


def statistic(spec: vfl.Job, label: float, seed: int, every: int = 1) -> tuple[float, float]:
    """Return the sum of every so many releases along the canary's row, each over its σ, and the ε that the run states."""
    n, actors = 4, {}
    y = np.ones(n)
    y[0] = label
    for party in PARTITION.parties:
        columns = PARTITION.columns(party)
        X = np.zeros((n, len(columns)), order="F")
        X[0] = 1.0
        actors[party] = Party(party, Columns(X, columns), SeededNoise(seed), y)
    *events, outcome = Coordinator(InProcessTransport(actors)).stream(with_noise(spec, seed))
    score, event = 0.0, None
    released = [record for record in events if isinstance(record, Round) and record.kind == "Backward"]
    for number, record in enumerate(released):
        event = record.events[0] if record.events else event
        if number % every == 0:
            score += sum(float(u.sum()) for u in record.released) / event.sigma
    return score, outcome.statement.epsilon


def with_noise(spec: vfl.Job, seed: int) -> vfl.Job:
    """Return the job with other seeded noise; the coordinator draws batches from it."""
    assert spec.privacy is not None
    return job(spec.solver, spec.loss, epsilon=spec.privacy.epsilon, noise=seed, penalty=spec.penalty)


def price_once(monkeypatch: Any) -> None:
    """Hundreds of runs of one plan: its privacy loss distribution is computed once."""
    from vfl.privacy.ledger import book

    true = book._committed_epsilon
    cached = functools.cache(lambda plan, delta: true(list(plan), delta))
    monkeypatch.setattr(book, "_committed_epsilon", lambda plan, delta: cached(tuple(plan), delta))


def audit(spec: vfl.Job, every: int = 1) -> tuple[float, float]:
    """Return a lower bound on the true μ, wrong with probability 2·FAILURE at most, and the claimed μ."""
    arms = [
        np.array([statistic(spec, y, 2 * seed + k, every)[0] for seed in range(RUNS)])
        for k, y in enumerate((1.0, -1.0))
    ]
    pilots = [np.mean([statistic(spec, y, 10**6 + seed, every)[0] for seed in range(20)]) for y in (1.0, -1.0)]
    sign, threshold = np.sign(pilots[0] - pilots[1]), float(np.mean(pilots))
    errors = [int((sign * (arms[1] - threshold) > 0).sum()), int((sign * (arms[0] - threshold) <= 0).sum())]
    rates = [beta.ppf(1 - FAILURE, wrong + 1, RUNS - wrong) for wrong in errors]
    return float(-ndtri(rates[0]) - ndtri(rates[1])), mu_of(statistic(spec, 1.0, 0)[1], 1e-5)


def halve_the_noise(monkeypatch: Any) -> None:
    """The mechanism draws noise of σ/2."""
    from dataclasses import replace

    import parties.party

    true: Callable[..., Any] = parties.party.release
    monkeypatch.setattr(
        parties.party,
        "release",
        lambda sums, grid, event, *rest: true(sums, grid, replace(event, sigma=event.sigma / 2.0), *rest),
    )


def loud(solver: Any, loss: str = "logistic") -> vfl.Job:
    """A job of ε about 14, μ about 2.7, for an audit."""
    return job(solver, loss, epsilon=14.0, penalty=vfl.L2(1e-3))


def distance(spec: vfl.Job, w: np.ndarray) -> float:
    """Return the largest difference of a coordinate."""
    return float(abs(drive(spec)[1].w - w).max()) if math.isfinite(w.sum()) else math.inf
