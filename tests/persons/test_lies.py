"""Vectors with an entry per row: false lengths and false persons are refused, and rows stay within the cap of a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.states.linear_predictors import LinearPredictors
from parties.rows import PersonRows, Rows
from parties.storage.dense import Columns
from parties.storage.sparse import SparseBlock, SparseColumns
from tests.persons.setting import job
from vfl.base.holdout import Side
from vfl.base.losses import LOSSES
from vfl.base.persons import UNITS, Persons, RowRule, kept_rows
from vfl.base.problem import Block, Targets
from vfl.errors import PlacementError, PrivacyError, SpecificationError
from vfl.job.file import read
from vfl.launch.sites.open_site import require_fit
from vfl.privacy import magnitudes
from vfl.privacy.geometry import Clip
from vfl.queries import (
    Backward,
    Counts,
    Descend,
    Forward,
    Moments,
    Ranges,
    RecordCap,
    RecordNorms,
    Records,
    Reply,
    Select,
    Step,
    Tally,
)
from vfl.queries.protocol import Derivative
from vfl.queries.rules import ProxStep
from vfl.queries.statistics import Outcomes

RULE = RowRule("telco", 4)
TARGETS = Targets(rows=RULE)
PERSON = np.array([0.0, 1.0, 2.0, 0.0, 2.0, 2.0])


def persons(person: Any = PERSON) -> Persons:
    found = Persons.of(person, 3, RULE)
    return found.taken(found.order)


def sent(person: Any, room: int = 12) -> Any:
    """Return labels as the label party sends them: of each row, then the rows' persons, both padded."""
    both = np.full((2, room), -1.0)
    both[0], both[1, : len(person)] = 1.0, person
    return both.ravel()


