"""DP-GCD: the optimum without noise, the sensitivity of its scores, its budget, and sparse models."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model as peers
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from coordinator.rounds import Round
from vfl.errors import PrivacyError, SpecificationError
from vfl.launch.train import resume
from vfl.planning import plan as make_plan
from vfl.planning import problem_of
from vfl.privacy.ledger import FitBudget
from vfl.privacy.spending import rho
from vfl.privacy.zcdp import rho_of
from vfl.queries import Descend, Select
from vfl.solvers.gcd import RULES
from vfl.solvers.releases.curvature import Curvature

N = 160
COLUMNS = ("a0", "a1", "a2", "b0", "b1")
PARTIES = {"bank": ("a0", "a1", "a2"), "telco": ("b0", "b1")}
BOUNDS = dict.fromkeys(COLUMNS, (-1.0, 1.0))
PENALTIES = {
    "none": vfl.penalties.NoPenalty(),
    "l1": vfl.L1(0.02),
    "l2": vfl.L2(0.05),
    "box": vfl.penalties.Box(low=0.0),
    "elastic_net": vfl.ElasticNet(0.1, 0.4),
}
BY_RULE = pytest.mark.parametrize("rule", RULES)


@functools.cache
def table(loss: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.uniform(-0.9, 0.9, (N, len(COLUMNS))) * [1.0, 0.3, 1.0, 0.05, 1.0]  # unequal M_j
    signal = X @ np.array([1.5, -2.0, 0.1, 9.0, 0.0]) + 0.4
    y = signal + 0.3 * rng.normal(size=N)
    label = (signal + rng.logistic(scale=0.5, size=N) > 0).astype(int) if loss == "logistic" else y
    return {c: X[:, j] for j, c in enumerate(COLUMNS)} | {"y": label}


def job(
    loss: str = "logistic", penalty: str = "l1", *, blocks: Any = None, privacy: Any = None, **solver: Any
) -> vfl.Job:
    return vfl.Job(
        partition=vfl.FeaturePartition(PARTIES, label=("telco", "y"), blocks=blocks),
        loss=loss,
        penalty=PENALTIES[penalty],
        bounds=BOUNDS | ({"y": (-10.0, 10.0)} if loss == "squared" else {}),
        privacy=privacy,
        solver=vfl.solvers.GCD(**solver),
    )


def private(epsilon: float = 1.0, **options: Any) -> vfl.Privacy:
    return vfl.Privacy(epsilon=epsilon, delta=1e-6, **{"noise": vfl.SeededNoise(3), **options})


def fit(spec: vfl.Job, watch: Any = None) -> vfl.Result:
    return vfl.train(spec, table(spec.loss), at="inprocess", watch=watch)


@functools.cache
def peer(loss: str, penalty: str) -> np.ndarray:
    """Return scikit-learn's minimiser (columns lie in [−1, 1] already), with the intercept last."""
    kinds = {
        ("squared", "none"): peers.LinearRegression,
        ("squared", "l1"): lambda: peers.Lasso(0.02, tol=1e-14, max_iter=10**6),
        ("squared", "l2"): lambda: peers.Ridge(0.05 * N, solver="cholesky"),
        ("squared", "box"): lambda: peers.LinearRegression(positive=True),
        ("logistic", "none"): lambda: peers.LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10),
        ("logistic", "l1"): lambda: peers.LogisticRegression(
            C=1 / (0.02 * N), l1_ratio=1.0, solver="saga", tol=1e-10, max_iter=10**5
        ),
        ("logistic", "l2"): lambda: peers.LogisticRegression(C=1 / (0.05 * N), solver="newton-cholesky", tol=1e-10),
    }
    X = np.column_stack([table(loss)[c] for c in COLUMNS])
    fitted = kinds[loss, penalty]().fit(X, table(loss)["y"])
    return np.append(np.ravel(fitted.coef_), fitted.intercept_)


def distance(result: vfl.Result, solution: np.ndarray) -> float:
    return float(abs(np.append(result.coef_, result.intercept_) - solution).max())


