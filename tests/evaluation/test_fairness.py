"""Fairness of a run's model: measured on held-out records, charged, bounded, refused where it makes no sense."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.optimize import minimize

import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.loading import load
from tests.neighbours.harness import compare
from vfl.base.losses import loss_of
from vfl.errors import ConsentRefused, DataError, PartitionError, PartyLost, PrivacyError, SpecificationError
from vfl.job import file as jobfile
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.launch.train import resume
from vfl.measures.distance import Distance
from vfl.measures.fairness import GroupFairness, notions_of
from vfl.measures.specification import NOTIONS
from vfl.planning import plan as make_plan
from vfl.planning import problem_of
from vfl.privacy.events import OnPart, ReleaseKey
from vfl.privacy.noise import SeededNoise
from vfl.queries import Groups
from vfl.solvers import SOLVERS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.coordinator.shared_parties import SharedParties

pytestmark = pytest.mark.usefixtures("encoded")

N = 1500
SEX = vfl.Categorical(("f", "m"))
PARTITION = vfl.FeaturePartition(
    {"bank": ["a0", "a1"], "telco": ["b0"], "registry": []}, label=("telco", "y"), groups={"registry": ["sex"]}
)


@functools.cache
def table(n: int = N, seed: int = 0, apart: float = 0.3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sex = rng.choice(np.array(["f", "m"], dtype=object), n, p=[0.4, 0.6])
    X = rng.uniform(-1, 1, (n, 3))
    X[:, 0] = np.clip(X[:, 0] + apart * (sex == "m"), -1, 1)
    y = (X @ np.array([2.0, -1.0, 1.5]) + 0.3 + rng.logistic(size=n) > 0).astype(int)
    return {"a0": X[:, 0], "a1": X[:, 1], "b0": X[:, 2], "y": y, "sex": sex}


def held(**options: Any) -> vfl.Evaluation:
    return vfl.Evaluation(**{"holdout": 0.3} | options)


def job(*, epsilon: float | None = 2.0, seed: int | None = 3, **options: Any) -> vfl.Job:
    noise = None if seed is None else SeededNoise(seed)
    privacy = None if epsilon is None else vfl.Privacy(epsilon=epsilon, delta=1e-5, noise=noise)
    fixed: dict[str, Any] = {
        "partition": PARTITION,
        "bounds": {"*": (-1.0, 1.0)},
        "columns": {"sex": SEX},
        "evaluation": vfl.Evaluation(holdout=0.3, fairness=vfl.Fairness(group="sex")),
        "penalty": vfl.L2(0.3),
        "intercept": False,
        "solver": vfl.SkGD(passes=4, clip="coordinate"),
    }
    return vfl.Job(privacy=privacy, **(fixed | options))


def train(spec: vfl.Job, data: Any = None, **options: Any) -> vfl.Result:
    return vfl.train(spec, table() if data is None else data, at="inprocess", **options)


def scaled(spec: vfl.Job, data: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return X in the order of w. All bounds are (−1, 1), so scaling changes nothing."""
    names = make_plan(spec, len(data["y"])).problem.layout.names
    return np.column_stack([data[name] if name in data else np.ones(len(data["y"])) for name in names])


