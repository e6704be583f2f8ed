"""Output perturbation: sensitivity of the minimiser, its noise, the minimiser itself, and refusals."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import sklearn.linear_model as peers
from scipy.special import ndtri
from scipy.stats import beta

import vfl
from coordinator.rounds import Round
from vfl.base.losses import Huber
from vfl.errors import PrivacyError, SpecificationError
from vfl.launch.run.verification import verify_run
from vfl.planning import plan, problem_of
from vfl.privacy.gaussian_dp import mu_of
from vfl.privacy.geometry import Clip
from vfl.solvers import output_perturbation

if TYPE_CHECKING:
    from pathlib import Path

    from tests.coordinator.shared_parties import SharedParties

N = 200
COLUMNS = ("a0", "a1", "b0")
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1"], "telco": ["b0"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(COLUMNS, (-1.0, 1.0))
LAMBDA = 0.1


@functools.cache
def table(n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.uniform(-1.0, 1.0, (n, 3))
    y = (X @ np.array([2.0, -1.0, 0.5]) + 0.3 + rng.logistic(size=n) > 0).astype(int)
    return {c: X[:, j] for j, c in enumerate(COLUMNS)} | {"y": y}


def job(**options: object) -> vfl.Job:
    given = {
        "penalty": vfl.L2(LAMBDA),
        "privacy": None,
        "bounds": BOUNDS,
        "solver": vfl.solvers.OutputPerturbation(constant=False),
    }
    return vfl.Job(partition=PARTITION, **(given | options))


def private(seed: int = 0, epsilon: float = 1.0) -> vfl.Privacy:
    return vfl.Privacy(epsilon=epsilon, delta=1e-5, noise=vfl.SeededNoise(seed))


def with_ones() -> np.ndarray:
    return np.column_stack([table()[c] for c in COLUMNS] + [np.ones(N)])


class TestTheMinimiser:
    def test_it_reaches_the_peers_solution_with_a_penalised_intercept(self) -> None:
        peer = peers.LogisticRegression(C=1 / (LAMBDA * N), fit_intercept=False, tol=1e-12).fit(
            with_ones(), table()["y"]
        )
        result = vfl.train(job(), table(), at="inprocess")
        np.testing.assert_allclose([*result.coef_, result.intercept_], peer.coef_[0], atol=1e-6)

    def test_it_reaches_the_peers_solution_without_an_intercept_under_an_elastic_net(self) -> None:
        X = with_ones()[:, :3]
        peer = peers.LogisticRegression(
            C=1 / (LAMBDA * N), l1_ratio=0.3, solver="saga", fit_intercept=False, tol=1e-12, max_iter=10**5
        ).fit(X, table()["y"])
        spec = job(intercept=False, penalty=vfl.ElasticNet(LAMBDA, l1_ratio=0.3))
        np.testing.assert_allclose(vfl.train(spec, table(), at="inprocess").coef_, peer.coef_[0], atol=1e-6)

    def test_the_plan_states_the_objective_that_is_solved(self) -> None:
        assert "‖w‖², the intercept included" in plan(job(), N).explain()
        assert "included" not in plan(job(solver=vfl.SkGD()), N).explain()

    @pytest.mark.parametrize("shape", ["ones", "corners", "tiny"])
    def test_the_public_number_of_steps_suffices(self, shape: str) -> None:
        """Data at the edge of the bounds: without reaching the tolerance the run would refuse to publish."""
        rng = np.random.default_rng(0)
        values = {"ones": np.ones((N, 3)), "corners": rng.choice([-1.0, 1.0], (N, 3)), "tiny": np.full((N, 3), 1e-9)}
        data = {c: values[shape][:, j] for j, c in enumerate(COLUMNS)} | {"y": (rng.random(N) < 0.9).astype(int)}
        spec = job(penalty=vfl.L2(1e-3), privacy=private())
        assert np.isfinite(vfl.train(spec, data, at="inprocess").w).all()

    def test_too_few_steps_are_detected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vfl.solvers.OutputPerturbation, "steps", lambda self, problem: 3)
        with pytest.raises(PrivacyError, match="not reached"):
            vfl.train(job(privacy=private()), table(), at="inprocess")


class TestTheSensitivity:
    def test_the_sensitivity_is_that_of_the_docstring(self) -> None:
        problem = problem_of(job(privacy=private()), N)
        solver = vfl.solvers.OutputPerturbation(tolerance=0.01, constant=False).resolve(problem)
        ((event, count),) = solver.releases(problem)
        Λ = math.sqrt(4.0)  # three columns and the intercept within ±1, slope 1
        exact = 2 * Λ / (LAMBDA * N) * 1.01
        assert count == 1
        assert event.dimension == 4
        assert exact <= event.sensitivity <= exact * (1 + 2.0**-18)
        assert event.sensitivity > exact * (1 + 2.0**-24), "rounding to the grid is part of it"
        assert mu_of(1.0, 1e-5) == pytest.approx(event.sensitivity / event.sigma)

    def test_no_replacement_moves_the_minimiser_further(self) -> None:
        """Adversarial pairs: the last record moves between corners, with either label."""
        problem = problem_of(job(privacy=private()), 20)
        ((event, _),) = vfl.solvers.OutputPerturbation(constant=False).resolve(problem).releases(problem)
        base = {c: table()[c][:20].copy() for c in (*COLUMNS, "y")}
        found = []
        for x in (-1.0, 1.0):
            for y in (0, 1):
                data = {c: v.copy() for c, v in base.items()}
                for c in COLUMNS:
                    data[c][-1] = x
                data["y"][-1] = y
                found.append(vfl.train(job(), data, at="inprocess").w)
        moved = max(float(np.linalg.norm(a - b)) for a in found for b in found)
        assert 0.2 * event.sensitivity < moved <= event.sensitivity


class TestAResumedRun:
    """Its rounds hold no released value, so each process of the run begins again at the first of them."""

    @pytest.mark.parametrize("kills", [1, 2])
    def test_it_ends_with_a_certificate_that_holds(self, kills: int, tmp_path: Path) -> None:
        def killed(event: object) -> None:
            if isinstance(event, Round) and event.number == 3:
                raise KeyboardInterrupt

        spec = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-5))
        with pytest.raises(KeyboardInterrupt):
            vfl.train(spec, table(), at="inprocess", output=tmp_path / "run", watch=killed)
        for _ in range(kills - 1):
            with pytest.raises(KeyboardInterrupt):
                vfl.resume(tmp_path / "run", table(), at="inprocess", watch=killed)
        resumed = vfl.resume(tmp_path / "run", table(), at="inprocess")
        assert resumed.certificate.epsilon <= 1.0
        assert verify_run(tmp_path / "run").ok


def noised(x: float, seed: int) -> float:
    """Return the released w, projected on the direction of the canary's effect."""
    data = {c: np.array([x, 0.0]) for c in COLUMNS} | {"y": np.array([1, 0])}
    spec = job(intercept=False, penalty=vfl.L2(10.0), privacy=private(seed, epsilon=16.0))
    return float(vfl.train(spec, data, at="inprocess").w.sum() / math.sqrt(3.0))


