"""Covariance of coefficients: against closed forms, against repeated noise, and from a run's folder."""

from __future__ import annotations

import numpy as np
import pytest

import vfl
from tests.benchmarks.coverage import fitted
from tests.inference.setting import NAMES, SLOPES, N, job, table
from vfl.base.losses import loss_of
from vfl.measures.covariance import GROWTH, LEAST, Noisy, basis_of, iterate_covariance, noise_bias, noise_covariance
from vfl.solvers.releases.products import Products, Update


def spd(p, rng):
    root = rng.normal(size=(2 * p, p))
    return root.T @ root


class TestTheRecursion:
    def test_it_is_the_covariance_of_the_averaged_recursion(self):
        """Against the explicit derivative of the mean iterate along every noise, by running the recursion itself."""
        rng = np.random.default_rng(0)
        p, H = 4, spd(4, rng)
        blocks = [slice(0, 1), slice(1, 3), slice(3, 4)]
        updates = [
            Update(
                blocks[k], rng.uniform(0.01, 0.05, blocks[k].stop - blocks[k].start), np.array(0.99), rng.uniform(1, 2)
            )
            for _ in range(6)
            for k in rng.permutation(3)
        ]
        skipped = 5

        def mean_of(noises, start=(0.0,) * p):
            e, total = np.array(start), np.zeros(p)
            for number, (update, ξ) in enumerate(zip(updates, noises, strict=True)):
                S = update.S
                e[S] = update.kept * (e[S] - update.gain * (H[S] @ e + update.sigma * ξ))
                total += e * (number >= skipped)
            return total / (len(updates) - skipped)

        zeros = [np.zeros(u.S.stop - u.S.start) for u in updates]
        V = np.zeros((p, p))
        for k, zero in enumerate(zeros):
            for j in range(zero.size):
                one = [*zeros[:k], np.eye(zero.size)[j], *zeros[k + 1 :]]
                V += np.outer(mean_of(one), mean_of(one))
        found, left = noise_covariance(updates, skipped, H)
        np.testing.assert_allclose(found, V, rtol=1e-10)
        starts = np.array([mean_of(zeros, start) for start in np.eye(p)]).T
        np.testing.assert_allclose(left, starts, rtol=1e-10)

    def test_single_iterates_have_this_covariance_and_bias_under_poisson_loss(self):
        """4,000 runs on the same records, whose column is symmetric in the weights."""
        rng, count, gain, skipped, true = np.random.default_rng(1), 4000, np.array([5e-4]), 30, np.array([0.0, 0.2])
        X = np.array([[-0.4, 1.0], [0.4, 1.0]])  # 500 records of either kind
        y = np.exp(X @ true)
        updates = [Update(slice(j, j + 1), gain, np.array(1.0), 120.0) for _ in range(80) for j in (0, 1)]
        w, means, squares = np.tile(true, (count, 1)), np.zeros((count, 2)), np.zeros(2)
        for number, update in enumerate(updates):
            noise = update.sigma * rng.normal(size=(count, 1))
            w[:, update.S] -= gain * (500 * (np.exp(w @ X.T) - y) @ X[:, update.S] + noise)
            if number >= skipped:
                means += w / (len(updates) - skipped)
                squares += ((w - true) ** 2).mean(axis=0) / (len(updates) - skipped)
        H = 500 * (X * y[:, None]).T @ X
        S = iterate_covariance(updates, skipped, H)
        b, found = noise_bias(S, H, 1.0, 1, 1.0), means.mean(axis=0) - true
        error = means.std(axis=0) / np.sqrt(count)
        assert squares == pytest.approx(np.diag(S), rel=0.1)
        assert found[1] < -5.0 * error[1]
        assert (abs(found - b) < 4.0 * error).all()

    def test_repeated_noise_has_this_covariance(self):
        """Sixty runs on the same records: the whole spread is privacy's."""
        data, solver = table(), vfl.SkGD(passes=12)
        jobs = [job(privacy={"noise": vfl.SeededNoise(seed)}, solver=solver) for seed in range(60)]
        runs = [vfl.train(each, data, at="inprocess").inference for each in jobs]
        spread = np.var([run.estimates for run in runs], axis=0, ddof=1)
        said = np.mean([np.diag(run.noise_covariance) for run in runs], axis=0)
        assert 0.75 < np.mean(spread / said) < 1.3


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_without_cap_and_noise_it_is_the_sandwich(loss):
    """HC0 of statsmodels has this closed form."""
    data = table(loss)
    X, y = np.column_stack([*(data[name] for name in NAMES), np.ones(N)]), data["y"].astype(float)
    w, known = fitted(X, y, loss)
    labels, chosen = (y, loss_of(loss)) if loss == "squared" else (2.0 * y - 1.0, loss_of(loss))
    matrices = []
    for of_curvature in (True, False):
        kept = {"norms": (X**2).sum(axis=1), "column": np.ones(N)}
        t, _ = Products(chosen, np.inf, 1e6, 1e-4, of_curvature)(X @ w, labels, kept)
        matrices.append(Noisy(1e6 * X.T @ (X * t[:, None]), 0.0))
    H, J = matrices
    inverse, spread = np.linalg.inv(H.raised()), J.near(H.raised(), H.size)[0]
    np.testing.assert_allclose(inverse @ spread @ inverse, known, rtol=1e-6)


