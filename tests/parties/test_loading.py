"""Sources divided among shards whose processes each open them: every record is in one shard, or the load is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parties.actor import RowsActor
from parties.loading import ShardedSource
from parties.sources.blocks import Blocks
from tests.coordinator.test_transports import PARTITION, job, table
from vfl.errors import DataError
from vfl.network.kinds import to_plain
from vfl.network.shards import LocalGroup
from vfl.queries import Moments, Records

if TYPE_CHECKING:
    from pathlib import Path

N = 30
TASK = job().for_party("bank")


def whole() -> pa.Table:
    columns = table(N)
    return pa.table({name: columns[name] for name in PARTITION.columns("bank")})


def moved() -> pa.Table:
    return whole().take(np.roll(np.arange(N), 1))


def members() -> list[RowsActor]:
    return [RowsActor(TASK, 1) for _ in range(2)]


def test_a_lost_process_loads_its_shard_again(tmp_path: Path) -> None:
    pq.write_table(whole(), tmp_path / "bank.parquet")
    divided, rows, source = (
        ShardedSource(TASK, str(tmp_path / "bank.parquet"), None, 2),
        members(),
        tmp_path / "bank.parquet",
    )
    facts = divided.load(LocalGroup(rows), source)
    assert [own.n_trained for own in facts] == [15, 15]
    moments = to_plain(Moments({"bank": 1}, None, means=True, event=None))
    before = [own.sums(moments, Records())[0].tolist() for own in rows]
    rows[1] = RowsActor(TASK, 1)
    assert divided.load(LocalGroup(rows), source) == facts
    assert [own.sums(moments, Records())[0].tolist() for own in rows] == before


@pytest.mark.parametrize("kind", ["function", "Ray dataset", "file"])
def test_rows_that_move_between_two_shards_are_refused(kind: str, tmp_path: Path) -> None:
    """A record that moved from one range to the other would be in both shards."""
    held, path = [whole()], tmp_path / "bank.parquet"
    pq.write_table(whole(), path)
    source, problem = {
        "function": (lambda: held[0], "its function returned different rows"),
        "Ray dataset": (
            Blocks(lambda _: held[0], (N,)),
            "the Ray dataset: the source changed while its shards were read",
        ),
        "file": (str(path), "changed while its shards were read"),
    }[kind]
    divided: Any = ShardedSource(TASK, source, None, 2)

    class Later(RowsActor):
        def load(self, *arguments: Any) -> Any:
            held[0] = moved()
            path.unlink()
            pq.write_table(moved(), path)
            return super().load(*arguments)

    with pytest.raises(DataError, match=problem):
        divided.load(LocalGroup([RowsActor(TASK, 1), Later(TASK, 1)]), source)
