"""Whole runs on neighbours that differ in all rows of one person: no path loses more than the charges."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

import vfl
from coordinator.rounds import Round
from tests.neighbours import harness
from tests.neighbours.losses import Loss
from tests.neighbours.setting import BOUNDS, ENDS, job
from tests.neighbours.test_solvers import DEAR, TRIED, WITHIN, how
from tests.persons.setting import aligned_by_hand
from vfl.launch.run import execution
from vfl.solvers.rules import intervals

if TYPE_CHECKING:
    from pathlib import Path

    from tests.neighbours.harness import Comparison

N, PERSON, MOST = 12, 3, 5
EVALUATION = vfl.Evaluation(holdout=0.4)
COLUMNS = {"bank": ("a", "b"), "telco": ("c", "y")}
REFUSED = ("SCD", "NoisyGram", "SkGD-record-local")
NAMES = [
    *(name for name in TRIED if not name.startswith(REFUSED)),
    *(pytest.param(name, marks=pytest.mark.slow) for name in DEAR if not name.startswith(REFUSED)),
]


def world(
    k: int, low: bool, loss: str = "logistic", *, mixed: bool = False, n: int = N, end: bool | None = None
) -> Any:
    """Return tables and persons. The chosen person has k rows at one end of all bounds; `mixed` puts rows at both ends.

    end : the end of the columns, if it differs from that of the label.
    """
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(n), rng.integers(1, MOST + 1, n))
    bank = {"id": np.arange(n), **{name: rng.uniform(-1, 1, n) for name in "ab"}}
    y = rng.uniform(*ENDS[loss], person.size)
    telco = {"id": person, "c": rng.uniform(-1, 1, person.size), "y": np.rint(y) if ENDS[loss] == (0, 1) else y}
    lows = np.where((np.arange(k) % 2 == 1) & mixed, not low, low)
    at = lows if end is None else np.full(k, end)
    own = {"id": np.full(k, PERSON), "c": np.where(at, -1e9, 1e9), "y": np.where(lows, *ENDS[loss])}
    start, stop = np.searchsorted(person, [PERSON, PERSON + 1])
    telco = {name: np.concatenate([cells[:start], own[name], cells[stop:]]) for name, cells in telco.items()}
    for name in "ab":
        bank[name][PERSON] = -1.0 if at[0] else 1.0
    return {"bank": bank, "telco": telco}, telco["id"]


PAIRS: dict[str, Any] = {
    "one to most": lambda loss, **n: (world(1, True, loss, **n), world(MOST, False, loss, **n)),
    "one to most, turned": lambda loss, **n: (
        world(1, True, loss, end=True, **n),
        world(MOST, False, loss, end=True, **n),
    ),
    "most to one": lambda loss, **n: (world(MOST, True, loss, mixed=True, **n), world(1, True, loss, **n)),
    "most to fewer": lambda loss, **n: (world(MOST, False, loss, **n), world(3, True, loss, **n)),
}


def several(asked: vfl.Job) -> vfl.Job:
    return replace(asked, id=vfl.columns.Id("id", most_rows=MOST))


def compared(asked: vfl.Job, pair: Any, run: Any = harness.train, **options: Any) -> Comparison:
    def train(job: vfl.Job, source: Any, folder: Path) -> None:
        data, person = source.data
        policies = source.policy or {}
        with aligned_by_hand(person, int(person.max()) + 1):
            run(job, {party: vfl.Source(table, policies.get(party)) for party, table in data.items()}, folder)

    return harness.compare(several(asked), *pair, run=train, **options)


@pytest.mark.usefixtures("encoded")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", NAMES)
def test_a_path_loses_no_more_than_the_charges(name: str, pair: str) -> None:
    found = compared(job((TRIED | DEAR)[name]), PAIRS[pair]("logistic"), run=how(name), seed=WITHIN)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert 0 < found.path <= found.charged


@pytest.mark.parametrize("pair", PAIRS)
def test_ids_that_are_aligned_lose_no_more_than_the_charges(pair: str) -> None:
    """Of all files, only the label party's own list of its aligned rows differs."""

    def train(job: vfl.Job, source: Any, folder: Path) -> None:
        with mock.patch.object(execution, "check"):
            harness.train(job, {party: vfl.Source(table) for party, table in source.data[0].items()}, folder)

    asked = job(vfl.SkGD(passes=2), evaluation=EVALUATION)
    found = harness.compare(several(asked), *PAIRS[pair]("logistic"), run=train, seed=WITHIN)
    assert found.raised == (None, None)
    (own,) = found.differing
    assert own.endswith(".index")
    assert found.complaints == (f"{own} differs",)
    assert 0 < found.path <= found.charged


