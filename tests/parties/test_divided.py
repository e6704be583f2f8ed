"""Ids and positions in shards: the alignment is the same to the bit for every number of shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import scipy.sparse

from coordinator.alignment import align
from parties.actor import PartyActor, RowsActor
from parties.alignment import divided
from parties.alignment.index import Index
from parties.alignment.reading import open_for, read_ids
from parties.loading import ids_of_shards
from tests.coordinator.test_transports import PARTITION, job, table
from vfl.crypto import psi
from vfl.crypto.alignment import IndexRules
from vfl.crypto.identifiers import alignment_hash, in_order
from vfl.errors import DataError, PartyLost
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.network.shards import LocalGroup

if TYPE_CHECKING:
    from vfl.base.types import Integers
    from vfl.job.job import PartyTask

N = 61
SALT = bytes(range(32))
JOB = replace(job(), id="id")
TASK = JOB.for_party("bank")
IDS = [f"customer {k * k % 997}" + "ü" * (k % 3) for k in range(N)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divided, "PIECE", 16)
    monkeypatch.setattr("vfl.crypto.identifiers.PIECE", 16)
    monkeypatch.setattr(psi, "ROWS", 16)


def columns(party: str, ids: list[Any]) -> pa.Table:
    cells = table(len(ids))
    return pa.table({"id": ids} | {name: cells[name] for name in PARTITION.wanted(party)})


def source_of(kind: str, folder: Path, ids: list[Any]) -> Any:
    whole = columns("bank", ids)
    match kind:
        case "parquet":
            pq.write_table(whole, folder / "bank.parquet", row_group_size=13)
            return folder / "bank.parquet"
        case "csv":
            pacsv.write_csv(whole, folder / "bank.csv")
            return folder / "bank.csv"
        case "function":
            return lambda: whole
        case _:
            return np.array(ids), scipy.sparse.csr_array(np.column_stack([whole[name] for name in TASK.columns]))


def shards_of(source: Any, shards: int, task: PartyTask = TASK) -> divided.DividedIds:
    group = LocalGroup([RowsActor(task, 1) for _ in range(shards)])
    return ids_of_shards(task, source, open_for(task, source, ids=True), group, source)[0]


@pytest.mark.parametrize("kind", ["parquet", "csv", "function", "sparse"])
@pytest.mark.parametrize("shards", [1, 2, 7])
def test_divided_ids_are_those_of_the_source(kind: str, shards: int, tmp_path: Path) -> None:
    task = replace(JOB, partition=PARTITION.changed(sparse=["bank"])).for_party("bank") if kind == "sparse" else TASK
    source = source_of(kind, tmp_path, IDS)
    whole, _ = read_ids(task, open_for(task, source, ids=True))
    ids = shards_of(source, shards, task)
    assert len(ids) == N
    assert list(ids) == list(whole) == [own.encode() for own in IDS]
    for start, stop in ((0, 5), (3, 19), (4, 5), (15, 61), (60, 99), (7, 7)):
        assert ids[start:stop] == whole[start:stop]
    assert ids[-1] == whole[N - 1]
    rows = np.random.default_rng(0).permutation(N)
    assert alignment_hash(in_order(ids, rows), SALT) == alignment_hash((whole[row] for row in rows), SALT)


@pytest.mark.parametrize("first", [0, 29, 31])
def test_an_id_that_two_shards_hold_is_refused(first: int, tmp_path: Path) -> None:
    for other, cause in ((IDS[first], "an id occurs more than once"), (f" {IDS[first]}", "ids that differ as written")):
        source = source_of("parquet", tmp_path, [*IDS[:-1], other])
        with pytest.raises(DataError, match=f"party 'bank', id column 'id': {cause}"):
            shards_of(source, 2)


def test_ids_of_two_kinds_in_two_shards_are_refused() -> None:
    class Other(RowsActor):
        def read_ids(self, *arguments: Any) -> tuple[str, dict[int, str]]:
            kind, digests = super().read_ids(*arguments)
            return {"text": "integer"}[kind], digests

    source, group = columns("bank", IDS), LocalGroup([RowsActor(TASK, 1), Other(TASK, 1)])
    with pytest.raises(DataError, match="int and str"):
        ids_of_shards(TASK, source, open_for(TASK, source, ids=True), group, source)


class InShards(PartyActor):
    """Actor in this process whose shards are in this process."""

    def _group(self) -> Any:
        if self._served is None:
            self._served = LocalGroup([RowsActor(self._task, 1) for _ in self._shards])  # type: ignore[assignment]
        return self._served


def aligned(sources: dict[str, Any], shards: int, keeping: dict[str, IndexRules]) -> dict[str, InShards]:
    actors = {
        name: InShards(JOB, name, keeping=keeping[name], shards=({},) * shards * (shards > 1)) for name in sources
    }
    for name, actor in actors.items():
        actor.prepare(sources[name], SALT, 1)
    for _ in align(InProcessTransport({name: actor._service for name, actor in actors.items()})):
        pass
    return actors


def held(actor: PartyActor) -> list[bytes]:
    """Return the columns of the party's records, with the shards one after another."""
    members = [own._rows for own in actor._group().members] if actor._shards else [actor._party.rows]
    return [np.concatenate([rows.columns.column(j) for rows in members]).tobytes() for j in range(len(TASK.canonical))]


def test_positions_live_in_the_shards_and_a_lost_shard_gets_its_own_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are blinded, ordered and hashed alike. A resumed run checks the ids of the shards against the index it finds."""
    monkeypatch.setattr(psi.Blinder, "_secret", lambda blinder: (blinder.party.encode() * 8)[:32])
    sources = {"bank": columns("bank", IDS), "telco": columns("telco", [*IDS[20:][::-1], "nobody"])}
    expected: tuple[Integers, str, list[bytes]] | None = None
    for shards in (1, 2, 3, 7):
        kept = {name: IndexRules(folder=str(tmp_path / f"{name} {shards}"), run="r") for name in sources}
        actors = aligned(sources, shards, kept)
        bank = actors["bank"]
        (kept_index,) = Path(str(kept["bank"].folder)).glob("*.index")
        index = Index.read(kept_index)
        assert index is not None
        bank.load(sources["bank"])
        found = np.array(index.rows), index.hash, held(bank)
        expected = expected or found
        assert found[0].tolist() == expected[0].tolist()
        assert found[1:] == expected[1:]
        if shards == 1:
            continue
        members = bank._group().members
        assert all(member._ids is None for member in members)  # dropped once the rows are loaded
        bank._served.members = (members[0], RowsActor(TASK, 1), *members[2:])  # type: ignore[union-attr]
        with pytest.raises(PartyLost, match="'bank' was restarted"):
            held(bank)
        bank.load(sources["bank"])
        assert held(bank) == expected[2]
        again = InShards(JOB, "bank", keeping=kept["bank"], shards=({},) * shards)  # its main actor was restarted
        again.load(sources["bank"])
        assert held(again) == expected[2]
        other = columns("bank", [*IDS[:-1], "somebody else"])
        with pytest.raises(DataError, match="data changed after"):
            InShards(JOB, "bank", keeping=kept["bank"], shards=({},) * shards).load(other)
