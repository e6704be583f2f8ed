"""A one-time release is one row: charges, the plan's messages and sentences, and the budget of the passes follow from it."""

from __future__ import annotations

import numpy as np
import pytest

import vfl
from tests.solvers import setting
from vfl.errors import BudgetExceeded, JobFileError, SpecificationError
from vfl.job.file import read, write
from vfl.planning import plan
from vfl.privacy.calibration import noise_multiplier
from vfl.queries import Descend, Query, Tally
from vfl.queries.statistics import Positives
from vfl.solvers.blocks import shares
from vfl.solvers.releases.labels import noised
from vfl.solvers.releases.once import OneTime, Phase

SHARE = 0.25


@pytest.mark.parametrize("phase", Phase)
def test_a_row_is_planned_charged_and_made_in_its_phase(phase: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, seen, found = shares.table, [], []

    def make(run, events):
        (released,) = yield Tally(Positives(), *events)
        found.append(released)

    def events(mu):
        return (noised(Positives(), noise_multiplier(mu, 1)),)

    row = OneTime(phase, SHARE, events, make, said="number of positive labels.")
    spec = setting.job(vfl.SkGD(passes=6), epsilon=2.0)
    n = len(setting.table("logistic")["y"])
    before = plan(spec, n)
    trips, epsilon = before.messages, before.epsilon
    for module in (shares, vfl.solvers.skgd):
        monkeypatch.setattr(module, "table", lambda *given: (*rows(*given), row))
    after = plan(spec, n)
    assert after.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert after.epsilon <= 2.0
    assert after.messages == trips + 1
    assert row.said in after.solver.explain(after.problem)
    result = vfl.train(spec, setting.table("logistic"), at="inprocess", watch=seen.append)
    assert dict(result.certificate.events) == {event: count for event, count in after.releases if count}
    assert len(found) == 1
    kinds = [event.kind for event in seen if type(event).__name__ == "Round"]
    at, passes = len(kinds) - 1 - kinds[::-1].index("Tally"), [k for k, kind in enumerate(kinds) if kind == "Descend"]
    assert (at > passes[0], at > passes[-1]) == {
        Phase.START: (False, False), Phase.FIRST: (False, False), Phase.BETWEEN: (True, False), Phase.END: (True, True),
    }[phase]  # fmt: skip
    assert np.isfinite(result.w).all()


@pytest.mark.parametrize(
    ("phase", "refused"),
    [
        (Phase.END, Descend),
        (Phase.START, Tally),
        (Phase.FIRST, Tally),
        (Phase.BETWEEN, Tally),
        (Phase.END, Tally),
    ],
)
def test_a_run_without_budget_asks_nothing_more(
    phase: Phase, refused: type[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(run, events):
        yield Tally(Positives(), *events)
        raise AssertionError

    row = OneTime(phase, SHARE, lambda mu: (noised(Positives(), noise_multiplier(mu, 1)),), make)
    monkeypatch.setattr(shares, "table", lambda *_: (row,))
    schedule = plan(setting.job(vfl.SkGD(passes=2), epsilon=2.0), 100).schedule()
    query = next(schedule)
    while not isinstance(query, refused):
        query = schedule.send(tuple(map(np.zeros, query.sizes())))
    with pytest.raises(StopIteration) as ended:
        schedule.throw(BudgetExceeded("an earlier process paid twice"))
    assert np.isfinite(ended.value.value[0]).all()


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(),
        vfl.SkGD(clip="coordinate"),
        vfl.solvers.CD(),
        vfl.solvers.GCD(),
        vfl.solvers.GD(),
        vfl.solvers.SGD(sampling="disjoint"),
        vfl.solvers.SVRG(sampling="disjoint"),
        vfl.solvers.SCD(sampling="disjoint"),
    ],
)
def test_a_run_that_can_pay_for_nothing_ends_where_it_starts(solver) -> None:
    """Lost attempts may use up the budget before the moments or the start of the intercept."""
    planned = plan(setting.job(solver, epsilon=2.0, intercept=True), 300)
    schedule = planned.schedule()

    def run() -> None:
        query = next(schedule)
        while True:
            if any(event is not None for event in query.events()):
                query = schedule.throw(BudgetExceeded("an earlier process paid for releases that were lost"))
            else:
                query = schedule.send(tuple(map(np.zeros, query.sizes())))

    with pytest.raises(StopIteration) as ended:
        run()
    np.testing.assert_array_equal(ended.value.value.w, planned.problem.begin)


def test_details_travel_in_job_files_and_digests_only_if_they_are_given(tmp_path) -> None:
    spec = setting.job(vfl.SkGD(passes=6), epsilon=2.0)
    given = setting.job(vfl.SkGD(passes=6, details=vfl.solvers.Details(label_share=0, record_clip=0.5)), epsilon=2.0)
    empty = setting.job(vfl.SkGD(passes=6, details=vfl.solvers.Details()), epsilon=2.0)
    assert empty.digest == spec.digest != given.digest
    assert "details" not in spec.to_toml()
    write(given, tmp_path / "job.toml")
    assert read(tmp_path / "job.toml")[0] == given
    text = spec.to_toml().replace("[solver]", "[solver]\nlabel_share = 0.0")
    (tmp_path / "old.toml").write_text(text)
    with pytest.raises(JobFileError, match=r"unknown key 'label_share'.*\[solver.details\]"):
        read(tmp_path / "old.toml")


def test_details_are_one_object() -> None:
    with pytest.raises(SpecificationError, match=r"details must be vfl.solvers.Details"):
        vfl.SkGD(details={"label_share": 0.0})