JOBS: dict[str, Any] = {
    **{
        loss: lambda loss=loss: job(vfl.SkGD(passes=2), loss)
        for loss in ("squared", "huber", "poisson", "smoothed_hinge")
    },
    "held out": lambda: job(vfl.SkGD(passes=2), evaluation=EVALUATION),
    "held out, errors": lambda: job(vfl.SkGD(passes=2), "poisson", evaluation=EVALUATION),
    "subsamples": lambda: job(vfl.SkGD(passes=2), intervals="subsamples", penalty=vfl.penalties.NoPenalty()),
    "moments": lambda: job(vfl.solvers.GD(passes=2), privacy={"smoothness": "private"}),
    "classes": lambda: job(vfl.SkGD(passes=2), evaluation=vfl.Evaluation(holdout=None, class_balance=0.1)),
    "curves": lambda: job(vfl.SkGD(passes=2), columns={"*": vfl.columns.Curve()}),
    "fairness": lambda: replace(
        job(vfl.SkGD(passes=2)),
        columns={"g": vfl.Boolean()},
        partition=vfl.FeaturePartition(
            {"bank": ("a", "b"), "telco": ("c",)}, label=("telco", "y"), groups={"telco": ["g"]}
        ),
        evaluation=vfl.Evaluation(holdout=0.4, fairness=vfl.Fairness(group="g", bound=False)),
    ),
}


@pytest.mark.usefixtures("encoded")
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", JOBS)
def test_a_release_loses_no_more_than_the_charges(name: str, pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("LEAST", "SETTLED", "SETTLED_CURVED"):  # standard errors of few persons
        monkeypatch.setattr(intervals, limit, 1e-9)
    asked = JOBS[name]()
    pair_of = PAIRS[pair](asked.loss, n=96 if asked.subsampled else N)
    if name == "fairness":
        for number, (data, person) in enumerate(pair_of):
            data["telco"]["g"] = (person + number * (person == PERSON)) % 2
    found = compared(asked, pair_of, seed=WITHIN)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert 0 < found.path <= found.charged


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(passes=2),
        vfl.SkGD(passes=4, clip="record", details=vfl.solvers.Details(reserve_passes=2)),
        vfl.solvers.GCD(rounds=3),
        vfl.solvers.SGD(sampling="disjoint", batch_size=4, passes=1),
    ],
    ids=lambda solver: solver.name,
)
def test_a_lost_attempt_is_paid_for(solver: Any, moment: str) -> None:
    losses = [
        Loss(party, number, moment) for party, numbers in (("bank", (2, 4)), ("telco", (3, 5))) for number in numbers
    ]
    found = compared(job(solver), PAIRS["one to most, turned"]("logistic"), losses=losses)
    assert found.raised == (None, None)
    assert found.complaints == ()


@pytest.mark.parametrize("after", [2, 6])
def test_a_resumed_run_is_the_whole_run(after: int, tmp_path: Path) -> None:
    data, person = world(MOST, True)
    noise = {"noise": vfl.SeededNoise(3)}
    asked = several(job(vfl.SkGD(passes=3, clip="record"), evaluation=EVALUATION, privacy=noise))

    class StopError(Exception):
        pass

    def stop(event: object) -> None:
        if isinstance(event, Round) and event.number == after:
            raise StopError

    with aligned_by_hand(person, N):
        whole = vfl.train(asked, data, at="inprocess")
        with pytest.raises(StopError):
            vfl.train(asked, data, at="inprocess", output=tmp_path / "run", watch=stop)
        assert vfl.resume(tmp_path / "run", data).original == whole.original


def test_bounds_are_those_of_records() -> None:
    assert several(job(vfl.SkGD())).schema.to_dict() == job(vfl.SkGD(), bounds=BOUNDS).schema.to_dict()