class TestWithoutNoise:
    @pytest.mark.parametrize(  # every pair of two of the three
        ("loss", "penalty", "rule"),
        [
            (("squared", "logistic")[(k + m) % 2], penalty, rule)
            for k, penalty in enumerate(("none", "l1", "l2"))
            for m, rule in enumerate(RULES)
        ],
    )
    def test_the_optimum_is_scikit_learns(self, loss: str, penalty: str, rule: str) -> None:
        assert distance(fit(job(loss, penalty, rule=rule, rounds=400)), peer(loss, penalty)) < 1e-6

    def test_any_separable_penalty(self) -> None:
        assert distance(fit(job("squared", "box", rounds=300)), peer("squared", "box")) < 1e-6

    def test_explicit_blocks_change_the_order_of_coordinates_only(self) -> None:
        blocks = {"bank": [["a2", "a0"], ["a1"]], "telco": [["b1", "b0"]]}
        assert distance(fit(job("squared", "l1", blocks=blocks, rounds=300)), peer("squared", "l1")) < 1e-6

    @BY_RULE
    def test_every_selection_is_the_best_by_the_rule_as_written(self, rule: str) -> None:
        """Replay the first rounds with scores from the definitions, over the coordinates of both parties."""
        seen: list[object] = []
        fit(job("squared", "l1", rule=rule, rounds=12), seen.append)
        selections = [e for e in seen if isinstance(e, Round) and "Select" in e.kind]
        chosen = [int(event.released[0][0]) for event in selections]
        assert len(chosen) == 12
        assert len(set(chosen)) > 2
        X = np.column_stack([table("squared")[c] for c in COLUMNS])
        X = np.column_stack([X - X.mean(axis=0), np.ones(N)])
        y, λ = table("squared")["y"], np.append(np.full(5, 0.02), 0.0)
        M, w = (X**2).mean(axis=0), np.zeros(6)
        for j in chosen:
            g = X.T @ (X @ w - y) / N
            v = w - g / M
            there = np.sign(v) * np.maximum(abs(v) - λ / M, 0.0)
            if rule == "GS-r":
                scores = np.sqrt(M) * abs(there - w)
            elif rule == "GS-s":
                scores = np.where(w == 0, np.maximum(abs(g) - λ, 0.0), abs(g + λ * np.sign(w))) / np.sqrt(M)
            else:
                scores = -(g * (there - w) + M / 2 * (there - w) ** 2 + λ * (abs(there) - abs(w)))
            assert scores[j] >= scores.max() * (1 - 1e-6)
            w[j] = there[j]

    def test_a_step_shows_parties_residuals_only(self) -> None:
        schedule = (plan := make_plan(job(rounds=2), N)).solver.schedule(plan.problem)
        query, asked = next(schedule), []
        while True:
            try:
                query = schedule.send(tuple(np.ones(size) for size in query.sizes()))
            except StopIteration:
                break
            asked.append(query)
        assert [isinstance(q, Select) for q in asked] == [True, False] * 2
        assert all(not q.recomputes and len(q.ordered()) == 1 for q in asked if isinstance(q, Descend))


