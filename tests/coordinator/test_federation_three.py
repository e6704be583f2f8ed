"""Three parties of different organisations: alignment, training on it, prediction and evaluation."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from parties import loading
from tests.coordinator.organisations import POLICY, federation
from vfl.errors import ConsentRefused, DataError
from vfl.network.federation import events

if TYPE_CHECKING:
    from vfl.crypto.alignment import AlignmentProgress
    from vfl.job.job import PartyTask

PARTIES = ("bank", "shop", "telco")
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1"], "shop": ["s0"], "telco": ["b0", "b1"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(("a0", "a1", "s0", "b0", "b1"), (-2.0, 2.0))
N = 240
SHARDS = {"bank": 1, "shop": 3, "telco": 2}
"""Ranges of rows in which each party reads its columns for predictions; they change no bit."""


def job(**changes) -> vfl.Job:
    return vfl.Job(
        **{
            "partition": PARTITION,
            "bounds": BOUNDS,
            "id": "customer",
            "privacy": vfl.Privacy(epsilon=3.0, noise=vfl.SeededNoise(5)),
            "solver": vfl.SkGD(passes=2),
        }
        | changes
    )


def tables(seed: int = 0, start: int = 0) -> dict[str, dict[str, object]]:
    """Return each party's table: other customers and another order each, 200 of them common to all."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.5, 1.5, (N, 5))
    y = (X[:, 0] - X[:, 3] + 0.3 * rng.normal(size=N) > 0).astype(int)
    found = {}
    for k, party in enumerate(PARTIES):
        rows = rng.permutation(np.r_[0:200, 200 + 10 * k : 210 + 10 * k])
        columns = {name: X[rows, list(BOUNDS).index(name)] for name in PARTITION.columns(party)}
        found[party] = {"customer": [f"c{start + row}" for row in rows]} | columns
        if party == "telco":
            found[party]["y"] = y[rows]
    return found


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    new = {party: {c: v for c, v in source.items() if c != "y"} for party, source in tables(1, 5000).items()}
    labelled, plain = tables(2, 9000), tables()
    unjoined = {
        party: {c: np.asarray(v)[:50] for c, v in source.items() if c != "customer"}
        for party, source in tables(3).items()
    }
    with federation(tmp_path_factory.mktemp("federation"), PARTIES) as joined:
        for party in PARTIES:
            named = {"": plain[party], "new": new[party], "labelled": labelled[party], "unjoined": unjoined[party]}
            joined.start(party, named, shards=SHARDS[party])
        yield joined


@pytest.fixture(scope="module")
def result(joined):
    return vfl.train(job(), at=joined.place)


def names(name: str) -> dict[str, str]:
    return dict.fromkeys(PARTIES, name)


def test_training_on_aligned_records_agrees_up_to_the_order_of_records(joined, result) -> None:
    """The common order is random, and so are the sums' last bits; the noise and the grid make the releases equal."""
    there = vfl.train(job(), tables(), at="inprocess")
    np.testing.assert_allclose(result.coef_, there.coef_, rtol=0, atol=1e-4)
    assert "200 records" in repr(result)


def test_aligning_reports_progress_and_keeps_an_index(joined, tmp_path) -> None:
    seen: list[AlignmentProgress] = []
    aligned = vfl.align(job(), at=joined.place, watch=seen.append)
    assert aligned.n_records == 200
    assert dict(aligned.sizes) == dict.fromkeys(PARTIES, 210)
    assert seen[-1].stage == "comparing"
    for party in PARTIES:
        asked = [event for event in joined.events[party] if isinstance(event, events.Requested)][-1]
        assert (asked.purpose, asked.epsilon) == ("align", None)


def test_prediction_joins_the_records_and_agrees_with_one_process(joined, result, monkeypatch) -> None:
    read: list[str] = []

    def load_range(task: PartyTask, *arguments: Any) -> Any:
        read.append(task.party)
        return loading_load_range(task, *arguments)

    loading_load_range = loading.load_range
    monkeypatch.setattr("parties.prediction.load_range", load_range)
    there = vfl.predict(result, names("new"), at=joined.place)
    assert Counter(read) == SHARDS
    new = {party: {c: v for c, v in source.items() if c != "y"} for party, source in tables(1, 5000).items()}
    here = vfl.predict(result, new, at="inprocess")
    assert there.rows == here.rows == dict.fromkeys(PARTIES, 210)
    assert there.ids == here.ids
    assert len(there) == 200
    np.testing.assert_array_equal(there.scores, here.scores)
    ended = [event for event in joined.events["shop"] if isinstance(event, events.Ended)][-1]
    assert (ended.why, ended.records) == ("", 200)


def test_prediction_without_ids_takes_rows_in_their_order(joined, result) -> None:
    there = vfl.predict(result, names("unjoined"), at=joined.place)
    assert there.ids is None
    assert len(there) == 50


def test_data_with_and_without_ids_do_not_mix(joined, result) -> None:
    with pytest.raises(DataError, match="no id column 'customer'"):
        vfl.predict(result, names("new") | {"shop": "unjoined"}, at=joined.place)


def test_evaluation_agrees_with_one_process(joined, result) -> None:
    there = vfl.evaluate(result, names("labelled"), at=joined.place)
    here = vfl.evaluate(result, tables(2, 9000))
    assert str(there) == str(here)


def test_a_policy_decides_on_prediction_and_evaluation(tmp_path, result) -> None:
    with federation(tmp_path, PARTIES) as joined:
        for party, source in tables(1).items():
            text = POLICY.replace("labels = true", "") if party == "telco" else POLICY
            text = text.replace('models = ["*"]', "models = []") if party == "shop" else text
            joined.start(party, source, policy=joined.policy(party, text))
        with pytest.raises(ConsentRefused, match="party 'shop' refuses a prediction"):
            vfl.predict(result, at=joined.place)
        with pytest.raises(ConsentRefused, match="refuses a prediction"):
            vfl.evaluate(result, at=joined.place)
        refused = [event.why for event in joined.events["telco"] if isinstance(event, events.Refused)]
        assert any("labels" in why for why in refused)
