"""Curves whose knots the run finds: one release, one ε, one certificate; a run that stops after it continues from its knots."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from coordinator.rounds import Round
from parties.loading import load
from parties.party import Party
from tests.coordinator.organisations import federation
from vfl.base.features.curve import edges_of, histogram
from vfl.base.problem import Block
from vfl.base.types import Adjacency
from vfl.errors import PrivacyError, SpecificationError
from vfl.launch.run import checkpoint
from vfl.launch.run.verification import verify_run
from vfl.launch.sources import sources_of
from vfl.launch.train import resume, stream
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.spending import rho
from vfl.privacy.zcdp import rho_of
from vfl.queries import Ranges, RecordNorms, Records
from vfl.secure.requests import Begin
from vfl.solvers.releases.knots import LINE, Knots, event_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.coordinator.shared_parties import SharedParties

N = 3000
PARTITION = vfl.FeaturePartition({"bank": ["age", "amount"], "telco": ["calls", "tariff"]}, label=("telco", "y"))
PAIRED = vfl.FeaturePartition(
    {"bank": ["age", "both", "amount"], "telco": ["calls", "by_tariff", "tariff"]}, label=("telco", "y")
)
PAIRS = {"both": vfl.columns.Pair("age", "amount"), "by_tariff": vfl.columns.Pair("calls", "tariff", pieces=3)}
"""Their columns are made again once knots are found."""
BOUNDS = {"age": (18, 90), "amount": (0, 1e5), "calls": (0, 50)}
SEEDED = vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(3))


def table(n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    age, calls = rng.uniform(18, 90, n), rng.exponential(5, n)
    amount = np.where(rng.random(n) < 0.8, 0.0, rng.lognormal(8, 1, n))
    margin = 3 - ((age - 50) / 15) ** 2 + 2 * (amount > 0)
    y = (margin + rng.logistic(size=n) > 0).astype(int)
    return pd.DataFrame({"age": age, "amount": amount, "calls": calls, "tariff": rng.choice(["S", "M"], n), "y": y})


def job(curve: Any = None, *, paired: bool = True, **options: Any) -> vfl.Job:
    columns = {"*": curve or vfl.Curve(), "tariff": vfl.Categorical(("S", "M"))}
    columns = options.pop("columns", columns) | (PAIRS if paired else {})
    given = {
        "partition": PAIRED if paired else PARTITION,
        "bounds": BOUNDS,
        "columns": columns,
        "privacy": SEEDED,
        "penalty": vfl.L2(1e-4),
    }
    return vfl.Job(**given | options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[vfl.Result, Path]:
    folder = tmp_path_factory.mktemp("curves") / "run"
    return vfl.train(job(evaluation=vfl.Evaluation(holdout=0.2)), table(), at="inprocess", output=folder), folder


def test_one_run_finds_its_knots_and_spends_one_budget(run: tuple[vfl.Result, Path]) -> None:
    result, folder = run
    plan = vfl.plan(job(evaluation=vfl.Evaluation(holdout=0.2)), N)
    assert 1.99 < plan.epsilon <= 2.0
    assert plan.epsilon == pytest.approx(result.certificate.epsilon)
    assert list(result.knots) == ["age", "amount", "calls"]
    assert all(2 <= len(own) <= 5 for own in result.knots.values())
    assert {c: list(own) for c, own in result.knots.items()} == dict(result.certificate.knots)
    assert "histogram" in result.certificate.who_sees_what["coordinator"]
    again = vfl.Result.load(folder)
    assert (again.decision_function(table()) == result.decision_function(table())).all()
    report = verify_run(folder)
    assert report.ok
    assert {check.name: check.holds for check in report.checks}["knots"]
    line = vfl.train(
        job(columns={"tariff": vfl.Categorical(("S", "M"))}, evaluation=vfl.Evaluation(holdout=0.2)),
        table(),
        at="inprocess",
    )
    right, left = ((own.predict(table()) == table()["y"]).mean() for own in (result, line))
    assert right > left + 0.05


def test_knots_that_were_altered_are_found_out(run: tuple[vfl.Result, Path], tmp_path: Path) -> None:
    result, _ = run
    folder = result.save(tmp_path / "run")
    model = json.loads((folder / "model.json").read_text())
    model["knots"]["age"][0] += 1.0
    (folder / "model.json").write_text(json.dumps(model))
    assert "knots" in vfl.Result.load(folder).altered()


def test_parts_hold_the_knots(run: tuple[vfl.Result, Path], tmp_path: Path) -> None:
    result, _ = run
    frame = table().drop(columns="y")
    sources = {"bank": frame[["age", "amount"]], "telco": frame[["calls", "tariff"]]}
    parts = result.save_parts(tmp_path / "parts")
    margins = vfl.predict(parts, sources, at="inprocess").scores
    assert (margins == result.decision_function(frame)).all()


def test_a_shape_holds_with_knots_that_the_run_finds() -> None:
    result = vfl.train(job(vfl.Curve(shape="increasing"), paired=False), table(), at="inprocess")
    frame = table().iloc[:1].drop(columns="y")
    ages = pd.concat([frame.assign(age=age) for age in np.linspace(18, 90, 50)])
    margins = result.decision_function(ages)
    assert (np.diff(margins) >= -1e-12).all()
    assert_placed_alike(result, table())


def assert_placed_alike(result: vfl.Result, frame: pd.DataFrame) -> None:
    """Compare the columns that the bank makes when knots are found with those that it makes for prediction."""
    placed = load(result.applied.for_party("bank"), frame[["age", "amount"]])
    found = load(result.job.for_party("bank"), frame[["age", "amount"]])
    straight = [found.rows.columns.column(j) for j in range(found.rows.columns.n_coordinates)]
    found.rows.place({"bank": tuple(tuple(result.knots[c]) for c in ("age", "amount"))})
    same = [found.rows.columns.column(j).tobytes() == own.tobytes() for j, own in enumerate(straight)]
    assert not all(same)
    for j in range(found.rows.columns.n_coordinates):
        assert found.rows.columns.column(j).tobytes() == placed.rows.columns.column(j).tobytes()


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("age", [vfl.Curve(missing="indicator"), vfl.Curve(fill=30.0), vfl.Curve(pieces=9, fill=90.0)])
def test_a_pair_has_the_same_columns_in_training_and_prediction(age: vfl.Curve, precision: str) -> None:
    """Once, 15 of 16 products differed: they were not made again when the run placed its knots."""
    frame = table()
    frame.loc[::3, "age"], frame.loc[1::7, "age"], frame.loc[2::9, "amount"] = np.nan, 17.0, np.inf
    columns = {"age": age, "amount": vfl.Curve(), "calls": vfl.Curve(), "tariff": vfl.Categorical(("S", "M"))}
    result = vfl.train(job(columns=columns, precision=precision), frame, at="inprocess")
    assert_placed_alike(result, frame)
    assert sum(name.startswith("both=") for name in result.feature_names) == 4
    if precision == "float64":
        pipeline = result.to_sklearn()
        np.testing.assert_allclose(
            pipeline.decision_function(frame.drop(columns="y")), result.decision_function(frame), rtol=0, atol=1e-12
        )


def test_a_missing_cell_has_no_part_in_a_pair() -> None:
    frame = table()
    frame.loc[::3, "age"] = np.nan
    columns = {"age": vfl.Curve(missing="indicator"), "amount": vfl.Curve(), "calls": vfl.Curve()}
    result = vfl.train(job(columns=columns | {"tariff": vfl.Categorical(("S", "M"))}), frame, at="inprocess")
    amounts = pd.concat([frame.iloc[:1].assign(amount=amount) for amount in (0.0, 3e3, 1e5)])
    effect = dict(zip(result.feature_names, result.coef_, strict=True))
    curve = result.applied.schema["amount"]
    made = np.column_stack(list(curve.made(np.array([0.0, 3e3, 1e5]))))
    own = made @ [effect[f"amount~{j}"] for j in range(4)]
    assert np.diff(result.decision_function(amounts)) == pytest.approx(np.diff(own), abs=1e-9)


def test_pairs_at_a_small_budget_are_products_of_lines() -> None:
    small = job(privacy=vfl.Privacy(epsilon=0.005, noise=vfl.SeededNoise(1)))
    constant = 0
    for party, own in {"bank": ["age", "amount"], "telco": ["calls", "tariff", "y"]}.items():
        stored = load(small.for_party(party), table()[own]).rows.columns
        constant += sum(np.ptp(stored.column(j)) == 0.0 for j, name in enumerate(stored.names) if name != "(intercept)")
    assert vfl.plan(small, N).problem.layout.unused == constant == 16


def test_declared_knots_cost_nothing(run: tuple[vfl.Result, Path]) -> None:
    result, _ = run
    assert vfl.plan(result.applied, N).knots is None
    declared = replace(result.applied, privacy=None, evaluation=None)
    assert vfl.train(declared, table(), at="inprocess").certificate.knots == {}


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_run_that_stops_after_its_knots_continues_from_them(after: int, tmp_path: Path) -> None:
    whole = vfl.train(job(), table(), at="inprocess", output=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(event: object) -> None:
        if isinstance(event, Round) and event.number == after - 1:
            raise Stop

    with pytest.raises(Stop):
        vfl.train(job(), table(), at="inprocess", output=tmp_path / "run", watch=stop)
    _, _, log = checkpoint.read(tmp_path / "run", job())
    assert len(log.released) >= after
    kinds: list[str] = []
    resumed = resume(tmp_path / "run", table(), watch=lambda e: kinds.append(getattr(e, "kind", "")))
    assert "Ranges" not in kinds  # no histogram is drawn again
    assert resumed.knots == whole.knots
    assert resumed.coef_.tobytes() == whole.coef_.tobytes()
    assert verify_run(tmp_path / "run").ok


KILLED = """
import os, sys, vfl
from coordinator.rounds import Round
from tests.launch.test_curves import fresh, table
def die(event):
    if isinstance(event, Round) and event.number == 0:
        os.kill(os.getpid(), 9)