class TestSensitivity:
    """Computed scores move by at most `sensitivity` when one record is replaced, at any public w."""

    @settings(max_examples=300, deadline=None)
    @given(data=st.data(), rule=st.sampled_from(RULES), penalty=st.sampled_from(sorted(PENALTIES)))
    def test_a_score_moves_by_no_more(self, data: st.DataObject, rule: str, penalty: str) -> None:
        n = data.draw(st.sampled_from([1, 7, 10_000, 10**9]))
        spec = job(penalty=penalty, rule=rule, clip=data.draw(st.floats(1e-3, 1e3)), rounds=5, privacy=private())
        strength = data.draw(st.sampled_from([1e-6, 0.02, 1.0, 1e3]))
        if penalty not in ("none", "box"):
            spec = replace(spec, penalty=replace(PENALTIES[penalty], strength=strength))
        problem = problem_of(spec, n)
        solver = spec.solver.resolve(problem)
        M = np.array(data.draw(st.lists(st.floats(1e-8, 1e8), min_size=6, max_size=6)))
        w = np.array(data.draw(st.lists(st.floats(0.0, 1e4), min_size=6, max_size=6)))
        select = solver.selection(problem, Curvature(np.zeros(6), M), w, 0.1)
        clip = select.clip
        grids = data.draw(st.integers(1, 2**20))  # a sum near a kink or anywhere, as a share of the largest
        for name, share in select.shares().items():
            own, width = share.coordinates[name][1], share.coordinates[name][0].size
            most = n * clip.sensitivity / 2
            kink = np.clip(n * np.sqrt(M[share.coordinates[name][0].coordinates]) * own, -most, most)
            for u in (kink, np.full(width, most * grids / 2**20)):
                for sign in (1.0, -1.0):
                    moved = np.clip(u + sign * clip.sensitivity, -most, most)
                    change = [
                        abs(a - b)
                        for a, b in zip(
                            next(iter(share.rules.values()))(own, u),
                            next(iter(share.rules.values()))(own, moved),
                            strict=True,
                        )
                    ]
                    assert max(map(Fraction, change)) <= Fraction(next(iter(share.rules.values())).sensitivity)

    @BY_RULE
    @pytest.mark.parametrize("penalty", sorted(PENALTIES))
    def test_it_is_the_lipschitz_constant(self, penalty: str, rule: str) -> None:
        """A record that changes its sign moves the score of every coordinate by the full sensitivity, for any ridge."""
        n = 1000
        spec = job(penalty=penalty, rule=rule, clip=1.0, rounds=5, privacy=private())
        problem = problem_of(spec, n)
        solver, M = spec.solver.resolve(problem), np.geomspace(1e-3, 10.0, 6)
        w = np.full(6, 50.0)
        share = solver.selection(problem, Curvature(np.zeros(6), M), w, 0.1).shares()
        for q, (block, own) in ((q, c) for s in share.values() for q, c in s.coordinates.items()):
            (score,) = share[q].rules.values()
            # Away from kinks. GS-q approaches its constant where the smooth part dominates: at an optimum of the ridge.
            slope = problem.penalty.convexity * own + (0.1 * 0.4 if penalty == "elastic_net" else 0.0)
            slope = slope + (0.02 if penalty == "l1" else 0.0)
            u = n * (-slope / np.sqrt(M[block.coordinates])) * problem.penalised[block.coordinates] + 10.0
            change = score(own, u + 2.0) - score(own, u)
            assert change == pytest.approx(np.full(block.size, 2.0 / n), rel=1e-3)
            assert score.sensitivity >= change.max() * (1 - 1e-9)

    @BY_RULE
    def test_it_is_only_slightly_more_than_two_clips_over_n(self, rule: str) -> None:
        spec = job(rule=rule, clip=2.0, rounds=5, privacy=private())
        problem = problem_of(spec, 20_000)
        known = Curvature(np.zeros(6), np.full(6, 0.1))
        select = spec.solver.resolve(problem).selection(problem, known, np.full(6, 2.0), 0.1)
        assert 1.0 <= next(iter(select.rules.values())).sensitivity / (2 * 2.0 / 20_000) < 1.02

    def test_all_parties_share_it(self) -> None:
        spec = job(clip=2.0, rounds=5, privacy=private())
        problem = problem_of(spec, 100)
        known = Curvature(np.zeros(6), np.geomspace(1e-3, 1e3, 6))
        shares = spec.solver.resolve(problem).selection(problem, known, np.arange(6.0), 0.1).shares()
        assert len({next(iter(share.rules.values())).sensitivity for share in shares.values()}) == 1


class TestBudget:
    @pytest.mark.parametrize("smoothness", ["private", "bounds", dict.fromkeys(COLUMNS, 0.1)])
    @pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
    @pytest.mark.parametrize("rounds", [1, 37, 1000])
    def test_the_plan_uses_its_budget(self, rounds: int, epsilon: float, smoothness: Any) -> None:
        plan = make_plan(job(rounds=rounds, clip=1.0, privacy=private(epsilon, smoothness=smoothness)), 1000)
        spent = sum(rho(event) * count for event, count in plan.releases)
        cap = Fraction(rho_of(epsilon, 1e-6))
        assert 1 - 1e-12 < spent / cap <= 1
        FitBudget(epsilon, 1e-6).reserve(plan.releases, job="digest", run="run")

    def test_selections_and_steps_share_the_budget_as_requested(self) -> None:
        plan = make_plan(job(rounds=10, selection_share=0.3, privacy=private(smoothness="bounds")), 1000)
        selections, steps = (float(rho(event)) * count for event, count in plan.releases)
        assert selections / (selections + steps) == pytest.approx(0.3)

    def test_charges_equal_the_plan(self) -> None:
        spec, seen = job(rounds=9, privacy=private()), []
        result = fit(spec, seen.append)
        charged = [e for event in seen if isinstance(event, Round) for e in event.events]
        plan = make_plan(spec, N)
        assert sorted(map(repr, charged)) == sorted(repr(e) for e, count in plan.releases for _ in range(count))
        assert result.certificate.epsilon <= 1.0
        assert sum(isinstance(event, Round) for event in seen) == plan.messages

    def test_a_share_of_smoothness_that_leaves_nothing_is_refused(self) -> None:
        with pytest.raises(PrivacyError, match="smoothness_share"):
            make_plan(job(privacy=private(smoothness_share=0.99)), 1000)


