"""The study of DP-SkGD: same ε and same messages in all arms, rows that say how they came about, a page drawn from them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import vfl
from coordinator.coordinator import Coordinator
from tests.benchmarks import study, study_page
from tests.benchmarks.results import Result, Settings
from tests.benchmarks.study_theory import Constants
from vfl.planning import plan

TRIPS = 17


@pytest.fixture(scope="module")
def bench():
    return study.Bench("tiny", study.stand_in(0.5, n=400), (1, 2, None))


@pytest.fixture(scope="module")
def synthetic():
    return Constants.of(
        plan(study.stand_in(0.0, n=400).job, 400).problem,
        np.diag([1.0, 2.0, 4.0, 8.0, 1.0, 1.0, 1.0, 1.0]).repeat(50, axis=0),
        np.tile([-1.0, 1.0], 200),
        np.zeros(8),
    )


class Counting:
    """Counts the messages that a transport carries."""

    def __init__(self, transport):
        self._transport, self.asked = transport, 0

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def ask(self, *given):
        self.asked += 1
        return self._transport.ask(*given)


def every_arm(sizes=(1, 2, None)):
    yield from ((arm, None) for arm in study.arms(sizes))
    yield from ((arm, TRIPS) for arm in study.arms_at(TRIPS, sizes, 8))


@pytest.mark.parametrize(("arm", "trips"), list(every_arm()), ids=lambda value: getattr(value, "name", str(value)))
def test_every_arm_spends_the_same_and_makes_the_messages_that_are_counted(bench, arm, trips):
    few = {k: v for k, v in {"passes": 2, "rounds": 4, "epochs": 2}.items() if k in arm.start}
    job = bench.job(arm, 1.0, 1, **arm.start | few)
    planned = plan(job, bench.case.n)
    assert 0.99 < planned.epsilon <= 1.0
    assert planned.problem.delta == 400.0**-2
    carrier = Counting(bench.transport(job))
    list(Coordinator(carrier).stream(job))
    if arm.fixed.get("sampling") != "importance":  # its visits are planned for equal M
        assert carrier.asked == planned.messages
    if trips is not None:
        assert TRIPS - 1 <= carrier.asked <= TRIPS


def test_more_messages_are_the_same_for_all(bench):
    for trips in study.TRIPS:
        for arm in study.arms_at(trips, bench.sizes, 8):
            planned = plan(bench.job(arm, 1.0, 1, **arm.start), bench.case.n)
            assert trips - 1 <= planned.messages <= trips, arm.name


def test_a_row_says_how_it_came_about(bench):
    arm = next(a for a in study.arms(bench.sizes) if a.name == "shuffled party")
    row = study.measure(bench, arm, 10.0, (1, 2, 3))
    assert not set(row.seeds) & set(study.SEARCH_SEEDS)
    assert len(set(row.values)) == 3
    assert row.mean < row.beside["start"]
    assert row.beside["epsilon spent"] <= row.at["epsilon"]
    assert row.beside["tried"] > 5
    assert row.tuned == "oracle grid"
    assert row.settings["passes"] in study.PASSES
    assert row.settings["block_size"] == "party"


def test_without_noise_what_is_left_is_the_price_of_order_and_steps(bench):
    left = {r.measure.removeprefix("without noise, "): r.mean for r in study.errors_without_noise(bench)}
    assert set(left) <= {arm.name for arm in study.arms(bench.sizes)}
    assert left["shuffled 1"] < 1e-6
    assert left["full party"] > left["shuffled party"]
    assert left["importance 1"] > 100 * left["uniform 1"]


def test_names_are_unique_and_known():
    for sizes in ((1, 2, None), (1, 2, 4, None)):
        there = [arm.name for arm in study.arms(sizes)]
        assert len(there) == len(set(there))
        assert set(study.CORE) <= set(there)
    tasks = [task.name for task in study.tasks(Settings(quick=True))]
    assert len(tasks) == len(set(tasks))


def test_constants_on_orthogonal_columns(synthetic):
    """H is M up to the ridge: every column contracts by itself, so the rate is the least probability."""
    np.testing.assert_allclose(synthetic.M, [1 / 32, 4 / 32, 16 / 32, 64 / 32, 1 / 32, 1 / 32, 1 / 32, 1 / 32])
    ridge = 1 / 400
    assert synthetic.gap(np.full(8, 1 / 8)) == pytest.approx((1 + ridge / 2) / 8)
    said = replace(synthetic, w=np.ones(8)).described()
    assert said["importance, bound"] == pytest.approx(8 * 64 / 89)
    assert said["importance, gap"] == pytest.approx(8 / 89 * (1 + 32 * ridge) / (1 + ridge / 2))
    assert said["slack of a party"] == pytest.approx(4.0)
    first = (1 + 4 + 16 + 64) * (1 + 1 / 4 + 1 / 16 + 1 / 64)
    assert said["isotropic over scaled, party"] == pytest.approx((first + 16) / 32)


def test_the_share_that_a_clip_cuts(synthetic):
    """At w = 0 every |r| is ½: a row is |r x|/√M = ½·√(8·4) on its one column, and 0 on the others."""
    tight, loose = vfl.SkGD(block_size=1, clip=2.8), vfl.SkGD(block_size=1, clip=2.9)
    assert synthetic.clipped(tight) == pytest.approx(1 / 8)
    assert synthetic.clipped(loose) == 0.0
    capped = vfl.SkGD(clip="record", details=vfl.solvers.Details(record_clip=2.9 / np.sqrt(8.0)))
    assert synthetic.clipped(capped) == 0.0
    assert synthetic.clipped(capped.changed(record_clip=2.8 / np.sqrt(8.0))) == 1.0


def rows():
    for case in ("a", "b"):
        for name in ("importance, bound", "isotropic over scaled, party", "SGD over CD, convex"):
            yield Result(part="study", case=case, arm="bounds", measure=name, values=(2.0,), less=None)
        for epsilon in (0.1, 1.0, 10.0):
            for arm, _ in every_arm():
                yield row(case, arm.name, {"epsilon": epsilon})
        yield from (row(case, arm.name, {"epsilon": 1.0, "trips": 17}) for arm in study.arms_at(17, (1, 2, None), 8))


def row(case, arm, place):
    error = 0.1 / place["epsilon"]
    beside = {"start": 3.0, "epsilon spent": place["epsilon"], "messages": 17, "releases": 16, "tried": 9}
    return Result(
        part="study", case=case, arm=arm, measure="(F − F*)/F*", values=(error, 2 * error), seeds=(1, 2), tuned="oracle grid",
        at=place, settings={"clip": 2.0, "passes": 40}, beside=beside,
    )  # fmt: skip


def test_the_page_is_written_between_its_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(study_page, "draw", lambda folder, found: [])
    page = tmp_path / "study.md"
    page.write_text("before\n<!-- study why -->\nold\n<!-- end -->\nafter\n<!-- study arms -->\n<!-- end -->\n")
    study_page.write(page, rows())
    written = page.read_text(encoding="utf-8")
    assert "old" not in written
    assert "\nafter\n" in written
    assert "| shuffled 1 | 0.15 ± 0.07 | 0.15 ± 0.07 |" in written
    assert "| a | 2 | – | – |" in written
    assert " | -1 | -1 | -1 |" in written
    kept = json.loads((tmp_path / "study" / "results.json").read_text(encoding="utf-8"))
    assert len(kept) == len(list(rows()))
    study_page.write(page, rows())
    assert page.read_text(encoding="utf-8") == written


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "other.md"
    page.write_text("words\n")
    study_page.write(page, rows())
    assert [path.name for path in tmp_path.iterdir()] == ["other.md"]


def test_predictions_beside_what_was_measured():
    said = study_page.predictions(study_page.Found(rows()))
    assert said["importance / uniform"] == [("a", 0.5, 1.0), ("b", 0.5, 1.0)]


def test_plots_are_small(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = study_page.draw(tmp_path, study_page.Found(rows()))
    assert len(drawn) == 4
    assert all(1_000 < path.stat().st_size < 60_000 for path in drawn)