class TestReleasedMatrices:
    def test_a_clear_matrix_stays(self):
        M = spd(5, np.random.default_rng(0))
        np.testing.assert_allclose(Noisy(M, 1e-9).raised(), M, atol=1e-7)
        np.testing.assert_allclose(Noisy(M, 1e-9).near(np.eye(5), 0.0)[0], M, atol=1e-7)

    def test_directions_that_no_record_determines_change_no_other(self):
        """Two columns add up to a constant: noise in that direction would spread to the columns' difference."""
        rng, rows = np.random.default_rng(0), np.array([[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
        X = rng.normal(size=(1000, 2)) @ np.array([[1.0, -1.0, 0.5], [0.0, 0.0, 1.0]])
        noise = np.diag([3.0, -3.0, 0.0]) + np.outer([1.0, 1.0, 0.0], [1.0, 1.0, 0.0])
        basis = basis_of(rows)
        inverse = np.linalg.inv(Noisy(X.T @ X + 5.0 * noise, 1e-3).within(basis).raised())
        found, known = rows @ basis.T @ inverse @ basis @ rows.T, rows @ np.linalg.pinv(X.T @ X) @ rows.T
        np.testing.assert_allclose(found, known, rtol=0.02)

    def test_noise_hardly_widens_what_it_does_not_hide(self):
        """A known direction among five without curvature, of 10 σ: its variance is right within a fifth."""
        rng, p, sigma = np.random.default_rng(0), 6, 10.0
        true, found = np.diag([100.0, *np.zeros(p - 1)]), []
        for _ in range(200):
            noise = np.tril(rng.normal(size=(p, p)), -1) * sigma / np.sqrt(2.0)
            noisy = Noisy(true + noise + noise.T + sigma * np.diag(rng.normal(size=p)), sigma)
            assert np.linalg.eigvalsh(noisy.raised()).min() > sigma
            found.append(np.linalg.inv(noisy.raised())[0, 0])
        assert 0.95 < 100.0 * np.median(found) < 1.25

    def test_directions_that_are_only_shown_by_favourable_noise_have_covering_errors(self):
        """Curvature of 2.5 σ, shown in 7 % of draws, and noise in the model of standard deviation 1/curvature."""
        rng, true, sigma = np.random.default_rng(0), 25.0, 10.0
        errors, wide = [], []
        for released in true + sigma * rng.normal(size=5000):
            noisy = Noisy(np.array([[released]]), sigma)
            least, plain = noisy.raised(LEAST, clear=np.inf), noisy.raised(lowered=0.0)
            if plain <= GROWTH * least:
                errors.append(1.0 / noisy.raised().item())
                wide.append(1.0 / plain.item())
        held, before = (np.mean(abs(rng.normal(size=len(e)) / true) < 1.96 * np.array(e)) for e in (errors, wide))
        assert 0.03 < len(errors) / 5000 < 0.12
        assert held > 0.9 > 0.85 > before

    def test_a_noisy_spread_of_residuals_is_near_a_multiple_of_the_curvature(self):
        rng, p, sigma = np.random.default_rng(1), 8, 60.0
        H, errors = spd(p, rng) * 20.0, []
        for J in (3.0 * H, 3.0 * H + 600.0 * np.diag(np.arange(p))):
            noise = np.tril(rng.normal(size=(p, p)), -1) * sigma / np.sqrt(2.0)
            released = J + noise + noise.T + sigma * np.diag(rng.normal(size=p))
            found, _ = Noisy(released, sigma).near(H, 0.0)
            errors.append(np.linalg.norm(found - J) / np.linalg.norm(released - J))
        assert errors[0] < 0.6  # a right model
        assert errors[1] < 1.1  # a wrong one


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_standard_errors_of_rare_levels_are_not_too_wide(loss, flag):
    """At 2 % prevalence and little noise: a level of a category, and a number that is 0 or 1."""
    data, n = table(loss, 20_000), 20_000
    code = np.random.default_rng(1).choice(3, n, p=[0.6, 0.38, 0.02])
    more = {"bounds": dict.fromkeys(NAMES, (-4.0, 4.0)) | ({"y": (-8.0, 8.0)} if loss == "squared" else {})}
    if flag:
        data["g"], more["bounds"]["g"] = (code == 2).astype(float), (0.0, 1.0)
    else:
        data["g"], more["columns"] = np.array(["a", "b", "c"])[code], {"g": vfl.Categorical(("a", "b", "c"))}
    parts = vfl.FeaturePartition({"a": [*NAMES[:2], "g"], "b": NAMES[2:]}, label=("b", "y"))
    privacy = {"noise": vfl.SeededNoise(1), "epsilon": 8.0}
    frame = vfl.train(job(loss, partition=parts, privacy=privacy, **more), data, at="inprocess").summary().to_frame()
    columns = [data[name] for name in NAMES] + [code == k for k in ((2,) if flag else (1, 2))] + [np.ones(n)]
    _, known = fitted(np.column_stack(columns).astype(float), data["y"].astype(float), loss)
    rows = [*NAMES, "g"] if flag else [*NAMES, "g=b - g=a", "g=c - g=a"]
    ratios = frame.loc[rows, "standard_error"].to_numpy() / np.sqrt(np.diag(known)[:-1])
    assert (ratios > 0.85).all()
    assert (ratios < 1.5).all()


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
def test_a_run_has_intervals_that_survive_its_folder(loss, tmp_path):
    result = vfl.train(job(loss, privacy={"noise": vfl.SeededNoise(1), "epsilon": 3.0}), table(loss), at="inprocess")
    found = result.inference
    assert found.names == (*NAMES, "(intercept)")
    assert found.estimates.tolist() == list(result.original.values())
    assert (np.diag(found.covariance) > np.diag(found.noise_covariance)).all()
    z = (found.estimates - np.append(SLOPES, 0.3)) / np.sqrt(np.diag(found.covariance))
    assert abs(z).max() < 4.5
    assert vfl.Result.load(result.save(tmp_path / "run")).inference.to_dict() == found.to_dict()


def test_with_little_noise_the_sampling_part_is_the_sandwich():
    data = table(n=20_000)
    data["x1"] = 0.8 * data["x0"] + 0.6 * data["x1"]
    data["y"] = data["y"] + 0.5 * data["x0"] * data["x3"]
    spec = job(privacy={"noise": vfl.SeededNoise(0), "epsilon": 40.0})
    found = vfl.train(spec, data, at="inprocess").inference
    _, known = fitted(np.column_stack([*(data[name] for name in NAMES), np.ones(20_000)]), data["y"], "squared")
    sampling, unit = found.covariance - found.noise_covariance, np.sqrt(np.diag(known))
    np.testing.assert_allclose(sampling / np.outer(unit, unit), known / np.outer(unit, unit), atol=0.15)


def test_units_of_columns_do_not_change_z_scores():
    data, wide = table(), table()
    wide["x1"] = 1000.0 * wide["x1"] + 5000.0
    bounds = dict.fromkeys(NAMES, (-4.0, 4.0)) | {"y": (-8.0, 8.0)}
    noise = {"noise": vfl.SeededNoise(3)}
    one = vfl.train(job(privacy=noise), data, at="inprocess").inference
    two = vfl.train(job(privacy=noise, bounds=bounds | {"x1": (1000.0, 9000.0)}), wide, at="inprocess").inference
    deviations = [np.sqrt(np.diag(each.covariance)) for each in (one, two)]
    np.testing.assert_allclose(deviations[1][1] * 1000.0, deviations[0][1], rtol=1e-6)
    # The intercept moves to x1 = 0, five spreads of 1000 away.
    C = np.append(np.zeros(5), 1.0) - np.eye(6)[1] * 5.0
    np.testing.assert_allclose(deviations[1][5], np.sqrt(C @ one.covariance @ C), rtol=1e-6)