class TestPublicRules:
    def test_rounds_grow_with_epsilon_and_n(self) -> None:
        def rounds(epsilon: float, n: int) -> int:
            return make_plan(job(privacy=private(epsilon)), n).solver.rounds

        assert 1 == rounds(0.1, 100) < rounds(0.3, 500) < rounds(1.0, 500)

    def test_no_more_rounds_than_two_a_coordinate_with_privacy(self) -> None:
        assert make_plan(job(privacy=private(10.0)), 10**6).solver.rounds == 2 * 6

    def test_the_clip_follows_n_and_where_labels_lie(self) -> None:
        def clip(n: int, bounds: Any) -> float:
            spec = vfl.Job(
                partition=vfl.FeaturePartition(PARTIES, label=("telco", "y")),
                loss="squared", bounds=BOUNDS | {"y": bounds}, privacy=private(), solver=vfl.solvers.GCD(),
            )  # fmt: skip
            return make_plan(spec, n).solver.clip

        assert clip(100, (-6.0, 6.0)) < clip(10**5, (-6.0, 6.0)) == pytest.approx(3.0 * 2.0)
        assert clip(10**5, (0.0, 12.0)) == pytest.approx(3.0 * math.hypot(6.0, 2.0))

    def test_refusals(self) -> None:
        for wrong in (
            {"rule": "GS-x"},
            {"rounds": 0},
            {"clip": -1.0},
            {"step_size": math.inf},
            {"selection_share": 1.0},
        ):
            with pytest.raises(SpecificationError, match="GCD"):
                vfl.solvers.GCD(**wrong)
        with pytest.raises(PrivacyError, match="clip=inf"):
            make_plan(job(clip=math.inf, privacy=private()), 100)

    def test_job_files_know_it(self) -> None:
        from vfl.job.file import decode

        spec = job(rule="GS-q", rounds=7)
        assert decode(spec.to_dict()) == spec


def test_resuming_repeats_the_run_to_the_bit(tmp_path: Any) -> None:
    """The run is cut off between a selection and its step."""
    spec, whole = job(rounds=6, privacy=private()), job(rounds=6, privacy=private())

    def stop(event: object) -> None:
        if isinstance(event, Round) and event.number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.train(spec, table("logistic"), at="inprocess", output=tmp_path / "run", watch=stop)
    again = resume(tmp_path / "run", table("logistic"), at="inprocess")
    assert again.w.tobytes() == fit(whole).w.tobytes()


def test_a_resumed_run_with_true_noise_ends_within_its_budget(tmp_path: Any) -> None:
    """Lost releases are paid for twice, so the budget stops the schedule, at a selection or a step."""
    spec = job(rounds=40, clip=1.0, privacy=private(noise=None))

    def stop(event: object) -> None:
        if isinstance(event, Round) and event.number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.train(spec, table("logistic"), at="inprocess", output=tmp_path / "run", watch=stop)
    seen: list[object] = []
    again = resume(tmp_path / "run", table("logistic"), at="inprocess", watch=seen.append)
    assert np.isfinite(again.w).all()
    assert again.certificate.epsilon <= 1.0
    assert sum(isinstance(event, Round) for event in seen) + 6 <= 2 * 40 + 1


@pytest.mark.parametrize("seeds", [(101,), pytest.param((101, 102, 103), marks=pytest.mark.slow)], ids=len)
def test_sparse_support_is_found_better_than_by_skgd(seeds: tuple[int, ...]) -> None:
    """p = 200, 5 of them active, n = 20,000, ε = 1, one weak L1 for both: F1 of the support, the same noise seeds.

    A weak L1 keeps SkGD from the support: with one ten times as strong, a single pass finds it too. One pass under the
    record cap scores half as much as GCD; its full run scores far less.
    """
    n, p, active = 20_000, 200, 5
    names = [f"x{j}" for j in range(p)]
    scores: dict[str, list[float]] = {"GCD": [], "SkGD": [], "SkGD, one pass": []}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        X, support = rng.uniform(-1, 1, (n, p)), rng.choice(p, active, replace=False)
        margins = X[:, support] @ (rng.choice([-1, 1], active) * rng.uniform(0.2, 0.6, active))
        data = {c: X[:, j] for j, c in enumerate(names)} | {
            "y": (margins > rng.logistic(scale=0.5, size=n)).astype(int)
        }
        for name, solver in (("GCD", vfl.solvers.GCD()), ("SkGD", vfl.SkGD()), ("SkGD, one pass", vfl.SkGD(passes=1))):
            spec = vfl.Job(
                partition=vfl.FeaturePartition({"a": names[:120], "b": names[120:]}, label=("b", "y")),
                penalty=vfl.L1(1e-3),
                bounds=dict.fromkeys(names, (-1.0, 1.0)),
                privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(seed)),
                solver=solver,
            )
            found = set(np.flatnonzero(vfl.train(spec, data, at="inprocess").coef_).tolist())
            scores[name].append(2 * len(found & set(support.tolist())) / (len(found) + active))
    assert min(scores["GCD"]) > 2 * max(scores["SkGD"])
    assert min(scores["GCD"]) > 1.5 * max(scores["SkGD, one pass"])