def minimiser(spec: vfl.Job, data: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return h*, the minimiser of F on the training records."""
    n = len(data["y"])
    problem, kept = make_plan(spec, n).problem, ~spec.split.held_out(n)
    X, y = scaled(spec, data)[kept], np.where(data["y"][kept] > 0, 1.0, -1.0)
    penalty = problem.penalty
    l1 = penalty.strength * penalty.l1_ratio if isinstance(penalty, vfl.ElasticNet) else 0.0
    p = X.shape[1]

    def value(ab: np.ndarray) -> tuple[float, np.ndarray]:
        w = ab[:p] - ab[p:]
        g = X.T @ problem.loss.derivative(X @ w, y) / len(y) + penalty.convexity * w
        f = float(problem.loss.value(X @ w, y).mean()) + 0.5 * penalty.convexity * float(w @ w) + l1 * float(ab.sum())
        return f, np.concatenate([g + l1, l1 - g])

    options = {"ftol": 1e-15, "gtol": 1e-11, "maxiter": 5000}
    found = minimize(value, np.zeros(2 * p), jac=True, method="L-BFGS-B", bounds=[(0, None)] * (2 * p), options=options)
    return found.x[:p] - found.x[p:]


def gaps(spec: vfl.Job, data: Mapping[str, np.ndarray], w: np.ndarray) -> dict[str, float]:
    """Return every gap on all records of a table, from its definition."""
    X, labels, found = scaled(spec, data), (data["y"] > 0).astype(int), {}
    predicted = (X @ w > 0).astype(int)
    for notion in notions_of(NOTIONS):
        counted, looked_at = notion.counted[labels, predicted], notion.looked_at[labels, predicted]
        whole = counted.sum() / looked_at.sum()
        for sex in ("f", "m"):
            own = data["sex"] == sex
            found[f"{notion.name} of sex={sex}"] = (counted & own).sum() / (looked_at & own).sum() - whole
    return found


class TestMeasured:
    def test_without_noise_the_gaps_are_those_of_the_held_out_records(self) -> None:
        spec = job(epsilon=None)
        result = train(spec)
        apart = spec.split.held_out(N)
        held = {name: column[apart] for name, column in table().items()}
        found = result.findings["fairness"]
        assert found.n_records == apart.sum()
        expected = gaps(spec, held, result.w)
        assert {name: e.value for name, e in found.measures.items()} == pytest.approx(expected, abs=1e-9)
        assert list(found.measures)[:2] == ["opportunity of sex=f", "opportunity of sex=m"]

    @pytest.mark.parametrize("owner", ["bank", "telco", "registry"])
    def test_the_group_may_lie_anywhere_and_changes_no_model(self, owner: str) -> None:
        """A third party without features holds it, or a party with features; the model never sees it."""
        parties = {"bank": ["a0", "a1"], "telco": ["b0"]} | ({"registry": []} if owner == "registry" else {})
        partition = vfl.FeaturePartition(parties, label=("telco", "y"), groups={owner: ["sex"]})
        spec = job(partition=partition)
        result, elsewhere = train(spec), train(job())
        assert result.w.tobytes() == elsewhere.w.tobytes()
        assert result.findings["fairness"].measures == elsewhere.findings["fairness"].measures

    def test_a_feature_may_be_the_group(self) -> None:
        data = table() | {"sex": (table()["sex"] == "m").astype(int)}
        partition = vfl.FeaturePartition({"bank": ["a0", "a1", "sex"], "telco": ["b0"]}, label=("telco", "y"))
        spec = job(partition=partition, columns={"sex": vfl.Boolean()})
        found = train(spec, data).findings["fairness"].measures
        assert "parity of sex=true" in found
        assert found["parity of sex=true"].value > 0.02 > -0.02 > found["parity of sex=false"].value

    def test_several_columns_are_compared_each_by_itself(self) -> None:
        rng = np.random.default_rng(8)
        data = table() | {"age": rng.choice(np.array(["20s", "30s", "40s"], dtype=object), N)}
        partition = vfl.FeaturePartition(
            {"bank": ["a0", "a1"], "telco": ["b0"], "registry": []},
            label=("telco", "y"),
            groups={"registry": ["sex"], "bank": ["age"]},
        )
        columns = {"sex": SEX, "age": vfl.Categorical(("20s", "30s", "40s"))}
        spec = job(
            partition=partition,
            columns=columns,
            evaluation=held(fairness=vfl.Fairness(group=["age", "sex"])),
            epsilon=None,
        )
        found = train(spec, data).findings["fairness"].measures
        alone = train(job(epsilon=None)).findings["fairness"].measures
        for name, estimate in alone.items():
            assert found[name].value == pytest.approx(estimate.value)
        assert {name.rpartition("=")[2] for name in found} == {"20s", "30s", "40s", "f", "m"}

    def test_records_without_a_category_are_in_no_group(self) -> None:
        declared = vfl.Categorical(("f", "m"), unknown="zero", missing="indicator")
        data = {name: column.copy() for name, column in table().items()}
        data["sex"][::3] = None
        data["sex"][1::7] = "x"
        spec = job(columns={"sex": declared}, epsilon=None)
        result = train(spec, data)
        apart = spec.split.held_out(N)
        held = {name: column[apart & np.isin(data["sex"], ["f", "m"])] for name, column in data.items()}
        found = {name: e.value for name, e in result.findings["fairness"].measures.items()}
        assert found == pytest.approx(gaps(spec, held, result.w), abs=1e-9)

    def test_groups_are_aligned_with_the_other_columns(self, tmp_path: Path) -> None:
        """Every party holds the records in an order of its own; the gaps are those of the common records."""
        rng, data = np.random.default_rng(3), table()
        ids = {party: f"{party} id" for party in PARTITION.parties}
        sources = {}
        for k, party in enumerate(PARTITION.parties):
            order = rng.permutation(N)[k:]
            columns = {c: data[c][order] for c in PARTITION.wanted(party)}
            sources[party] = {ids[party]: np.array([f"p{i}" for i in order], dtype=object)} | columns
        spec = job(epsilon=None, id=ids)
        result = train(spec, sources)
        index = {party: {i: row for row, i in enumerate(source[ids[party]])} for party, source in sources.items()}
        common = sorted(set.intersection(*map(set, index.values())))
        found = result.findings["fairness"]
        assert found.n_records == spec.split.held_out(len(common)).sum()
        whole = {
            c: sources[q][c][[index[q][i] for i in common]] for q in PARTITION.parties for c in PARTITION.wanted(q)
        }
        expected = gaps(spec, whole, result.w)  # which of the common records are held out is not known here
        for name, estimate in found.measures.items():
            assert abs(estimate.value - expected[name]) < 4 * estimate.error

    def test_new_records_need_no_groups(self) -> None:
        """Predictions and exact measures read neither the group column nor the party that holds nothing else."""
        result, rest = train(job()), {name: column for name, column in table().items() if name != "sex"}
        assert len(result.predict(rest)) == N
        assert vfl.evaluate(result, rest).measures["accuracy"].value > 0.5
        parts = {q: {c: table()[c] for c in PARTITION.wanted(q, groups=False)} for q in ("bank", "telco")}
        assert vfl.evaluate(result, parts).measures == vfl.evaluate(result, rest).measures
        assert vfl.predict(result, parts, at="inprocess").labels.tolist() == result.predict(rest).tolist()

    def test_findings_survive_their_file(self, tmp_path: Path) -> None:
        result = train(job(solver=vfl.solvers.OutputPerturbation()), output=tmp_path / "run")
        again = vfl.Result.load(tmp_path / "run")
        assert again.findings == result.findings
        assert json.loads((tmp_path / "run" / "findings.json").read_text())["fairness"]["measures"]
        assert again.verify().ok
        said = str(result.findings["fairness"])
        assert "\n  opportunity of sex=f " in said
        assert "without noise: between" in said
        assert "model without noise" in result.findings["fairness"]._repr_html_()


class TestCharged:
    @pytest.mark.parametrize(
        "solver", [vfl.SkGD(passes=3), vfl.solvers.OutputPerturbation(), vfl.solvers.GD(passes=20)]
    )
    def test_the_run_costs_the_larger_part(self, solver: Any) -> None:
        spec = job(solver=solver, epsilon=1.0)
        plan = make_plan(spec, N)
        assert 0.99 < plan.epsilon <= 1.0
        result = train(spec)
        assert 0.99 < result.certificate.epsilon <= 1.0
        without = make_plan(replace(spec, evaluation=held(), partition=PARTITION.without_groups(), columns={}), N)
        assert plan.epsilon == pytest.approx(without.epsilon, rel=1e-6)
        sides = {event.part: 0.0 for event, _ in plan.releases if isinstance(event, OnPart)}
        for event, count in plan.releases:
            assert isinstance(event, OnPart)
            sides[event.part] += count * (event.event.sensitivity / event.event.sigma) ** 2  # type: ignore[attr-defined]
        assert sides["training"] == pytest.approx(sides["held out"], rel=1e-6)

    def test_every_release_is_charged_before_its_query_and_on_its_part(self) -> None:
        seen: list[Any] = []
        spec = job()
        train(spec, watch=seen.append)
        rounds = [event for event in seen if isinstance(event, Round)]
        kinds = [record.kind for record in rounds[-9:]]
        assert kinds == [
            "Forward",
            "Tally",
            "Tally",
            "Forward",
            "Backward",
            "Forward",
            "Groups",
            "RecordNorms",
            "Tally",
        ]
        parts = [[event.part for event in record.events if isinstance(event, OnPart)] for record in rounds[-9:]]
        held = ["held out"]
        assert parts == [[], held, held, [], ["training"], [], [], [], held]
        plan = make_plan(spec, N)
        assert sum(len(record.charges) for record in rounds) == sum(count for _, count in plan.releases)
        assert plan.messages == len(rounds)

    def test_a_distance_that_is_public_or_impossible_is_not_released(self) -> None:
        def released(spec: vfl.Job) -> int:
            plan = make_plan(spec, N)
            return sum(len(i.releases()) for i in plan.evaluations if isinstance(i, Distance))

        assert released(job()) == 1
        assert released(job(solver=vfl.solvers.OutputPerturbation())) == 0
        assert released(job(intercept=True)) == 0
        assert released(job(evaluation=held(fairness=vfl.Fairness(group="sex", bound=False)))) == 0
        whole = make_plan(job(intercept=True), N).problem
        assert (
            whole.mu == make_plan(job(evaluation=held(fairness=vfl.Fairness(group="sex", bound=False))), N).problem.mu
        )
        assert make_plan(job(), N).problem.mu == pytest.approx(math.sqrt(0.9) * whole.mu, rel=1e-9)

    def test_an_interrupted_run_goes_on(self, tmp_path: Path) -> None:
        spec = job()
        whole = train(spec, output=tmp_path / "whole")
        rounds = make_plan(spec, N).messages
        for left in (1, 3, 6):

            def stop(event: object, last: int = rounds - left) -> None:
                if isinstance(event, Round) and event.number == last:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                train(spec, output=tmp_path / f"cut{left}", watch=stop)
            again = resume(tmp_path / f"cut{left}", table(), at="inprocess")
            assert again.w.tobytes() == whole.w.tobytes()
            assert again.findings == whole.findings
            assert again.certificate.epsilon == whole.certificate.epsilon

    @pytest.mark.parametrize("bound", [None, False])
    def test_a_solver_that_divides_zcdp_leaves_room_for_it(self, bound: bool | None) -> None:
        fairness = vfl.Fairness(group="sex") if bound is None else vfl.Fairness(group="sex", bound=bound)
        assert 1.9 < make_plan(job(solver=vfl.solvers.GCD(), evaluation=held(fairness=fairness)), N).epsilon <= 2.0

    def test_the_certificate_says_who_sees_groups_and_norms(self) -> None:
        bounded, unbounded = train(job()).certificate, train(job(intercept=True)).certificate
        assert "group of every held-out record" in bounded.who_sees_what["coordinator"]
        assert unbounded.who_sees_what["coordinator"].endswith("the group of every held-out record")
        assert "group" not in bounded.who_sees_what["party"]

    def test_an_owners_book_admits_it(self, tmp_path: Path) -> None:
        """The noisy gradient is in the books of the parties that release parts of it; counts are the coordinator's."""
        policies = {}
        for party in PARTITION.parties:
            (tmp_path / party).mkdir()
            policies[party] = tmp_path / party / "policy.toml"
            policies[party].write_text('format = 1\njobs = ["*"]\n[total]\nepsilon = 3\ndelta = 1e-4\n')
        result = train(job(seed=None), vfl.Source(table(), policy=policies))
        assert set(result.certificate.party_ledgers) == set(PARTITION.parties)
        assert result.findings["distance"].measures

    @pytest.mark.parametrize("kind", ["bound", "thresholds"])
    def test_ray_agrees_to_the_bit(self, parties_on_ray: SharedParties, kind: str) -> None:
        options: dict[str, Any] = {} if kind == "bound" else {"bound": False, "threshold_per_group": True}
        spec = job(evaluation=held(fairness=vfl.Fairness(group="sex", **options)))
        here, there = train(spec, watch=lambda event: None), parties_on_ray.train(spec, table())
        assert here.w.tobytes() == there.w.tobytes()
        assert here.findings == there.findings
        assert there.statement is not None
        assert here.certificate.epsilon == there.statement.epsilon


@functools.cache
def unseen() -> dict[str, np.ndarray]:
    return table(200_000, 99)


class TestBounded:
    """The model without noise lies where the run says, on records that nobody has seen."""

    @pytest.mark.parametrize(
        ("n", "epsilon", "strength", "solver"),
        [
            (1500, 1.0, 0.3, vfl.solvers.OutputPerturbation()),
            (1500, 8.0, 0.05, vfl.solvers.OutputPerturbation()),
            (6000, 1.0, 1.0, vfl.solvers.OutputPerturbation()),
            (6000, 4.0, 0.1, vfl.solvers.OutputPerturbation()),
            (1500, 4.0, 0.3, vfl.SkGD()),
            (6000, 1.0, 0.3, vfl.SkGD()),
            (6000, 8.0, 0.05, vfl.solvers.GD()),
            (6000, 4.0, 0.3, vfl.solvers.CD()),
            (6000, 4.0, 0.3, vfl.solvers.SGD(sampling="disjoint")),
        ],
    )
    def test_over_penalties_sizes_budgets_and_solvers(
        self, n: int, epsilon: float, strength: float, solver: Any
    ) -> None:
        for seed in (1, 2):
            data = table(n, seed)
            spec = job(epsilon=epsilon, seed=seed, penalty=vfl.L2(strength), solver=solver)
            result = train(spec, data)
            best, d = minimiser(spec, data), result.findings["distance"].measures["distance"].value
            assert np.linalg.norm(result.w - best) <= d
            fresh = unseen()
            before, after = gaps(spec, fresh, best), gaps(spec, fresh, result.w)
            told = 0
            for name, estimate in result.findings["fairness"].measures.items():
                if estimate.noiseless is not None and estimate.shift is not None:
                    told += 1
                    assert estimate.noiseless[0] <= before[name] <= estimate.noiseless[1], name
                    assert estimate.shift[0] <= before[name] - after[name] <= estimate.shift[1], name
            assert told or d >= np.linalg.norm(result.w)

    def test_the_distance_is_beyond_the_minimiser_in_nearly_all_runs(self) -> None:
        """The released one with probability 0.975; the true one lies close below it, so a wrong sigma would show."""
        spec = job(epsilon=1.0, solver=vfl.SkGD(passes=1))
        best, ratios = minimiser(spec, table()), []
        for seed in range(40):
            result = train(replace(spec, privacy=replace(spec.privacy, noise=SeededNoise(seed))))
            ratios.append(np.linalg.norm(result.w - best) / result.findings["distance"].measures["distance"].value)
        assert sum(ratio > 1 for ratio in ratios) <= 3
        assert max(ratios) > 0.5

    def test_elastic_net_has_a_distance_too(self) -> None:
        spec = job(epsilon=8.0, penalty=vfl.ElasticNet(0.4, l1_ratio=0.3))
        result = train(spec)
        d = result.findings["distance"].measures["distance"].value
        assert np.linalg.norm(result.w - minimiser(spec, table())) <= d

    def test_without_noise_the_distance_is_the_exact_one(self) -> None:
        spec = job(epsilon=None, solver=vfl.SkGD())
        result = train(spec)
        d = result.findings["distance"].measures["distance"].value
        assert np.linalg.norm(result.w - minimiser(spec, table())) <= d + 1e-8 < 1e-4

    def test_a_bound_that_says_nothing_is_called_so(self) -> None:
        spec = job(epsilon=0.5, penalty=vfl.L2(1e-3), solver=vfl.solvers.OutputPerturbation())
        assert "too far for any bound" in str(make_plan(spec, N))
        found = train(spec).findings
        if found["distance"].measures["distance"].value >= np.linalg.norm(train(spec).w):
            assert "nothing is known" in found["fairness"].note
            assert all(e.noiseless is None for e in found["fairness"].measures.values())

    def test_the_plan_says_why_there_is_no_bound(self) -> None:
        plan = make_plan(job(intercept=True), N)
        assert "the intercept is not penalised" in str(plan)
        assert "no bound" in train(job(intercept=True)).findings["fairness"].note

    def test_the_plan_warns_of_noise_that_hides_every_gap(self) -> None:
        assert "TOO NOISY" in str(make_plan(job(epsilon=0.01, intercept=True), N))

    @pytest.mark.parametrize("name", sorted(SOLVERS.keys() - {"NoisyGram", "GCD"}))  # no classes; refused, see above
    def test_every_solver_fits_its_budget_with_a_distance(self, name: str) -> None:
        plan = make_plan(job(solver=SOLVERS[name](), epsilon=1.0), N)
        assert 0.99 < plan.epsilon <= 1.0 + 1e-9
        assert [evaluation.name for evaluation in plan.evaluations] == ["held out", "distance", "fairness"]

    def test_the_plan_expects_the_error(self) -> None:
        spec = job(epsilon=1.0, intercept=True)
        evaluation = next(i for i in make_plan(spec, N).evaluations if isinstance(i, GroupFairness))
        assert f"error of a gap about {evaluation.guessed(2):.2g}" in str(make_plan(spec, N))
        found = train(spec).findings["fairness"].measures
        assert 0.3 < np.mean([e.error for e in found.values()]) / evaluation.guessed(2) < 1.5


class Losing(InProcessTransport):
    """Loses a party at the first query of a kind that addresses it, for good."""

    lost: str
    kind: str
    gone = False

    def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
        assert not (self.gone and self.lost in shares), "a party that was given up is asked"
        if self.lost in shares and type(shares[self.lost]).__name__ == self.kind:
            self.gone = True
            raise PartyLost(f"{self.lost!r} died", self.lost)
        return super().ask(shares, records, key)


class TestLost:
    @pytest.mark.parametrize(
        ("lost", "kind", "measured", "said"),
        [
            ("bank", "Descend", True, "the model without noise is not bounded, because a party"),
            ("bank", "Backward", False, "not measured, since party 'bank' was lost"),
            ("bank", "RecordNorms", False, "not measured, since party 'bank' was lost"),
            ("registry", "Groups", False, "not measured, since party 'registry' was lost"),
        ],
    )
    def test_a_party_that_is_given_up_is_asked_no_more(self, lost: str, kind: str, measured: bool, said: str) -> None:
        spec = job()
        parties = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, table()).items()}
        transport = Losing(parties)
        transport.lost, transport.kind = lost, kind
        faults = Faults(on_party_lost="skip", wait_timeout_s=0.01)
        *_, outcome = Coordinator(transport, faults=faults).stream(spec)
        found = outcome.findings["fairness"]
        assert transport.gone
        assert said in found.note
        assert bool(found.measures) is measured
        assert all(estimate.noiseless is None for estimate in found.measures.values())
        assert outcome.statement.epsilon <= 2.0


