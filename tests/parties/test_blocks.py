"""Data sets in blocks: the same records as in one table, read block by block, and refused if a block changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import vfl
from parties import actor
from parties.alignment.reading import open_for
from parties.loading import SourceCheck, digests_of, divided, load_rows
from parties.prediction import NewRows
from parties.sources.blocks import Blocks
from parties.sources.opening import open_source
from parties.sources.ranges import rows_of
from tests.coordinator.test_transports import PARTITION, job, table
from vfl.errors import DataError
from vfl.network.shards import cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

N = 97
STARTS = (0, 40, 40, 41, 80)
"""First rows of the blocks: one is empty, one has a single row, and none begins where a shard does."""


def whole() -> pa.Table:
    """Return the bank's columns and one that nobody wants."""
    columns = table(N)
    return pa.table({"other": [[1]] * N} | {name: columns[name] for name in PARTITION.columns("bank")})


def in_blocks(frame: pa.Table, form: Callable[[pa.Table], Any] = lambda block: block) -> tuple[Blocks, list[int]]:
    """Return the table in blocks, and the list of block numbers that are fetched from now on."""
    parts = [frame.slice(start, stop - start) for start, stop in zip(STARTS, (*STARTS[1:], N), strict=True)]
    fetched: list[int] = []

    def fetch(number: int) -> Any:
        fetched.append(number)
        return form(parts[number])

    return Blocks(fetch, tuple(map(len, parts))), fetched


def columns_of(source: Any, shards: int) -> tuple[bytes, ...]:
    task = job().for_party("bank")
    opened, _, ranges = divided(task, source, None, shards)
    loaded: list[Any] = [load_rows(task, source, opened, *own) for own in ranges]
    return tuple(
        np.concatenate([rows.columns.array[:, j] for rows in loaded]).tobytes()
        for j in range(len(PARTITION.columns("bank")))
    )


@pytest.mark.parametrize("form", [lambda block: block, pa.Table.to_pandas], ids=["arrow", "pandas"])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_the_columns_are_those_of_the_whole_table(shards: int, form: Callable[[pa.Table], Any]) -> None:
    blocks, _ = in_blocks(whole(), form)
    assert columns_of(blocks, shards) == columns_of(whole(), 1)


def test_cells_are_read_one_by_one_whatever_else_their_block_holds() -> None:
    """A block of objects is not given a common type: the declaration of the column alone decides."""
    import pandas as pd

    cells: Sequence[Any] = ["1", 1, 1.0, "x", None]
    blocks = Blocks(lambda k: pd.DataFrame({"a": pd.Series([cells[k]], dtype=object)}), (1,) * len(cells))
    found = [batch.column(0).to_pylist() for batch in open_source(blocks, {"a": "text"}, party="bank").batches()]  # type: ignore[union-attr]
    assert found == [[b"1"], [b"1"], [b"1"], [b"x"], [None]]


def test_a_shard_fetches_only_its_own_blocks() -> None:
    blocks, fetched = in_blocks(whole())
    opened = open_source(blocks, PARTITION.columns("bank"), party="bank")
    fetched.clear()
    shard = cut(N, 3)[1]
    assert (shard.start, shard.stop) == (32, 64)
    assert sum(batch.num_rows for batch in rows_of(opened, shard.start, shard.stop).batches()) == 32  # type: ignore[union-attr]
    assert set(digests_of(opened)) == {0, 2, 3}
    assert set(fetched) <= {0, 2, 3}  # block 1 is empty


def test_a_block_that_differs_between_two_shards_is_refused() -> None:
    """A lost block may be computed again: a record that moved within it would be in both shards."""
    task, frame = job().for_party("bank"), whole()
    moved = pa.concat_tables([frame.slice(0, 39).take(np.roll(np.arange(39), 1)), frame.slice(39)])
    first, second, third = cut(N, 3)
    unchanged = SourceCheck(in_blocks(frame)[0], open_for(task, in_blocks(frame)[0], ids=False))

    def read(source: pa.Table, shard: Any) -> dict[int, str]:
        rows = actor.RowsActor(task, 1)
        facts, digests = rows.load(in_blocks(source)[0], shard, None, "")
        assert facts.n_trained == shard.size
        return digests

    unchanged.require([read(frame, shard) for shard in (first, second, third)])
    unchanged.require([read(moved, third)])  # whose blocks are the same
    with pytest.raises(DataError, match=r"'bank', the Ray dataset: the source changed"):
        unchanged.require([read(moved, second)])


def test_a_block_that_changes_between_two_readings_is_refused() -> None:
    count = iter(range(100))
    blocks = Blocks(lambda k: pa.table({"a": [k, next(count)]}), (2, 2))
    opened: Any = open_source(blocks, ["a"], party="bank")
    assert sum(batch.num_rows for batch in opened.batches()) == 4
    with pytest.raises(DataError, match="the Ray dataset: the source changed"):
        list(opened.batches())


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        (Blocks(lambda k: pa.table({"a": [1]}), (1, 2)), "the source changed while its shards were read"),
        (Blocks(lambda k: pa.table({"ab"[k]: [1]}), (1, 1)), "there is no column 'a'"),
        (Blocks(lambda k: {}[k], (1, 1)), "a block cannot be fetched"),
        (Blocks(lambda k: pa.table({"a": []}), (0, 0)), "there are no records"),
    ],
    ids=["rows", "columns", "lost", "empty"],
)
def test_bad_blocks_are_refused(blocks: Blocks, problem: str) -> None:
    with pytest.raises(DataError, match=f"party 'bank', the Ray dataset: {problem}"):
        list(open_source(blocks, ["a"], party="bank").batches())  # type: ignore[union-attr]


def test_new_records_in_blocks() -> None:
    result = vfl.train(job(), table(N), at="inprocess")
    part, source = result.part("bank"), in_blocks(whole())[0]
    expected = part.scores(whole())
    assert part.scores(source, shards=3).tobytes() == expected.tobytes()
    rows = NewRows(part)
    assert rows.load(source, cut(N, 3)[0], None) == 32
    assert set(rows.digests) == {0}
    assert rows.scores().tobytes() == expected[:32].tobytes()