vfl.train(fresh(), table(), at="inprocess", output=sys.argv[1], watch=die)
"""


def fresh() -> vfl.Job:
    """Return the job with noise that nobody can repeat."""
    return job(privacy=vfl.Privacy(epsilon=2.0))


def test_a_run_that_is_killed_between_knots_and_training_keeps_its_histograms(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert killed.returncode == -9
    _, _, log = checkpoint.read(folder, fresh())
    (first,) = log.released
    result = resume(folder, table())
    knots = vfl.plan(fresh(), N).knots
    assert knots is not None
    assert first is not None
    assert result.knots == knots.by_column(knots.placed(first))
    assert result.certificate.epsilon <= 2.0
    assert verify_run(folder).ok


@pytest.mark.parametrize(
    "solver", [vfl.solvers.CD(passes=2), vfl.solvers.GD(passes=3), vfl.solvers.SGD(passes=1, batch_size=500)]
)
def test_every_solver_trains_curves_within_its_budget(solver: Any) -> None:
    result = vfl.train(job(solver=solver), table(), at="inprocess")
    assert result.knots["age"]
    assert result.certificate.epsilon <= 2.0


@pytest.mark.parametrize("solver", [vfl.solvers.GD(passes=2), vfl.solvers.NoisyGram()])
def test_a_party_on_shares_that_loads_again_gets_the_knots_with_its_session(
    solver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    squared = {"loss": "squared", "bounds": BOUNDS | {"y": (0, 1)}} if isinstance(solver, vfl.solvers.NoisyGram) else {}
    spec = job(solver=solver, trust="secure", **squared)
    whole = vfl.train(spec, table(300), at="inprocess")
    assert whole.knots["age"]
    request = Party.request

    def after_a_restart(self: Party, asked: Any, ciphertexts: Any) -> Any:
        if isinstance(asked, Begin):
            curves = self.rows.columns.curves
            curves.fixed = False
            curves.place(((),) * len(curves.own), self.rows.columns.array, fixes=False)
        return request(self, asked, ciphertexts)

    monkeypatch.setattr(Party, "request", after_a_restart)
    assert vfl.train(spec, table(300), at="inprocess").coef_.tobytes() == whole.coef_.tobytes()


def test_a_small_budget_fits_straight_lines_and_releases_no_histogram() -> None:
    small = job(privacy=vfl.Privacy(epsilon=0.005, noise=vfl.SeededNoise(1)))
    plan = vfl.plan(small, N)
    assert "straight lines" in plan.explain()
    assert not any(event.sensitivity == math.sqrt(6) for event, _ in plan.releases)  # type: ignore[attr-defined]
    result = vfl.train(small, table(), at="inprocess")
    assert dict(result.knots) == dict.fromkeys(["age", "amount", "calls"], ())
    bent = vfl.plan(job(vfl.Curve(pieces=3), privacy=vfl.Privacy(epsilon=0.005)), N)
    assert bent.knots is not None
    assert bent.knots.bent  # declared pieces hold at any budget


def test_the_party_refuses_a_histogram_with_less_noise_than_its_sensitivity() -> None:
    """A record in another cell of each of two columns moves the joint histogram by √4."""
    party = load(job(privacy=vfl.Privacy(epsilon=1.0)).for_party("bank"), table()[["age", "amount"]])
    weak = Gaussian(Adjacency.REPLACE_ONE, 1.9, 10.0, 80)
    with pytest.raises(PrivacyError):
        party.answer(Ranges({"bank": (0, 1)}, 40, weak, of_curves=True), Records(), ReleaseKey(0))
    for odd in (Ranges({"bank": (2,)}, 40, weak, of_curves=True), Ranges({"bank": (0,)}, 10**9, weak, of_curves=True)):
        with pytest.raises(PrivacyError, match="histogram"):
            party.answer(odd, Records(), ReleaseKey(0))
    assert event_for(2, 1.0, N).sensitivity >= 2.0
    edges = edges_of((0.0, 1.0), 40)
    one, other = (histogram(np.array([0.5, value]), edges) for value in (0.0, 1.0))
    assert math.hypot(*(one - other)) == math.sqrt(2.0)


def test_knots_that_no_declaration_allows_are_refused() -> None:
    party = load(job().for_party("bank"), table()[["age", "amount"]])
    query = Ranges({"bank": (0,)}, 40, None, of_curves=True)
    good = (30.0, 40.0)
    for knots in (
        (good,),
        ((30.0,), ()),
        (good, (1.0, 2e5)),
        (good, (-1.0, 2.0)),
        ((40.0, 30.0), ()),
        ((30.0, 30.0), ()),
        ((30.0, math.nan, 40.0), ()),
        ((30.0, math.inf), ()),
        ((20.0, 30.0, 40.0, 50.0, 60.0, 70.0), ()),
    ):
        with pytest.raises(PrivacyError, match="knots"):
            party.rows.sums(replace(query, knots={"bank": knots}), Records())


@pytest.mark.parametrize("first", [None, ((30.0, 40.0), (1.0, 2.0))])
def test_knots_cannot_change_once_columns_were_read(first: Any) -> None:
    """Otherwise the cap on a record would rest on norms of other columns."""
    party = load(job().for_party("bank"), table()[["age", "amount"]])
    counts = Ranges({"bank": (0,)}, 40, None, of_curves=True)
    norms = RecordNorms({"bank": (Block(0, "bank", 0, 8, 0), np.zeros(8), np.ones(8))})
    party.rows.sums(counts, Records())
    given = None if first is None else {"bank": first}
    read = party.rows.vector(replace(norms, knots=given), Records())
    assert (party.rows.vector(replace(norms, knots=given), Records()) == read).all()
    with pytest.raises(PrivacyError, match="knots"):
        party.rows.vector(replace(norms, knots={"bank": ((40.0, 50.0), (1.0, 2.0))}), Records())
    with pytest.raises(PrivacyError, match="knots"):
        party.rows.sums(replace(counts, knots={"bank": ((40.0, 50.0), (1.0, 2.0))}), Records())


def test_knots_lie_at_quantiles_and_in_a_long_tail() -> None:
    curve = vfl.Curve(bounds=(0.0, 1000.0))
    found = Knots({"bank": (("x", curve),)}, 10_000, LINE, None)
    uniform = histogram(np.linspace(0, 1000, 10_000), edges_of((0.0, 1000.0), found.cells)).astype(float)
    assert found.placed((uniform,))["bank"][0] == pytest.approx((0, 250, 500, 750, 1000), abs=5)
    tail = np.concatenate([np.linspace(0, 100, 9_500), np.linspace(100, 1000, 500)])
    low = histogram(tail, edges_of((0.0, 1000.0), found.cells)).astype(float)
    assert found.placed((low,))["bank"][0] == pytest.approx((0, 53, 112, 290, 1000), abs=5)
    for odd in (np.zeros(160), np.full(160, -5.0), np.full(160, np.nan)):
        knots = found.placed((odd,))["bank"][0]
        curve.at(knots)
    narrow = Knots({"bank": (("x", vfl.Curve(bounds=(1e9, 1e9 + 1))),)}, 10, LINE, None)
    for cells in ([3, 90], [0], list(range(160))):
        odd = np.zeros(160)
        odd[cells] = 5.0
        vfl.Curve(bounds=(1e9, 1e9 + 1)).at(narrow.placed((odd,))["bank"][0])


def test_missing_cells_have_no_part_in_a_curve() -> None:
    frame = table()
    frame.loc[frame.index % 3 == 0, "age"] = np.nan
    columns = {"age": vfl.Curve(missing="indicator"), "tariff": vfl.Categorical(("S", "M"))}
    result = vfl.train(job(columns=columns, paired=False), frame, at="inprocess")
    gaps, at_zero = frame.iloc[:1], frame.iloc[:1].assign(age=18.0)
    names = [name for name in result.feature_names if name.startswith("age")]
    effect = dict(zip(result.feature_names, result.coef_, strict=True))
    moved = result.decision_function(gaps) - result.decision_function(at_zero)
    assert moved[0] == pytest.approx(effect["age=(missing)"], abs=1e-9)
    assert names == ["age~0", "age~1", "age~2", "age~3", "age=(missing)"]


def test_estimators_fit_curves() -> None:
    frame = table()[["age", "amount", "calls"]]
    model = vfl.sklearn.VerticalLogisticRegression(epsilon=None, curves=True, bounds=BOUNDS).fit(frame, table()["y"])
    line = vfl.sklearn.VerticalLogisticRegression(epsilon=None, bounds=BOUNDS).fit(frame, table()["y"])
    assert model.score(frame, table()["y"]) > line.score(frame, table()["y"]) + 0.05
    assert model.coef_.shape == (1, 12)
    with pytest.raises(SpecificationError, match="curves need"):
        vfl.sklearn.VerticalLogisticRegression(epsilon=None, curves=True).fit(frame, table()["y"])


def test_mistakes() -> None:
    with pytest.raises(SpecificationError, match=r"vfl\.Curve"):
        job(columns={"*": vfl.Numeric(), "tariff": vfl.Categorical(("S", "M"))})
    start = vfl.train(job(), table(), at="inprocess")
    with pytest.raises(SpecificationError, match=r"Result\.knots"):
        vfl.train(job(), table(), at="inprocess", warm_start=start)
    list(stream(start.applied, table(), at="inprocess", warm_start=start))
    with pytest.raises(SpecificationError, match="sparse"):
        job(partition=PAIRED.changed(sparse=["bank"]), bounds=BOUNDS | {"age": (0, 90)})


def test_selections_share_the_zcdp_budget_with_the_knots(tmp_path: Path) -> None:
    """GCD is accounted by zCDP: ρ of the knots, the moments, the selections and the steps together is what (ε, δ) allows."""
    spec, seen = job(solver=vfl.solvers.GCD(rounds=5)), list[Any]()
    plan = vfl.plan(spec, N)
    spent = sum(rho(event) * count for event, count in plan.releases)
    assert 1 - 1e-9 < spent / Fraction(rho_of(2.0, N**-2)) <= 1
    result = vfl.train(spec, table(), at="inprocess", output=tmp_path / "run", watch=seen.append)
    charged = [event for found in seen if isinstance(found, Round) for event in found.events]
    assert sorted(map(repr, charged)) == sorted(repr(event) for event, count in plan.releases for _ in range(count))
    assert result.certificate.epsilon <= 2.0
    assert list(result.knots) == ["age", "amount", "calls"]
    assert verify_run(tmp_path / "run").ok
    with pytest.raises(PrivacyError, match="smoothness_share"):
        vfl.plan(job(solver=vfl.solvers.GCD(), privacy=replace(SEEDED, smoothness_share=0.95)), N)


def test_records_in_another_order_are_aligned_with_the_cells_that_wait_for_knots() -> None:
    data = table(600).assign(id=np.arange(600))
    bank, telco = data[["id", "age", "amount"]], data[["id", "calls", "tariff", "y"]]
    mixed = bank.sample(frac=1.0, random_state=1)
    first, second = (vfl.train(job(id="id"), {"bank": own, "telco": telco}, at="inprocess") for own in (bank, mixed))
    assert second.knots == first.knots
    assert second.coef_.tobytes() == first.coef_.tobytes()


def test_organisations_find_the_same_knots_and_model(tmp_path: Path) -> None:
    spec, data = job(evaluation=vfl.Evaluation(holdout=0.2)), table(600)
    here = vfl.train(spec, data, at="inprocess")
    with federation(tmp_path) as joined:
        for name, source in sources_of(spec, data).items():
            joined.start(name, source)
        there = vfl.train(spec, at=joined.place)
        measured = vfl.evaluate(there, at=joined.place)
    assert there.knots == here.knots
    assert there.coef_.tobytes() == here.coef_.tobytes()
    assert str(there.findings["held out"]) == str(here.findings["held out"])
    assert str(measured.measures["auc"]) == str(vfl.evaluate(here, data).measures["auc"])


def test_ray_finds_the_same_knots_and_model(parties_on_ray: SharedParties) -> None:
    """Curves in row shards: tests/coordinator/test_shards.py."""
    spec, data = job(evaluation=vfl.Evaluation(holdout=0.2)), table(600)
    here, there = vfl.train(spec, data, at="inprocess"), parties_on_ray.train(spec, data)
    assert there.knots == here.knots
    assert there.w.tobytes() == here.w.tobytes()
    assert str(there.findings["held out"]) == str(here.findings["held out"])