class TestThresholds:
    def spec(self, **options: Any) -> vfl.Job:
        fairness = vfl.Fairness(group="sex", bound=False, threshold_per_group=True)
        return job(**({"evaluation": held(fairness=fairness), "intercept": True} | options))

    def test_they_close_the_gap_on_the_other_half(self) -> None:
        data = table(20_000, 4, 1.0)
        spec = self.spec(epsilon=4.0, solver=vfl.SkGD(), penalty=vfl.L2(1e-3))
        assert any("needs each record's group" in warning for warning in make_plan(spec, 20_000).warnings)
        with pytest.warns(vfl.PrivacyWarning, match="needs each record's group"):
            result = train(spec, data)
        found = result.findings["fairness"]
        assert set(found.thresholds or {}) == {"f", "m"}
        name = "opportunity of sex=f"
        before, after = (found.measures[name + said].value for said in (", one threshold", ", thresholds per group"))
        assert abs(before) > 0.04
        assert abs(after) < 0.5 * abs(before)
        lost = found.measures["accuracy, one threshold"].value - found.measures["accuracy, thresholds per group"].value
        assert lost < 0.03
        fresh = table(200_000, 99, 1.0)
        X, own = scaled(spec, fresh), fresh["sex"] == "f"
        cut = np.where(own, found.thresholds["f"], found.thresholds["m"])  # type: ignore[index]
        hits, positive = X @ result.w > cut, fresh["y"] > 0
        true = hits[own & positive].mean() - hits[positive].mean()
        assert abs(true - after) < 4 * found.measures[name + ", thresholds per group"].error

    def test_one_release_pays_for_choice_and_measure(self) -> None:
        plan = make_plan(self.spec(), N)
        (evaluation,) = (i for i in plan.evaluations if isinstance(i, GroupFairness))
        ((event, count),) = evaluation.releases()
        assert count == 1
        assert event.sensitivity == pytest.approx(math.sqrt(2.0))  # type: ignore[attr-defined]
        with pytest.warns(vfl.PrivacyWarning, match="thresholds per group"):
            assert train(self.spec()).certificate.epsilon <= 2.0

    def test_too_few_records_leave_the_one_threshold(self) -> None:
        with pytest.warns(vfl.PrivacyWarning, match="thresholds per group"):
            found = train(self.spec(epsilon=0.05)).findings["fairness"]
        assert found.thresholds == {"f": 0.0, "m": 0.0}
        assert "left out" in found.note