SORTED = persons().person
FALSE = {
    "a person that is not among N": sent([*SORTED[:-1], 3]),
    "a person without a row": sent([0, 0, 2, 2, 2]),
    "too many rows": sent([1, 0, 2, 2, 2, 2, 2]),
    "a gap": sent([*SORTED[:3], -1, *SORTED[3:]]),
    "half a person": sent([*SORTED[:-1], 1.5]),
    "no number": sent([*SORTED[:-1], np.nan]),
    "too short": sent(SORTED, 10),
    "too long": sent(SORTED, 24),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_label_party_lies_about_persons(name: str) -> None:
    with pytest.raises(PrivacyError) as refused:
        LinearPredictors(FALSE[name], targets=TARGETS, n_records=3)
    assert not any(digit in str(refused.value).replace("1 to 4", "") for digit in "0123456789")
    assert LinearPredictors(sent(SORTED), targets=TARGETS, n_records=3).counts == (3,)


def test_vectors_of_another_length() -> None:
    state = LinearPredictors(sent(SORTED), targets=TARGETS, n_records=3)
    query = Forward({"bank": (Block(0, "bank", 0, 1, 0), np.zeros(1))})
    for party, size in (("bank", 4), ("bank", 6), ("telco", 3), ("telco", 6), ("telco", 24)):
        with pytest.raises(PrivacyError):
            state.take(query, {"bank": Reply(vector=np.zeros(3)), party: Reply(vector=np.zeros(size))})
    state.take(query, {"bank": Reply(vector=np.arange(3.0)), "telco": Reply(vector=np.zeros(12))})
    assert state.state()[0].tolist() == SORTED.tolist()
    assert (
        state.records(Backward(Derivative(vfl.losses.Logistic()), (), (), (), Clip(1.0, 1), None)).of("bank")
        is not None
    )


def columns(n: int, kind: str = "dense") -> Any:
    X = np.random.default_rng(0).normal(size=(n, 2)) * 3
    if kind == "sparse":
        rows = np.tile(np.arange(n), 2).astype(np.int32)
        block = SparseBlock.of(X.T.ravel().copy(), rows, np.array([0, n, 2 * n]), n)
        return SparseColumns(block, ("c", "d"))
    return Columns(np.asfortranarray(X, np.float32 if kind == "float32" else np.float64), ("c", "d"))


def backward(cap: float = 0.5, K: int = 1) -> Backward:
    block = Block(0, "telco", 0, 2 * K, 0)
    return Backward(
        Derivative(vfl.losses.Squared()), (block,), (np.zeros(2 * K),), (np.ones(2 * K),), Clip(cap, 2 * K), None
    )


def test_a_coordinator_sends_residuals_of_any_size() -> None:
    """The sum of all rows moves by no more than N contributions of records, in steps of the divided grid."""
    rows = PersonRows("telco", columns(6), np.ones(6), persons())
    for r in (1e300, np.inf, np.nan, -1e9):
        (sums,) = rows.sums(backward(), Records(np.full(12, r)))
        assert np.linalg.norm(sums / UNITS * Clip(0.5, 2).grid) <= 3 * 0.5 * (1 + 1e-5)
    for size in (3, 6, 24):
        with pytest.raises(PrivacyError):
            rows.sums(backward(), Records(np.ones(size)))


def test_a_coordinator_asks_for_steps_one_after_another() -> None:
    rows = PersonRows("telco", columns(6), np.ones(6), persons())
    step = Step(
        Block(0, "telco", 0, 1, 0),
        np.zeros(1),
        np.ones(1),
        Clip(0.5, 1),
        ProxStep(np.ones(1), np.zeros(1), vfl.L2(0.1)),
        None,
    )
    query = Descend(Derivative(vfl.losses.Logistic()), {"telco": (step,)}, {"telco": np.zeros(2)})
    given = Records(margins=np.zeros(12), labels=np.ones(12))
    for ask in (rows.enter, rows.vector, rows.sums):
        with pytest.raises(PrivacyError):
            ask(query, given)


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("kind", ["dense", "float32", "sparse"])
def test_a_row_adds_the_same_alone_and_among_others(kind: str, K: int) -> None:
    """Otherwise another number of rows of one person would change what later rows add."""
    n = 41
    X, r = columns(n, kind), np.random.default_rng(1).normal(size=(K, n))
    part = Block(0, "telco", 0, 2 * K, 0), np.full(2 * K, 0.25), np.repeat([0.5, 1.5], K)
    part = part if kind != "sparse" else (part[0], np.zeros(2 * K), part[2])
    query = replace(backward(K=K), centres=(part[1],), scales=(part[2],))
    vectors: Any = [
        Forward({"telco": (part[0], np.linspace(-1, 1, 2 * K))}),
        *([] if K > 1 else [RecordNorms({"telco": part})]),
    ]

    def made(at: Any) -> Any:
        keep = np.isin(np.arange(n), at)
        rows = Rows("telco", X.parted(keep)[1], n_outputs=K, n_trained=n)
        sums = rows.sums(query, Records(np.ascontiguousarray(r[:, keep]).ravel()))
        return sums[0], *(rows.vector(one, Records()).reshape(-1, keep.sum()) for one in vectors)

    whole, alone = made(np.arange(n)), [made([i]) for i in range(n)]
    assert sum(one[0] for one in alone).tolist() == whole[0].tolist()
    for each in range(1, len(whole)):
        assert np.hstack([one[each] for one in alone]).tobytes() == whole[each].tobytes()


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "multinomial"])
def test_a_residual_is_the_same_alone_and_among_others(name: str) -> None:
    rng, loss = np.random.default_rng(0), LOSSES[name]().declared(6.0)
    v, y = rng.normal(size=41) * 3, rng.choice([-1.0, 1.0] if loss.classification else [0.5, 2.0], 41)
    for function in (loss.derivative, loss.value):
        alone = np.concatenate([function(v[i : i + 1], y[i : i + 1]) for i in range(41)])
        assert alone.tobytes() == np.asarray(function(v, y)).tobytes()


def queries(kind: str) -> dict[str, Any]:
    block, two = Block(0, "telco", 0, 2, 0), np.ones(2)
    scaled, clip, derivative = (block, np.zeros(2), two), Clip(0.5, 2), Derivative(vfl.losses.Logistic())
    found: dict[str, Any] = {
        "backward": backward(),
        "plain": replace(backward(), clip=Clip(np.inf, 2)),
        "capped": replace(backward(), capped=RecordCap(0.5, {"telco": scaled})),
        "moments": Moments({"telco": 2}, {"telco": 9.0 * two}, True, None),
        "second moments": Moments({"telco": 2}, {"telco": 9.0 * two}, False, None),
        "plain moments": Moments({"telco": 2}, None, True, None),
        "ranges": Ranges({"telco": (0, 1)}, magnitudes.CELLS, None),
        "counts": Counts(derivative, {"telco": (0, 1)}, {"telco": 2}, None),
        "select": Select(derivative, {"telco": (block, two)}, {"telco": scaled[1]}, {"telco": two}, clip, {}, None),
    }
    return found if kind != "sparse" else {name: one for name, one in found.items() if name != "plain moments"}


