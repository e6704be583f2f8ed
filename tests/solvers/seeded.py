"""Seeded runs of SkGD and CD, whose coefficients are recorded in seeded.json.

`python -m tests.solvers.seeded` prints a SHA-256 of each; with `--record` it writes the coefficients anew. Two commits of
one machine print the same digests unless a run has changed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import vfl
from coordinator.coordinator import Coordinator
from parties.loading import load
from vfl.errors import PartyLost
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.base.types import Vector

RECORDED = Path(__file__).with_name("seeded.json")
N = 600
PARTIES = {"bank": ["a0", "a1", "a2", "a3"], "telco": ["b0", "b1"], "shop": ["c0", "c1", "c2"]}
COLUMNS = [c for columns in PARTIES.values() for c in columns]
PARTITION = vfl.FeaturePartition(PARTIES, label=("telco", "y"))
GROUPS = vfl.FeaturePartition(
    PARTIES,
    label=("telco", "y"),
    blocks={"bank": [["a0", "a2"], ["a1", "a3"]], "telco": [["b0", "b1"]], "shop": [["c0"], ["c1", "c2"]]},
)


@functools.cache
def table(loss: str) -> dict[str, np.ndarray]:
    """Columns of three parties, some correlated, one sparse, one far from zero."""
    rng = np.random.default_rng(17)
    shared = rng.uniform(-1, 1, N)
    X = np.column_stack([0.4 * shared + 0.6 * rng.uniform(-1, 1, N) for _ in COLUMNS])
    X[:, 2] *= rng.random(N) < 0.2
    X[:, 6] = 0.6 + 0.4 * X[:, 6]
    signal = X @ np.array([1.0, -2.0, 0.5, 0.0, -1.0, 2.0, 0.3, 0.0, 1.0]) - 0.4
    v = signal + rng.logistic(scale=0.4, size=N)
    return dict(zip(COLUMNS, X.T, strict=True)) | {"y": np.clip(v, -4, 4) if loss == "squared" else (v > 0).astype(int)}


def job(solver: Any, loss: str = "logistic", *, private: bool = True, **changes: Any) -> vfl.Job:
    """Return a job of `solver`, with seeded noise where it is private."""
    given: dict[str, Any] = {
        "partition": PARTITION,
        "loss": loss,
        "bounds": dict.fromkeys(COLUMNS, (-1.0, 1.0)) | ({"y": (-4.0, 4.0)} if loss == "squared" else {}),
        "penalty": vfl.L2(1e-2),
        "privacy": vfl.Privacy(epsilon=3.0, delta=1e-6, noise=vfl.SeededNoise(5)) if private else None,
        "solver": solver,
    }
    return vfl.Job(**given | changes)


class WithoutShop(InProcessTransport):
    """Loses the party 'shop' for good at its third query."""

    left = 3

    def ask(self, shares: Any, records: Any, key: Any) -> Any:
        """Answer as the parties do before the loss."""
        self.left -= "shop" in shares
        if "shop" in shares and self.left < 1:
            raise PartyLost("'shop' died", "shop")
        return super().ask(shares, records, key)


def fitted(spec: vfl.Job) -> Vector:
    """Return w of an in-process run."""
    return vfl.train(spec, table(spec.loss), at="inprocess").w


def without_shop(spec: vfl.Job) -> Vector:
    """Return w of a run that continues without a lost party."""
    sources = sources_of(spec, table(spec.loss)).items()
    transport = WithoutShop({name: load(spec.for_party(name), source) for name, source in sources})
    *_, outcome = Coordinator(transport, faults=Faults(on_party_lost="skip", wait_timeout_s=0.1)).stream(
        spec, None, None
    )
    return np.asarray(outcome.w)


def cases() -> dict[str, Callable[[], Vector]]:
    """Return {name: run}."""

    def run(*given: Any, **options: Any) -> Callable[[], Vector]:
        return lambda: fitted(job(*given, **options))

    SkGD, CD = vfl.SkGD, vfl.solvers.CD
    return {
        "defaults, logistic": run(SkGD()),
        "defaults, squared": run(SkGD(), "squared"),
        "coordinate clip, logistic": run(SkGD(clip="coordinate")),
        "coordinate clip, squared": run(SkGD(clip="coordinate"), "squared"),
        "record cap, blocks": run(
            SkGD(clip="record", passes=6, block_size=2, details=vfl.solvers.Details(message="block", record_clip=0.5))
        ),
        "record cap, isotropic": run(
            SkGD(clip="record", passes=6, details=vfl.solvers.Details(noise_geometry="isotropic"))
        ),
        "CD": run(CD()),
        "CD, uniform": run(CD(sampling="uniform", passes=5)),
        "cyclic": run(SkGD(sampling="cyclic", passes=6)),
        "uniform, blocks": run(SkGD(sampling="uniform", passes=6, block_size=2)),
        "importance": run(SkGD(sampling="importance", passes=6)),
        "nice": run(SkGD(sampling="nice", details=vfl.solvers.Details(tau=3), passes=6, block_size=2)),
        "full": run(SkGD(sampling="full", passes=6, block_size=3)),
        "parallel": run(SkGD(details=vfl.solvers.Details(parallel=3), passes=6)),
        "parallel, rounds that cut passes": run(
            SkGD(details=vfl.solvers.Details(parallel=2, outer_rounds=3, inner_rounds=7, iterate="tail"))
        ),
        "consecutive blocks": run(
            SkGD(details=vfl.solvers.Details(message="consecutive"), passes=6, block_size=2), "squared"
        ),
        "one block per message": run(SkGD(details=vfl.solvers.Details(message="block", iterate="average"), passes=6)),
        "average": run(SkGD(passes=6, details=vfl.solvers.Details(outer_rounds=3, iterate="average"))),
        "last": run(SkGD(passes=6, details=vfl.solvers.Details(iterate="last")), "squared"),
        "isotropic": run(SkGD(passes=6, block_size=3, details=vfl.solvers.Details(noise_geometry="isotropic"))),
        "bounds": run(SkGD(passes=6, clip="bounds")),
        "a clip": run(SkGD(passes=6, clip=0.3, block_size=4), "squared"),
        "no intercept": run(SkGD(passes=6), "squared", intercept=False),
        "smoothness from bounds": run(
            SkGD(passes=6), privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(2), smoothness="bounds")
        ),
        "another loss": run(SkGD(passes=4), "smoothed_hinge"),
        "L1": run(SkGD(passes=6), penalty=vfl.L1(0.02)),
        "box": run(SkGD(passes=6), penalty=vfl.penalties.Box(-0.5, 0.5)),
        "group LASSO": run(SkGD(passes=6), "squared", penalty=vfl.penalties.GroupLasso(0.02), partition=GROUPS),
        "float32": run(SkGD(passes=4), precision="float32"),
        "sparse": run(
            SkGD(passes=6, block_size=2), partition=PARTITION.changed(sparse=["bank"]), penalty=vfl.ElasticNet(1e-3)
        ),
        "held out": run(SkGD(passes=4), evaluation=vfl.Evaluation(holdout=0.25)),
        "no privacy, tol": run(SkGD(details=vfl.solvers.Details(tol=1e-6)), private=False),
        "no privacy, parallel, tol": run(
            SkGD(details=vfl.solvers.Details(parallel=3, tol=1e-7)), "squared", private=False
        ),
        "a lost party, logistic": lambda: without_shop(job(SkGD(passes=20))),
        "a lost party, parallel": lambda: without_shop(job(SkGD(passes=6, details=vfl.solvers.Details(parallel=2)))),
        "a lost party, no privacy": lambda: without_shop(
            job(SkGD(passes=20, details=vfl.solvers.Details(iterate="average")), private=False)
        ),
    }


def main() -> None:
    """Print the digests; with --record write the coefficients."""
    found = {name: run() for name, run in cases().items()}
    for name, w in found.items():
        print(f"{hashlib.sha256(w.tobytes()).hexdigest()}  {name}")
    if "--record" in sys.argv[1:]:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(w.tolist())}" for name, w in found.items())
        RECORDED.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