class TestRefused:
    """In a sentence, before anything is read or charged."""

    def test_a_comparison_of_another_type_or_without_held_out_records(self) -> None:
        for options, said in (
            ({"fairness": "sex"}, "fairness must be vfl.Fairness"),
            ({"holdout": None}, "set holdout=0.2"),
        ):
            with pytest.raises(SpecificationError, match=said):
                held(**{"fairness": vfl.Fairness(group="sex")} | options)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (
                {"evaluation": held(fairness=vfl.Fairness(group="sexx"))},
                "no party holds a column 'sexx' (did you mean 'sex'?)",
            ),
            ({"columns": {}}, "it is declared as numbers"),
            (
                {"evaluation": held(fairness=vfl.Fairness(group=["sex", "a0"]))},
                "column 'a0' does not fit: it is declared as numbers",
            ),
            ({"columns": {"sex": vfl.Categorical(tuple(range(17)))}}, "it has 17"),
            ({"loss": "huber", "bounds": {"*": (-1, 1), "y": (-1, 1)}}, "predicts numbers"),
            ({"evaluation": held()}, "lists 'sex' in groups, and fairness does not compare by it"),
            ({"id": "sex"}, "is also a feature or the label"),
        ],
    )
    def test_by_the_job(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(SpecificationError) as refused:
            job(**options)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        "options",
        [
            *({"group": group} for group in ("", 3, [], ["a", "a"], [f"c{k}" for k in range(9)])),
            {"notions": ["odd"]},
            {"notions": []},
            {"share": 1.0},
            {"distance_share": 0},
            {"bound": 1},
            {"threshold_per_group": True},  # and a bound
            {"group": ["a", "b"], "bound": False, "threshold_per_group": True},
        ],
    )
    def test_by_the_specification(self, options: dict[str, Any]) -> None:
        """Each error names the option."""
        with pytest.raises(vfl.VflError, match=list(options)[-1].rstrip("s")) as refused:
            vfl.Fairness(**{"group": "sex"} | options)
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize(
        ("groups", "said"),
        [
            ({"court": ["sex"]}, "there is no party 'court'"),
            ({"bank": ["a0"]}, "is a feature and also a group column"),
            ({"telco": ["y"]}, "is the label and also a group column"),
            ({"bank": ["sex"]}, "party 'registry' owns no column"),
        ],
    )
    def test_by_the_partition(self, groups: dict[str, list[str]], said: str) -> None:
        with pytest.raises(PartitionError, match=said):
            vfl.FeaturePartition({"bank": ["a0"], "telco": ["b0"], "registry": []}, label=("telco", "y"), groups=groups)

    def test_no_budget_is_left_for_training(self) -> None:
        fairness = vfl.Fairness(group="sex", distance_share=0.5)
        with pytest.raises(PrivacyError, match="leave no budget for training"):
            make_plan(job(evaluation=held(fairness=fairness, class_balance=0.6)), N)

    @pytest.mark.parametrize("cell", ["x", None, 3])
    def test_a_cell_without_a_declared_category_is_its_owners_error(self, cell: object) -> None:
        data = {name: column.copy() for name, column in table().items()}
        data["sex"][7] = cell
        with pytest.raises(DataError, match=r"party 'registry'.*column 'sex'") as refused:
            train(job(), data)
        assert "'x'" not in str(refused.value)

    def test_a_party_answers_for_no_other_column(self) -> None:
        spec = job()
        parties = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, table()).items()}
        for party, column in (("registry", "age"), ("bank", "sex")):
            with pytest.raises(PrivacyError, match="does not compare"):
                parties[party].answer(Groups({party: ((column, 1),)}), None, ReleaseKey(0))  # type: ignore[arg-type]

    def test_an_owner_may_refuse_the_column(self, tmp_path: Path) -> None:
        policy = tmp_path / "policy.toml"
        policy.write_text(
            'format = 1\njobs = ["*"]\nallow_non_private = true\ncolumns = []\n[total]\nepsilon = 9\ndelta = 1e-3\n'
        )
        with pytest.raises(ConsentRefused, match="uses column 'sex'"):
            train(job(), vfl.Source(table(), policy={"registry": policy}))