class TestAudit:
    """A strong penalty makes the minimiser nearly linear in the canary, so half of Δ or more is reached."""

    RUNS = 120

    def bound(self) -> tuple[float, float]:
        arms = [np.array([noised(x, 2 * s + k) for s in range(self.RUNS)]) for k, x in enumerate((1.0, -1.0))]
        middle = np.mean([noised(x, 10**6 + s) for s in range(20) for x in (1.0, -1.0)])
        wrong = [int((arms[1] > middle).sum()), int((arms[0] <= middle).sum())]
        rates = [beta.ppf(0.99, k + 1, self.RUNS - k) for k in wrong]
        spread = math.sqrt((arms[0].var(ddof=1) + arms[1].var(ddof=1)) / 2)
        return float(-ndtri(rates[0]) - ndtri(rates[1])), float((arms[0].mean() - arms[1].mean()) / spread)

    @pytest.mark.slow  # tests/solvers/test_audits.py says the same by the exact likelihood ratio
    def test_the_claim_holds_and_is_nearly_reached(self) -> None:
        claimed = mu_of(16.0, 1e-5)
        lower, seen = self.bound()
        assert 2.0 <= claimed <= 4.0
        assert lower <= claimed
        # ℓ' is about ½ where the slope is 1, so the canary reaches half of Δ.
        assert 0.35 * claimed < seen < 0.65 * claimed

    def test_a_missing_factor_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = Clip.sensitivity.fget
        monkeypatch.setattr(Clip, "sensitivity", property(lambda clip: true(clip) / 4.0))
        assert self.bound()[0] > mu_of(16.0, 1e-5)