@pytest.mark.parametrize("kind", ["dense", "float32", "sparse"])
def test_groups_without_rows_or_with_one(kind: str) -> None:
    """Persons whose rows of a weight are all held out leave a group without training rows, which adds nothing."""
    person = persons(np.array([0.0, 1.0, 1.0, 2.0, 2.0, 2.0]))
    apart, r = np.array([False, True, False]), np.linspace(-2, 2, 8)
    rows = PersonRows("telco", columns(6, kind), np.ones(6), person, apart=apart)
    trained = np.flatnonzero(~apart[person.person])
    for name, query in queries(kind).items():
        (found,) = rows.sums(query, Records(r))
        expected = 0
        for position, row in enumerate(trained):
            alone = Rows("telco", columns(6, kind).parted(np.arange(6) == row)[1], n_trained=2)
            expected = expected + person.units[row] * alone.sums(query, Records(r[position : position + 1]))[0]
        assert np.asarray(found) == pytest.approx(np.asarray(expected), rel=1e-12), name
        assert found.dtype == np.int64 or "plain" in name
    whole = {"telco": (Block(0, "telco", 0, 2, 0), np.zeros(2), np.ones(2))}
    for one in (
        Forward({"telco": (whole["telco"][0], np.ones(2))}, side=Side.HELD_OUT),
        RecordNorms(whole, Side.HELD_OUT),
    ):
        assert np.count_nonzero(rows.vector(one, Records())) == 2
    assert (rows.facts().n_trained, rows.facts().n_held_out) == (2, 1)


@pytest.mark.parametrize("k", [1, 2, 3, 7, 100, 4095, 4096])
def test_units_add_up(k: int) -> None:
    found = Persons.of(np.zeros(k), 1, RowRule("telco", 4096))
    assert found.units.sum() == UNITS
    assert found.units.min() >= 1


def test_a_fold_is_at_most_the_mean_of_absolute_values() -> None:
    rng = np.random.default_rng(0)
    for k in (1, 2, 3, 12, 100, 4096):
        person = Persons.of(np.zeros(k), 1, RowRule("telco", 4096))
        v = 1.0 + rng.uniform(0, 2.0**-50, k)
        exact = sum(int(u) * int(value * 2**52) for u, value in zip(person.units, v, strict=True))
        assert int(person.fold(v)[0] * 2.0**53) * UNITS <= 2 * exact
        assert person.fold(v)[0] == pytest.approx(1.0, rel=1e-11)
    assert persons().fold(np.arange(12.0)).size == 6


def test_kept_rows_depend_on_their_person_alone() -> None:
    ids = [b"a", b"b", b"a", b"a", b"b", b"a", b"a"]
    kept = kept_rows(ids, 3)
    assert kept.sum() == 5
    others = [own if own == b"a" else b"c" for own in ids]
    assert (kept_rows(others, 3)[[own == b"a" for own in ids]] == kept[[own == b"a" for own in ids]]).all()


def test_a_tally_weighs_rows() -> None:
    labels = sent(SORTED)
    labels[:6] = np.where(np.arange(6) % 2, 1.0, -1.0)
    state = LinearPredictors(labels, targets=TARGETS, n_records=3)
    found = state.tally(Tally(Outcomes(vfl.losses.Logistic(), 10.0, (1, 1)), None))
    assert found[:4].sum() == 3 * UNITS


REFUSED: dict[str, Any] = {
    "secure": {"trust": "secure", "privacy": vfl.Privacy(epsilon=1)},
    "SCD": {"solver": vfl.solvers.SCD()},
    "NoisyGram": {"solver": vfl.solvers.NoisyGram(), "loss": "squared"},
    "joint": {"solver": vfl.SkGD(joint=True)},
    "intervals": {"intervals": True, "privacy": vfl.Privacy(epsilon=1)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_jobs_that_are_refused(name: str) -> None:
    with pytest.raises(SpecificationError, match="most_rows"):
        job(**REFUSED[name])


def test_ids_and_job_files(tmp_path: Any) -> None:
    asked = job()
    path = tmp_path / "job.toml"
    path.write_text(asked.to_toml())
    assert read(path)[0] == asked
    assert job(id=vfl.columns.Id("id")).id == "id"
    assert job(id=vfl.columns.Id("id")).digest == job(id="id").digest != asked.digest
    for wrong in (0, 4097, 2.0, True):
        with pytest.raises(SpecificationError, match="most_rows"):
            vfl.columns.Id("id", most_rows=wrong)
    with pytest.raises(PlacementError, match="shards"):
        require_fit(vfl.InProcess(shards=2), asked)