class TestUnchanged:
    def test_a_job_without_fairness_is_written_without_it(self) -> None:
        partition = vfl.FeaturePartition({"bank": ["a0", "a1"], "telco": ["b0"]}, label=("telco", "y"))
        spec = vfl.Job(
            partition=partition,
            bounds={"*": (-1, 1)},
            privacy=vfl.Privacy(epsilon=1.0),
            evaluation=vfl.Evaluation(holdout=0.25),
        )
        assert "fairness" not in spec.to_dict()
        assert "groups" not in spec.to_dict()["partition"]

    def test_a_job_file_says_the_same(self, tmp_path: Path) -> None:
        for fairness in (
            vfl.Fairness(group="sex"),
            vfl.Fairness(group="sex", notions=["parity"], bound=False, threshold_per_group=True, share=0.3),
        ):
            spec = job(evaluation=held(fairness=fairness), seed=None)
            jobfile.write(spec, tmp_path / "job.toml")
            again, _ = jobfile.read(tmp_path / "job.toml")
            assert again == spec
            assert again.digest == spec.digest
            assert again.fairness == fairness

    def test_an_estimate_without_intervals_is_written_as_before(self) -> None:
        found = train(job(evaluation=held(), partition=PARTITION.without_groups(), columns={})).findings
        assert set(found) == {"held out"}
        for measure in found["held out"].to_dict()["measures"].values():
            assert set(measure) <= {"value", "error", "interval", "baseline", "best", "cap", "withheld"}


