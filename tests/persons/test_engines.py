"""Runs on Ray with vectors that processes lend one another: of rows for the label party, and folded ones for the others."""

from __future__ import annotations

from typing import Any

import numpy as np

import vfl
from tests.persons.setting import job, tables


def test_vectors_in_shared_memory_on_ray_are_those_of_one_process(local_ray: Any) -> None:
    data, _ = tables(np.random.default_rng(0).integers(1, 7, 15_000))
    asked = job(vfl.solvers.GD(passes=4), privacy=vfl.Privacy(epsilon=3.0, noise=vfl.SeededNoise(1)))
    there = vfl.train(asked, data, at=vfl.Ray(num_cpus=1))
    assert there.coef_.tobytes() == vfl.train(asked, data, at=vfl.InProcess(num_cpus=1)).coef_.tobytes()