class TestSealed:
    def test_only_the_noised_result_is_recorded(self) -> None:
        seen: list[object] = []
        result = vfl.train(job(privacy=private()), table(), at="inprocess", watch=seen.append)
        rounds = [event for event in seen if isinstance(event, Round)]
        assert all(record.released == () for record in rounds)
        assert [record.kind for record in rounds if record.events] == ["Publish"]
        assert rounds[-1].kind == "Publish"
        assert result.certificate.releases == 1
        assert len(rounds) - 1 == plan(job(privacy=private()), N).messages

    def test_messages_do_not_depend_on_data(self) -> None:
        counts = []
        for scale in (1.0, 1e-6):
            seen: list[object] = []
            data = table() | {c: scale * table()[c] for c in COLUMNS}
            vfl.train(job(privacy=private()), data, at="inprocess", watch=seen.append)
            counts.append(len(seen))
        assert counts[0] == counts[1]

    def test_a_resumed_run_begins_again(self, tmp_path: object) -> None:
        spec = job(privacy=private())
        whole = vfl.train(spec, table(), at="inprocess").w

        class CutOffError(Exception):
            pass

        def cut(event: object) -> None:
            if isinstance(event, Round) and event.number == 7:
                raise CutOffError

        folder = tmp_path / "run"  # type: ignore[operator]
        with pytest.raises(CutOffError):
            vfl.train(spec, table(), at="inprocess", output=folder, watch=cut)
        from vfl.launch.train import resume

        np.testing.assert_array_equal(resume(folder, table(), at="inprocess").w, whole)


def test_ray_gives_the_same_bits(parties_on_ray: SharedParties) -> None:
    spec = job(penalty=vfl.L2(10.0), privacy=private(4))
    here = vfl.train(spec, table(), at="inprocess")
    np.testing.assert_array_equal(parties_on_ray.train(spec, table()).w, here.w)


def test_huber_works_where_squared_loss_cannot() -> None:
    spec = job(loss=Huber(width=0.5), privacy=private(), classes=None)
    assert np.isfinite(vfl.train(spec, table(), at="inprocess").w).all()


REFUSED = {
    "no penalty": (
        {"penalty": vfl.penalties.NoPenalty()},
        "needs a strongly convex objective.*the none penalty adds no convexity",
    ),
    "lasso": ({"penalty": vfl.L1(0.1)}, "the l1 penalty adds no convexity: use L2"),
    "squared": (
        {"loss": "squared", "bounds": BOUNDS | {"y": (0.0, 1.0)}},
        "needs a loss with a bounded derivative.*squared has none: use 'huber'",
    ),
    "hinge": ({"loss": "hinge"}, "OutputPerturbation with loss='hinge' needs a bounded second derivative"),
    "a tolerance beyond doubles": (
        {"solver": vfl.solvers.OutputPerturbation(tolerance=1e-15)},
        "below what double precision can verify",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_missing_requirement(case: str) -> None:
    options, said = REFUSED[case]
    with pytest.raises(SpecificationError, match=said):
        plan(job(privacy=private(), **options), N)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.inf, math.nan])
def test_a_tolerance_is_positive(tolerance: float) -> None:
    with pytest.raises(SpecificationError, match="tolerance must be positive"):
        vfl.solvers.OutputPerturbation(tolerance=tolerance)


def test_bounds_are_needed() -> None:
    open_columns = replace(problem_of(job(privacy=private()), N), reach=np.full(4, math.inf))
    with pytest.raises(PrivacyError, match="needs declared bounds"):
        vfl.solvers.OutputPerturbation().resolve(open_columns)


def test_publication_is_charged_before_it_is_made() -> None:
    published = output_perturbation.Publish(np.ones(2), Clip(1.0, 2), Clip(1.0, 2).event(3.0))
    assert published.events() == (Clip(1.0, 2).event(3.0),)
    assert published.shares() == {}


def test_owners_books_accept_a_sealed_run(tmp_path: object) -> None:
    """The solver declares gradients without noise; the coordinator's publication is charged when the run ends."""
    policies = {}
    for party in PARTITION.parties:
        path = tmp_path / f"{party}.toml"  # type: ignore[operator]
        path.write_text(
            'format = 1\njobs = ["*"]\nallow_non_private = true\n[total]\nepsilon = 1.0\ndelta = 1e-5\n',
            encoding="utf-8",
        )
        policies[party] = path
    spec = job(penalty=vfl.L2(1.0), privacy=private())
    result = vfl.train(spec, vfl.Source(table(), policy=policies), at="inprocess")
    np.testing.assert_array_equal(result.w, vfl.train(spec, table(), at="inprocess").w)