class TestNeighbours:
    """A run on a neighbour releases sums that the charges cover, stores all other records alike, and says the same."""

    def neighbour(self, record: int, **cells: Any) -> dict[str, Any]:
        data = {name: column.copy() for name, column in table(120).items()}
        for name, cell in cells.items():
            data[name][record] = cell
        return data

    @pytest.mark.parametrize("fairness", ["bound", "thresholds"])
    def test_replacing_a_record(self, fairness: str) -> None:
        options: dict[str, Any] = (
            {"bound": True} if fairness == "bound" else {"bound": False, "threshold_per_group": True}
        )
        spec = job(
            evaluation=held(fairness=vfl.Fairness(group="sex", **options)),
            seed=None,
            solver=vfl.SkGD(passes=2),
        )
        apart = spec.split.held_out(120)
        for record in (int(apart.nonzero()[0][0]), int((~apart).nonzero()[0][0])):
            sex = "f" if table(120)["sex"][record] == "m" else "m"
            label = 1 - table(120)["y"][record]
            other = self.neighbour(record, sex=sex, y=label, a0=-1.0, a1=1.0, b0=-1.0)
            found = compare(spec, table(120), other)
            assert found.complaints == ()
            assert found.path > 0

    @pytest.mark.parametrize("cell", ["x", None, 1, "f ", b"f", 2.5, ["f"]])
    def test_an_odd_cell_changes_no_other_record(self, cell: object) -> None:
        for declared in (SEX, vfl.Categorical(("f", "m"), unknown="zero", missing="indicator")):
            spec = job(columns={"sex": declared}, seed=None, solver=vfl.SkGD(passes=1))
            found = compare(spec, table(120), self.neighbour(5, sex=cell))
            assert found.complaints == ()


def test_the_guessed_start_bounds_the_model_without_noise() -> None:
    """‖h*‖ ≤ √(2F(0)/λ), which the plan compares the expected distance with."""
    from vfl.measures.distance import largest_distance

    for strength in (0.01, 0.3, 3.0):
        spec = job(penalty=vfl.L2(strength))
        problem = problem_of(spec, N)
        assert np.linalg.norm(minimiser(spec, table())) <= largest_distance(problem)
        assert largest_distance(problem) == pytest.approx(math.sqrt(2 * math.log(2) / strength))
    assert loss_of("logistic").classification
