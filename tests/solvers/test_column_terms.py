"""Smoothness and shape of curves: terms that columns add to the objective."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import vfl
from coordinator.rounds import Round
from vfl.errors import SpecificationError

KNOTS = (0.2, 0.4, 0.6, 0.8)


def frame(n=2000):
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"x": rng.uniform(0, 1, n), "z": rng.uniform(0, 1, n)})
    margin = 3 * np.sin(5 * table["x"]) + 2 * table["z"] - 2
    return table.assign(y=(rng.random(n) < 1 / (1 + np.exp(-margin))).astype(int))


def job(curve, epsilon=None, **changes):
    noise = vfl.SeededNoise(1)
    given = {
        "solver": vfl.SkGD(details=vfl.solvers.Details(tol=1e-11)),
        "loss": "logistic",
        "penalty": vfl.L2(1e-3),
    } | changes
    if epsilon is not None:
        given["solver"] = changes.get("solver", vfl.SkGD())
    return vfl.Job(
        partition=vfl.FeaturePartition({"a": ["x"], "b": ["z"]}, label=("b", "y")),
        columns={"x": curve, "z": vfl.Numeric((0, 1))},
        bounds={"x": (0, 1)},
        privacy=None if epsilon is None else vfl.Privacy(epsilon=epsilon, noise=noise),
        **given,
    )


def slopes(result):
    curve = result.curves()["x"]
    return np.diff(curve.value) / np.diff(curve.x)


def trained(one):
    return vfl.train(one, frame(), at="inprocess")


@pytest.mark.parametrize(
    "options",
    [{"smooth": 0.02}, {"shape": "increasing"}, {"shape": "decreasing"}, {"shape": "increasing", "smooth": 0.5}],
)
@pytest.mark.parametrize("block_size", [1, 3])
def test_without_privacy_the_model_minimises_the_objective_with_its_terms(options, block_size):
    one = job(
        vfl.Curve(knots=KNOTS, **options),
        solver=vfl.SkGD(details=vfl.solvers.Details(tol=1e-12), block_size=block_size, passes=1500),
    )
    result, table = trained(one), frame()
    curve = one.schema["x"]
    made = np.column_stack([*curve.made(table["x"].to_numpy()), table["z"].to_numpy()])
    scaling = one.scaling_of(one.partition.features)
    X, y = (made - scaling.shift) / scaling.width, table["y"].to_numpy()

    def objective(v):
        w, b = v[:-1], v[-1]
        m = X @ w + b
        line = w[:5] if options.get("shape") else np.array([0, *w[1:5], 0])
        bends = np.diff(line, n=1 if options.get("shape") else 2)
        smooth = options.get("smooth", 0.0) / 2 * bends @ bends
        return np.mean(np.logaddexp(0, m) - y * m) + 5e-4 * w @ w + smooth

    side = {"increasing": (0, None), "decreasing": (None, 0)}.get(options.get("shape"), (None, None))
    best = minimize(objective, np.zeros(7), method="L-BFGS-B", bounds=[side] * 5 + [(None, None)] * 2, tol=1e-14)
    by_name = dict(zip(result.coordinates, result.w, strict=True))
    found = np.array([*(by_name[name] for name in (*curve.own("x"), "z")), by_name["(intercept)"]])
    assert objective(found) <= best.fun + 1e-7
    assert found == pytest.approx(best.x, abs=2e-2)


def test_a_strong_smoothness_leaves_a_line():
    result = trained(job(vfl.Curve(knots=KNOTS, smooth=1e4)))
    assert np.ptp(slopes(result)) < 1e-3
    assert np.ptp(slopes(trained(job(vfl.Curve(knots=KNOTS))))) > 1.0


@pytest.mark.parametrize(
    ("options", "knots"),
    [({}, None), ({"message": "block"}, KNOTS), ({"parallel": 2}, KNOTS), ({"iterate": "last"}, None)],
)
def test_a_shape_holds_under_noise(options, knots):
    found = []
    for shape, sign in (("increasing", 1), ("decreasing", -1)):
        one = job(vfl.Curve(knots=knots, shape=shape), epsilon=1.0, solver=vfl.SkGD().changed(**options))
        found.append(trained(one).curves()["x"].value)
        assert (sign * np.diff(found[-1]) >= -1e-12).all()
    assert abs(np.array(found[0])).max() + abs(np.array(found[1])).max() > 0


def test_ray_trains_the_same_model(parties_on_ray):
    one = job(vfl.Curve(knots=KNOTS, shape="increasing", smooth=0.1), epsilon=1.0)
    assert np.array_equal(trained(one).w, parties_on_ray.train(one, frame()).w)


@pytest.mark.parametrize(
    "changes",
    [
        {"solver": vfl.solvers.GD()},
        {"solver": vfl.solvers.GCD()},
        {"solver": vfl.solvers.OutputPerturbation()},
        {"trust": "secure"},
        {"loss": "multinomial", "classes": ("a", "b", "c")},
    ],
)
def test_a_job_that_cannot_have_them_is_refused_with_the_reason(changes):
    with pytest.raises(SpecificationError, match="'x' has a smoothness or a shape"):
        vfl.plan(job(vfl.Curve(knots=KNOTS, smooth=0.1), epsilon=1.0, **changes), 2000)


@pytest.mark.parametrize("options", [{"smooth": -1.0}, {"smooth": np.nan}, {"smooth": "much"}, {"shape": "rising"}])
def test_bad_options_are_refused(options):
    with pytest.raises(SpecificationError):
        vfl.Curve(**options)


def test_an_interrupted_run_with_terms_resumes_and_is_verified(tmp_path):
    one = job(vfl.Curve(shape="increasing", smooth=0.01), epsilon=1.0)
    whole = trained(one)

    def interrupt(event):
        if isinstance(event, Round) and event.number == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.train(one, frame(), at="inprocess", output=tmp_path / "run", watch=interrupt)
    again = vfl.resume(tmp_path / "run", frame(), at="inprocess")
    assert np.array_equal(again.w, whole.w)
    assert vfl.Result.load(tmp_path / "run").verify().ok
