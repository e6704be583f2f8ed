"""Row shards on a real Ray: the same model as in one process, with a shard lost, resumed with another number of shards."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.rounds import Lost, Round
from tests.faults import test_ray_faults
from tests.faults.test_ray_faults import PARTITION, N, job, killing, parent, pids, processes, sources, table
from vfl.errors import PartyLost, PlacementError
from vfl.job.site import Faults
from vfl.launch.sites.bundles import layout_of
from vfl.launch.train import resume

pytestmark = pytest.mark.faults

MOMENTS = range(1, 300, 31)
"""Rounds after which a shard is killed."""


@pytest.fixture(scope="module")
def alone() -> bytes:
    """Coefficients of the job with all rows in one process."""
    return vfl.train(job(), table(), at="inprocess").coef_.tobytes()


@pytest.mark.parametrize("number", [20, *(pytest.param(k, marks=pytest.mark.slow) for k in MOMENTS)])
def test_a_killed_shard_reads_its_rows_again(local_ray: Any, tmp_path: Path, alone: bytes, number: int) -> None:
    """The loss is the party's: the query is repeated once the shard is back, and the other shards keep their rows."""
    seen, watch = killing(tmp_path, "bank", number)
    result = vfl.train(job(), sources(tmp_path), watch=watch, at=vfl.Ray(shards=2))
    assert [event.party for event in seen if isinstance(event, Lost)] == ["bank"]
    assert len(set(pids(tmp_path, "bank"))) == 4  # the party, its two shards, and the one that took a lost one's place
    assert result.coef_.tobytes() == alone


@pytest.mark.slow
def test_a_stopped_shard_ends_with_the_process_of_its_party(local_ray: Any, tmp_path: Path, alone: bytes) -> None:
    seen, kill = killing(tmp_path, "bank", 20, signal.SIGSTOP)
    stopped: list[int] = []

    def watch(event: Any) -> None:
        kill(event)
        if isinstance(event, Round) and event.number == 20:
            stopped.append(pids(tmp_path, "bank")[-1])

    at = vfl.Ray(shards=2, faults=Faults(answer_timeout_s=10.0))
    result = vfl.train(job(), sources(tmp_path), watch=watch, at=at)
    assert {event.party for event in seen if isinstance(event, Lost)} == {"bank"}
    assert not Path(f"/proc/{stopped[0]}").exists()
    assert result.coef_.tobytes() == alone


@pytest.mark.slow
def test_lines_carry_references_to_large_vectors_also_after_a_loss(
    local_ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels and limits of 15,000 records per shard are in the object store; other vectors are lent."""
    monkeypatch.setattr(test_ray_faults, "N", 30_000)
    spec, (seen, watch) = job(passes=12), killing(tmp_path, "bank", 20)
    result = vfl.train(spec, sources(tmp_path), watch=watch, at=vfl.Ray(shards=2))
    assert [event.party for event in seen if isinstance(event, Lost)] == ["bank"]
    assert result.coef_.tobytes() == vfl.train(spec, table(), at="inprocess").coef_.tobytes()


def killing_margins(folder: Path, number: int, how: int = signal.SIGKILL) -> tuple[list[Any], Any]:
    """Return the list of events, and a watcher that kills a shard of the margins at a round."""
    seen: list[Any] = []

    def watch(event: Any) -> None:
        seen.append(event)
        if isinstance(event, Round) and event.number == number:
            own = [
                pid
                for pid in processes(b"ray::LinearPredictorsActor")
                if parent(pid) == parent(pids(folder, "bank")[-1])
            ]
            os.kill(own[0], how)

    return seen, watch


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("number", [1, 100, 250])
def test_a_killed_or_stopped_shard_of_the_margins_is_rebuilt(
    local_ray: Any, tmp_path: Path, alone: bytes, number: int, how: signal.Signals
) -> None:
    seen, watch = killing_margins(tmp_path, number, how)
    at = vfl.Ray(shards=2, faults=Faults(answer_timeout_s=10.0))
    result = vfl.train(job(), sources(tmp_path), watch=watch, at=at)
    assert {event.party for event in seen if isinstance(event, Lost)} == {""}
    assert result.coef_.tobytes() == alone


@pytest.mark.slow
def test_a_run_without_a_shard_of_its_margins_is_resumed_with_another_number(
    local_ray: Any, tmp_path: Path, alone: bytes
) -> None:
    run, (_, watch) = tmp_path / "run", killing_margins(tmp_path, 20)
    options: Any = {"watch": watch, "faults": Faults(on_party_lost="abort")}
    with pytest.raises(PartyLost, match=r"shard \d of the margins.*vfl resume"):
        vfl.train(job(), sources(tmp_path), output=run, at=vfl.Ray(shards=2), **options)
    assert resume(run, sources(tmp_path), at=vfl.Ray(shards=3)).coef_.tobytes() == alone


@pytest.mark.slow
def test_aligned_records_are_divided_after_their_alignment(local_ray: Any, tmp_path: Path) -> None:
    """Each owner has the rows in an order of its own, and rows that nobody else has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, paths = table() | {"id": np.arange(N)}, {}
    for k, party in enumerate(PARTITION.parties):
        rows = np.random.default_rng(k).permutation(N)[: N - 100 * k][:300]
        own = {name: columns[name][rows] for name in (*PARTITION.wanted(party), "id")}
        paths[party] = tmp_path / f"{party}.parquet"
        pq.write_table(pa.table(own), paths[party], row_group_size=70)
    spec = replace(job(passes=2), id="id", partition=PARTITION)
    here = vfl.train(spec, paths, at="inprocess")
    there = vfl.train(spec, paths, at=vfl.Ray(shards=2, pin="always"))
    assert there.coef_.tobytes() == here.coef_.tobytes()


def test_shards_that_no_node_can_hold(local_ray: Any) -> None:
    with pytest.raises(PlacementError, match=r"asks for 18 CPU in all, of which there are 8.*shards or party_cpus"):
        vfl.train(job(passes=2), table(), at=vfl.Ray(shards=9, party_cpus=1, ready_timeout_s=0.5))


def test_the_margins_are_beside_the_data_of_their_owner() -> None:
    never, always = (vfl.Ray(shards=4, party_cpus=2, pin=pin) for pin in ("never", "always"))
    parties, both = [("bank",), ("telco",)], {"coordinator": 1.0, "party:telco": 1.0}
    unpinned = layout_of(never, parties, "telco")
    assert unpinned.asked() == [{"CPU": 4.0}] * 4  # shard k of all parties and of the margins on one node
    assert {unpinned.index(who, 2) for who in ("", "bank", "telco")} == {2}
    apart = layout_of(always, parties, "telco", offers=[{"party:telco": 1.0}, {"coordinator": 1.0}])
    assert apart.bundles[""] == {"coordinator": 0.001}
    assert apart.bundles["telco"] == {"CPU": 2, "party:telco": 0.001}
    beside = layout_of(always, parties, "telco", offers=[both])
    assert beside.bundles["telco"] == {"CPU": 2, "party:telco": 0.001, "coordinator": 0.001}
    assert beside.index("", 3) == beside.index("telco", 3) == 7
