"""Peers of method: with hardly any noise they reach the optimum, and with less budget they do worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vfl
from tests.benchmarks import methods, problems
from tests.benchmarks.results import Settings

SETTINGS = {
    methods.descent: {"cap": 8.0, "steps": 600, "step_size": 1.0},
    methods.whitened: {"cap": 8.0, "share": 0.3, "steps": 60, "step_size": 0.5, "lift": 0.3},
    methods.perturbed: {"cap": 8.0, "share": 0.4},
    methods.adassp: {"cap": 3.0, "label_cap": 5.0, "lift": 0.0},
}


def case(loss, epsilon, n=4_000):
    made = problems.synthetic("small", 1.0, loss=loss, n=n, p=4)
    return replace(made, job=replace(made.job, privacy=vfl.Privacy(epsilon=epsilon)))


@pytest.mark.parametrize("bought", [False, True])
@pytest.mark.parametrize(
    ("run", "loss"),
    [(methods.descent, "logistic"), (methods.descent, "squared"), (methods.whitened, "logistic"),
     (methods.perturbed, "logistic"), (methods.adassp, "squared")],
)  # fmt: skip
def test_a_peer_reaches_the_optimum_when_noise_is_small(run, loss, bought):
    loud, quiet = (
        float(
            np.mean(
                [run(methods.prepared(case(loss, ε), seed, bought=bought), seed, **SETTINGS[run]) for seed in (1, 2)]
            )
        )
        for ε in (0.3, 500.0)
    )
    assert quiet < 2e-3
    assert quiet < loud


def test_the_search_measures_its_choice_with_other_seeds():
    peer = methods.Peer(
        "one", lambda at, seed, scale: scale + (seed in methods.SEEDS), {"scale": (3.0, 1.0)}, bought=False
    )
    errors, chosen = peer.best(case("logistic", 1.0, n=200), (1, 2))
    assert (errors, chosen) == ([1.0, 1.0], {"scale": 1.0})


def test_without_data_the_real_problems_are_named_and_left_out():
    absent = {task.name for task in methods.tasks(Settings()) if task.absent}
    assert absent == {"adult", "credit", "California"}
