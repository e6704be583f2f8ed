"""Defaults: public, monotone in public facts, overridden by the user's options, and better than naive choices."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest

import vfl
from vfl.planning import plan, problem_of
from vfl.privacy.gaussian_dp import mu_of
from vfl.solvers.rules import defaults

EPSILONS = (1e-3, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 50.0)
SIZES = (10, 100, 1_000, 30_000, 1_000_000, 10**8)
WIDTHS = (1, 2, 8, 30, 100, 1_000)


def job(
    loss="logistic", *, p=8, epsilon=1.0, label=(0.0, 5.0), intercept=True, solver=None, bound=(-1.0, 1.0), **options
):
    names = [f"x{j}" for j in range(p)]
    bounds = dict.fromkeys(names, bound) | ({"y": label} if loss == "squared" else {})
    return vfl.Job(
        partition=vfl.FeaturePartition({"a": names}, label=("a", "y")),
        loss=loss,
        bounds=bounds,
        intercept=intercept,
        **options,
        solver=solver or vfl.SkGD(),
        privacy=None if epsilon is None else vfl.Privacy(epsilon=epsilon, delta=1e-9),
    )


def problem(n=30_000, **options):
    return problem_of(job(**options), n)


SHAPES = pytest.mark.parametrize(
    ("loss", "intercept"), [("logistic", True), ("logistic", False), ("squared", True), ("squared", False)]
)


@SHAPES
@pytest.mark.parametrize("rule", [defaults.clip, defaults.step_size])
def test_less_noise_never_means_a_smaller_clip_or_step(rule, loss, intercept):
    at = {"loss": loss, "intercept": intercept}
    along = {
        "epsilon": [rule(problem(epsilon=e, **at)) for e in EPSILONS],
        "n": [rule(problem(n=n, **at)) for n in SIZES],
        "p": [rule(problem(p=p, **at)) for p in reversed(WIDTHS)],
    }
    for axis, values in along.items():
        assert values == sorted(values), axis
    if not (loss == "squared" and not intercept and rule is defaults.clip):  # the cap must let labels pass here
        assert all(values[0] < values[-1] for values in along.values())


@SHAPES
def test_every_choice_is_usable_at_the_edges(loss, intercept):
    for epsilon in (EPSILONS[0], EPSILONS[-1]):
        for n in (1, SIZES[-1]):
            for p in (WIDTHS[0], WIDTHS[-1]):
                solver = vfl.SkGD(clip="coordinate")
                made = plan(job(loss, p=p, epsilon=epsilon, intercept=intercept, solver=solver), n)
                assert 0 < made.solver.clip < math.inf
                assert 0 < made.solver.step_size <= 2  # beyond 2/M_j a quadratic diverges
                assert made.epsilon <= epsilon


def test_the_clip_follows_the_unit_of_the_label():
    one, thousand = (defaults.clip(problem(loss="squared", label=(0.0, width))) for width in (5.0, 5e3))
    assert thousand == pytest.approx(1e3 * one)
    shifted = defaults.clip(problem(loss="squared", label=(100.0, 105.0)))
    assert shifted == pytest.approx(one)


def test_rules_depend_on_the_public_problem_only():
    tree = ast.parse(inspect.getsource(defaults))
    imported = {
        alias.name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    }
    assert imported == {"annotations", "math", "TYPE_CHECKING"}  # no random numbers, no files, no arrays
    for rule in (defaults.clip, defaults.block_size, defaults.step_size, defaults.iterate, defaults.passes):
        assert list(inspect.signature(rule).parameters) == ["problem"]
    read = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "problem"}
    assert read <= {f.name for f in fields(problem())} | {"private", "centred"}


@pytest.mark.parametrize(
    ("loss", "options", "passes"),
    [
        ("logistic", {"epsilon": 10.0}, 100),
        ("logistic", {"epsilon": 0.01}, 50),  # little signal: small steps, stopped early
        ("squared", {"epsilon": 1.0}, 200),  # blocks take short steps
        ("squared", {"epsilon": 0.01}, 100),
        ("squared", {"epsilon": 1.0, "intercept": False}, 50),
        ("logistic", {"epsilon": 1.0, "intercept": False, "bound": (0.0, 1.0)}, 200),  # nearly parallel columns
        ("logistic", {"epsilon": 0.1, "intercept": False, "bound": (0.0, 1.0)}, 100),
        ("squared", {"epsilon": 1.0, "intercept": False, "bound": (-3.0, -1.0)}, 200),
        ("logistic", {"epsilon": 10.0, "bound": (0.0, 1.0), "scaling": "none"}, 100),  # centred by the intercept
        ("logistic", {"epsilon": None}, 1000),
    ],
)
def test_passes_follow_noise_and_collinearity(loss, options, passes):
    assert defaults.passes(problem(loss=loss, **options)) == passes


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_nearly_parallel_columns_are_clipped_lower(loss):
    def clip(epsilon, bound):
        return defaults.clip(problem(loss=loss, epsilon=epsilon, intercept=False, bound=bound))

    assert clip(10.0, (0.0, 1.0)) == pytest.approx(0.7 * clip(10.0, (-1.0, 1.0)))
    along = [clip(epsilon, (0.0, 1.0)) for epsilon in np.geomspace(0.01, 10.0, 50)]
    assert all(less <= more * (1 + 1e-12) for less, more in itertools.pairwise(along))


def test_a_cap_for_whole_labels_is_lowered_under_much_noise():
    """1,000 columns of 1,000 records without an intercept: a cap of 2.5 typical residuals left 89 times F*."""
    much, little = (problem(1_000, loss="squared", intercept=False, p=p) for p in (1_000, 2))
    assert defaults.clip(much) < defaults.clip(little) / 100


def test_only_the_size_of_the_budget_matters_not_its_notation():
    given = problem(epsilon=1.0)
    same = replace(given, epsilon=None, delta=None)
    assert given.mu == mu_of(1.0, 1e-9)
    assert defaults.clip(same) == defaults.clip(given)
    assert defaults.step_size(same) == defaults.step_size(given)


def test_given_options_are_kept():
    given = vfl.SkGD(block_size=3, passes=7, clip=0.25, step_size=0.125, details=vfl.solvers.Details(iterate="last"))
    resolved = given.resolve(problem())
    assert (resolved.block_size, resolved.clip, resolved.step_size, resolved.iterate) == (3, 0.25, 0.125, "last")
    assert resolved.outer_rounds * resolved.inner_rounds == 7 * 3  # 9 coordinates in blocks of 3


def test_without_privacy_nothing_is_clipped_or_shortened():
    resolved = vfl.SkGD().resolve(problem(epsilon=None))
    assert (resolved.clip, resolved.step_size, resolved.iterate) == (math.inf, 1.0, "last")


@pytest.mark.parametrize("passes", [1, 7, 10, 13, 50, 97, 300])
def test_outer_rounds_cut_the_passes_evenly(passes):
    outer = defaults.outer_rounds(passes)
    assert passes % outer == 0
    assert passes // outer <= defaults.REBUILD_EVERY


@pytest.mark.parametrize("epsilon", [1.0, None])
def test_the_plan_explains_the_choices(epsilon):
    made = plan(job(epsilon=epsilon, solver=vfl.SkGD(clip="coordinate")), 30_000)
    said = "\n".join(made.solver.explain(made.problem))
    for value in (
        f"κ = {made.solver.clip:.3g}",
        f"γ = {made.solver.step_size:.3g}",
        f"iterate = {made.solver.iterate}",
    ):
        assert value in said


def test_untuned_beats_naive_choices():
    """The rules against full steps, a cap of three typical gradients and the last of ten passes."""
    rng = np.random.default_rng(5)
    n, names = 3_000, [f"x{j}" for j in range(6)]
    X = np.clip(rng.normal(size=(n, 6)) / 4, -1, 1)
    signal = X @ np.array([6.0, -4.0, 3.0, 0.0, 2.0, -3.0])
    y = (rng.random(n) < 1 / (1 + np.exp(-signal))).astype(float)
    table = dict(zip(names, X.T, strict=True)) | {"y": y}
    partition = vfl.FeaturePartition({"a": names[:3], "b": names[3:]}, label=("b", "y"))
    base = vfl.Job(partition=partition, bounds=dict.fromkeys(names, (-1.0, 1.0)), penalty=vfl.L2(1e-3), privacy=None)

    def value(**options):
        result = vfl.train(replace(base, **options), table, at="inprocess")
        margins = X @ result.coef_ + result.intercept_
        return problem_of(base, n).value(result.w, margins, 2 * y - 1)

    best = value()
    naive = vfl.SkGD(block_size=1, clip=3.0, passes=10, step_size=1.0, details=vfl.solvers.Details(iterate="last"))

    def loss(solver):
        privacies = [vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(seed)) for seed in range(4)]
        return np.mean([value(privacy=privacy, solver=solver) - best for privacy in privacies])

    assert loss(vfl.SkGD()) < loss(naive) / 2
