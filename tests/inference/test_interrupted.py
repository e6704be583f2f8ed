"""Runs that stop while they release the two matrices: the noise is that of the first attempt, or it is charged again."""

from __future__ import annotations

import json
from collections import Counter

import pytest

import vfl
from coordinator.rounds import Round
from tests.inference.setting import job, table
from vfl.errors import SpecificationError
from vfl.launch.run.checkpoint import LEDGER
from vfl.launch.train import resume
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.ledger.dataset import DatasetReservation
from vfl.queries import gram

PIECES = 4
"""Queries per matrix: a column and a piece for each of the first party's two columns."""


@pytest.fixture(autouse=True)
def _column_by_column(monkeypatch):
    """Let margins hold a single column at a time, so that each matrix has two pieces."""
    monkeypatch.setattr(gram, "MOST_HELD_BYTES", 1)


def asked(noise: vfl.SeededNoise | None = None) -> vfl.Job:
    return job("squared", privacy={} if noise is None else {"noise": noise})


@pytest.mark.parametrize("left", [PIECES + 2, PIECES, 1])
def test_a_run_that_stops_between_pieces_has_the_noise_of_one_that_does_not(left, tmp_path):
    """No released piece is drawn twice, and a matrix is charged once."""
    spec, data, seen = asked(vfl.SeededNoise(5)), table("squared"), []
    whole = vfl.train(spec, data, at="inprocess", watch=seen.append)
    rounds = [event for event in seen if isinstance(event, Round)]
    stop_at, early, late = len(rounds) - left, [], []

    def stop(event):
        if isinstance(event, Round):
            early.append(event)
            if len(early) == stop_at:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.train(spec, data, at="inprocess", output=tmp_path / "run", watch=stop)
    again = resume(
        tmp_path / "run", data, at="inprocess", watch=lambda e: late.append(e) if isinstance(e, Round) else None
    )
    assert again.w.tobytes() == whole.w.tobytes()
    assert again.summary().to_dict() == whole.summary().to_dict()
    assert [e for one in (*early, *late) for e in one.charges] == [e for one in rounds for e in one.charges]
    again.verify()


@pytest.mark.parametrize("left", [PIECES + 2, 2])
def test_a_run_with_secret_noise_that_stops_between_pieces_releases_no_further_piece(left, tmp_path):
    """The stopped process may have released the next piece with unknown noise, and nothing has paid for its repetition."""
    spec, data, seen = asked(), table("squared"), []
    vfl.train(spec, data, at="inprocess", watch=seen.append)
    stop_at, early, late = sum(isinstance(event, Round) for event in seen) - left, [], []

    def stop(event):
        if isinstance(event, Round):
            early.append(event)
            if len(early) == stop_at:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.train(spec, data, at="inprocess", output=tmp_path / "run", watch=stop)
    again = resume(tmp_path / "run", data, at="inprocess", watch=late.append)
    after = [event for event in late if isinstance(event, Round)]
    assert not any(one.events or one.released for one in after)
    assert again.inference is None
    assert again.certificate.epsilon == pytest.approx(1.0, abs=1e-6)
    again.verify()


@pytest.mark.parametrize("matrix", [2, 1])
def test_a_matrix_lost_after_its_charge_stays_charged_and_the_run_has_no_intervals(matrix, tmp_path, monkeypatch):
    """The process dies between charge and noise, so its draw is unknown."""
    spec, data, charge, made, all_of = asked(), table("squared"), DatasetReservation.charge, [], []
    with monkeypatch.context() as patched:
        patched.setattr(DatasetReservation, "charge", lambda self, items: (charge(self, items), all_of.append(items)))
        vfl.train(spec, data, at="inprocess", output=tmp_path / "whole")

    def dying(self, items):
        charge(self, items)
        made.append(items)
        if len(made) == len(all_of) - matrix + 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DatasetReservation, "charge", dying)
        with pytest.raises(KeyboardInterrupt):
            vfl.train(spec, data, at="inprocess", output=tmp_path / "run")
    result = resume(tmp_path / "run", data, at="inprocess")
    written = json.loads(SqliteLedger(tmp_path / "run" / LEDGER).export())["entries"]
    kept = Counter((e["round"], e["attempt"], e["part"]) for e in written if e["kind"] == "charge")
    assert kept[_of(made[-1])] == 1  # once, before the process died
    assert kept.total() <= sum(map(len, all_of))
    assert result.certificate.epsilon == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(SpecificationError, match="stopped before all releases"):
        result.summary()
    result.verify()


def _of(items):
    ((key, _),) = items
    return key.round, key.attempt, key.part
