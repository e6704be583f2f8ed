"""Peers of method: with hardly any noise they reach the optimum, and with less budget they do worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vfl
from tests.benchmarks import methods, problems
from tests.benchmarks.results import Result, Settings

SETTINGS = {
    methods.descent: {"cap": 8.0, "steps": 600, "step_size": 1.0},
    methods.whitened: {"cap": 8.0, "share": 0.3, "steps": 60, "step_size": 0.5, "lift": 0.3},
    methods.perturbed: {"cap": 8.0, "share": 0.4},
    methods.adassp: {"cap": 3.0, "label_cap": 5.0, "lift": 0.0},
}
GRIDS = {
    "noisy GD": methods.GD_GRID,
    "GD, whitened": methods.WHITE_GRID,
    "objective perturbation": methods.PERTURBATION_GRID,
    "AdaSSP": methods.ADASSP_GRID,
}


def case(loss, epsilon, n=4_000):
    made = problems.synthetic("small", 1.0, loss=loss, n=n, p=4)
    return replace(made, job=replace(made.job, privacy=vfl.Privacy(epsilon=epsilon)))


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize(
    ("run", "loss"),
    [(methods.descent, "logistic"), (methods.descent, "squared"), (methods.whitened, "logistic"),
     (methods.perturbed, "logistic"), (methods.adassp, "squared")],
)  # fmt: skip
def test_a_peer_reaches_the_optimum_when_noise_is_small(run, loss, released):
    loud, quiet = (
        float(
            np.mean(
                [
                    run(methods.prepared(case(loss, ε), seed, released=released), seed, **SETTINGS[run])
                    for seed in (1, 2)
                ]
            )
        )
        for ε in (0.3, 500.0)
    )
    assert quiet < 2e-3
    assert quiet < loud


def test_the_search_measures_its_choice_with_other_seeds():
    peer = methods.Peer(
        "one", lambda at, seed, scale: scale + (seed in methods.SEEDS), {"scale": (3.0, 1.0)}, released=False
    )
    errors, chosen = peer.best(case("logistic", 1.0, n=200), (1, 2))
    assert (errors, chosen) == ([1.0, 1.0], {"scale": 1.0})


def test_without_data_the_real_problems_are_named_and_left_out():
    absent = {task.name for task in methods.tasks(Settings()) if task.absent}
    variants = {f"{name} {shown}" for name in ("California", "Electricity") for shown in methods.VARIANTS}
    assert absent == {"adult", "credit"} | variants


def test_every_task_has_recorded_settings_for_each_of_its_peers(tmp_path):
    known = methods.recorded()
    names = [name for name in methods.cases_of(Settings(data=tmp_path)) for _ in methods.EPSILONS]
    assert list(known) == [
        f"{name}, ε={ε:g}" for name, ε in zip(names, methods.EPSILONS * (len(names) // 3), strict=True)
    ]
    for task, settings in known.items():
        assert "noisy GD, released scales" in settings, task
        for name, chosen in settings.items():
            grid = next(g for title, g in GRIDS.items() if name.startswith(title))
            assert set(chosen) - {"cap"} == set(grid) - {"cap"}, (task, name)


def test_the_page_gets_a_line_per_problem_and_budget_with_late_ratios_in_bold(tmp_path):
    about = {"part": "methods", "measure": "relative error", "tuned": "default"}
    rows = [
        Result(case=case, arm=arm, values=values, at={"epsilon": ε}, ours=arm == "vfl SkGD", beside={"start": 0.5}, **about)
        for case, ε, arm, values in (
            ("one", 0.1, "noisy GD", (0.2, 0.2)), ("one", 0.1, "AdaSSP", (0.3, 0.3)), ("one", 0.1, "vfl SkGD", (0.28, 0.28)),
            ("one", 1.0, "noisy GD", (0.002, 0.004)), ("one", 1.0, "vfl SkGD", (0.0036, 0.0036)),
        )
    ]  # fmt: skip
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table of methods -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    methods.fill(page, rows)
    text = page.read_text(encoding="utf-8")
    assert "| one | 0.1 | 0.5 | 0.2 ± 0.0e0 | noisy GD | 0.28 ± 0.0e0 | 1.40 |\n" in text
    assert "| one | 1 | 0.5 | 3.0e-3 ± 1.4e-3 | noisy GD | 3.6e-3 ± 0.0e0 | **1.20** |\n" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")


def test_joint_steps_are_measured_beside_the_rules_passes(tmp_path):
    made = [
        task for task in methods.tasks(Settings(quick=True, runs=2)) if task.name.startswith("joint steps, squared")
    ]
    rule, joint = made[0].run()
    assert joint.beside["messages"] <= 81 < rule.beside["messages"]
    page = tmp_path / "page.md"
    page.write_text("<!-- table of joint steps -->\nold\n<!-- end -->\n")
    methods.fill(page, [rule, joint])
    assert f"| {rule.case} | 10 | {rule.beside['messages']:g} → {joint.beside['messages']:g} |" in page.read_text()
