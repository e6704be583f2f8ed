"""Exposure and weights across organisations: both travel with the labels, whose owner measures with the exposure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import vfl
from tests.coordinator.organisations import federation
from vfl.launch.sources import sources_of

if TYPE_CHECKING:
    from pathlib import Path

N = 300


def test_training_and_measures_agree_with_a_run_in_process(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = {name: rng.uniform(-1, 1, N) for name in "abc"} | {"years": rng.uniform(0.1, 1.0, N)}
    table["s"] = rng.uniform(0.0, 2.0, N)
    table["y"] = rng.poisson(table["years"] * np.exp(table["a"])).astype(float)
    spec = vfl.Job(
        partition=vfl.FeaturePartition(
            {"bank": ["a", "b"], "telco": ["c"]}, ("telco", "y"), exposure="years", weight="s"
        ),
        bounds={"*": (-1, 1), "y": (0, 10), "years": (0.05, 1.0), "s": (0, 2)},
        loss="poisson",
        privacy=vfl.Privacy(epsilon=5.0, noise=vfl.SeededNoise(3)),
        solver=vfl.SkGD(passes=3),
        evaluation=vfl.Evaluation(holdout=0.3),
    )
    here = vfl.train(spec, table, at="inprocess")
    with federation(tmp_path) as joined:
        for name, source in sources_of(spec, table).items():
            joined.start(name, source)
        there = vfl.train(spec, at=joined.place)
        measured = vfl.evaluate(there, at=joined.place)
    assert there.coef_.tobytes() == here.coef_.tobytes()
    assert str(there.findings["held out"]) == str(here.findings["held out"])
    assert str(measured.measures["mae"]) == str(vfl.evaluate(here, table).measures["mae"])
