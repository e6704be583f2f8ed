"""Read a party's source in the order of its index: check the ids, skip unaligned rows, and put the other rows in order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.alignment.divided import keys_in
from parties.alignment.index import digest_of, file_of, stamp_of
from parties.sources.aggregated import aggregated, raw_contents
from parties.sources.opening import open_source
from parties.sources.sparse import SparseSource
from parties.storage.cells import contents_of
from parties.storage.dense import Columns, check_types
from parties.storage.labels import GroupReader
from vfl.base.persons import Persons
from vfl.crypto.identifiers import alignment_hash, check_kinds, in_order, key_name, normalised
from vfl.errors import DataError, FederationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from parties.alignment.index import Index
    from parties.sources.base import Content, Origin, Source
    from parties.storage.dense import ColumnReaders
    from vfl.base.types import Integers, Vector
    from vfl.crypto.identifiers import Ids
    from vfl.job import Job
    from vfl.job.job import PartyTask

    ReadIds = Callable[[Source], tuple[Sequence[bytes], str]]
    """Function that reads the ids of a source opened with its ids (`open_for`)."""


def contents_for(task: PartyTask) -> dict[str, Content]:
    """Return the contents of all columns that a run reads of a party's source, without the id column."""
    return contents_of(task.schema, task.columns, task.label, task.groups, task.factors)


def open_for(task: PartyTask, spec: Any, *, ids: bool) -> Source:
    """Open a party's source for its columns. ids : True to read the id column too.

    An alignment opens all columns that the run reads, so that a missing column is found before it. A bare array has the columns
    in their declared order, after the ids; blocks only determine the order of storage.
    """
    identified: dict[str, Content] = dict.fromkeys(_id_of(task), "id") if ids else {}
    return _opened(task, spec, identified | contents_for(task))


def _opened(task: PartyTask, spec: Any, contents: Mapping[str, Content]) -> Source:
    """Open some columns of a party's source. If its task has aggregates, the source has one row per id."""
    if not (aggregates := task.aggregates):
        return open_source(spec, contents, party=task.party)
    ids: dict[str, Content] = dict.fromkeys(_id_of(task), "id")
    wanted = {column: content for column, content in contents.items() if column not in ids}
    source = open_source(spec, ids | raw_contents(wanted, aggregates), party=task.party)
    keys, _ = normalised(
        lambda: keys_in(source, task.id), party=task.party, column=key_name(task.id), key=task.key, repeating=True
    )
    return aggregated(source, keys, ids | wanted, aggregates)


def check_before(task: PartyTask, source: Source) -> None:
    """Check the types of the columns before an alignment, which may take long. Wrong cells are found after the alignment."""
    if not isinstance(source, SparseSource):
        groups = GroupReader(task.schema, task.groups, source.origin, 0)
        wanted = task.canonical, task.schema, task.scaling
        check_types(source, *wanted, label=task.label, factors=task.factors, groups=groups)


def _id_of(task: PartyTask) -> tuple[str, ...]:
    if not task.id:
        raise FederationError(f"party {task.party!r} was asked for ids by a job that aligns no records")
    return task.id


def _open_ids(task: PartyTask, spec: Any) -> Source:
    return _opened(task, spec, dict.fromkeys(_id_of(task), "id"))


def read_ids(task: PartyTask, source: Source) -> tuple[Ids, str]:
    """Return the normalised ids of all rows, and their kind. Raises DataError; see vfl.crypto.identifiers."""
    columns = _id_of(task)
    return normalised(lambda: keys_in(source, columns), party=task.party, column=key_name(columns), key=task.key)


def raw_ids(task: PartyTask, spec: Any) -> list[Any]:
    """Return the ids of all rows as the source holds them, not normalised, so that the owner recognises its records.

    A composite key is a tuple of its cells.
    """
    cells = (cell for piece in keys_in(_open_ids(task, spec), _id_of(task)) for cell in piece.to_pylist())
    return [tuple(cell.values()) if isinstance(cell, dict) else cell for cell in cells]


def holds_ids(task: PartyTask, spec: Any) -> bool:
    """Return True if a source holds the party's id column. Raises DataError for a missing file."""
    try:
        _open_ids(task, spec)
    except DataError:
        if file_of(spec) and not os.path.exists(file_of(spec)):  # noqa: PTH110 - text, '' for a source that is not a file
            raise
        return False
    return True


def all_hold_ids(ids: Mapping[str, Sequence[str]], holding: Mapping[str, bool]) -> bool:
    """Return True if the data of all parties hold ids, which can then join the records; False if no party's data hold ids.

    ids : {party: id column}. Raises DataError if only some parties' data hold ids.
    """
    lacking = [party for party, ids in holding.items() if not ids]
    if lacking and len(lacking) < len(holding):
        raise DataError(
            f"the data of party {lacking[0]!r} have no id column {key_name(ids[lacking[0]])!r}, and the data of others have "
            "one. Give it for all parties (in a text file, check the format), or leave it out everywhere if the rows are in "
            "the same order"
        )
    return not lacking


def joined_rows(
    job: Job, sources: Mapping[str, Any], *, first: str | None = None, common: bool = False
) -> tuple[dict[str, Integers], dict[str, int]]:
    """Join the parties' rows by equal ids, for predictions where one process reads all sources.

    Return {party: its rows, in the order of the first party's rows} and {party: number of its ids}. Both are empty if the job
    has no ids, or if no source holds an id column. The rows are then assumed to be in the same order at all parties.

    first : party that determines the order; None for the first of `sources`. common : leave out records that a party lacks.

    Raises DataError if only some sources hold the id column. Without `common`, also if a party lacks an id of the first party.
    """
    tasks = {party: job.for_party(party).features for party in sources} if job.ids else {}
    if not tasks or not all_hold_ids(job.ids, {p: holds_ids(task, sources[p]) for p, task in tasks.items()}):
        return {}, {}
    found = {p: read_ids(task, _open_ids(task, sources[p])) for p, task in tasks.items()}
    check_kinds({party: kind for party, (_, kind) in found.items()})
    row_of = {party: {identifier: row for row, identifier in enumerate(own)} for party, (own, _) in found.items()}
    first = next(iter(sources)) if first is None else first
    wanted: Sequence[bytes] = found[first][0]
    if common:
        wanted = [identifier for identifier in wanted if all(identifier in rows for rows in row_of.values())]
        if not wanted:
            raise DataError("the parties have no record in common: check that their id columns hold the same ids")
    for party, rows in row_of.items():
        if any(identifier not in rows for identifier in wanted):
            raise DataError(
                f"party {party!r} lacks records that party {first!r} holds: give the same records for all, or predict the "
                "common ones with vfl.predict(result, data)"
            )
    joined = {p: np.array([rows[identifier] for identifier in wanted], np.int64) for p, rows in row_of.items()}
    return joined, {party: len(ids) for party, (ids, _) in found.items()}


def check_unchanged(index: Index, digest: str, ids: Sequence[bytes], task: PartyTask) -> None:
    """Raise DataError if the source differs from the source of the index: by the digest of its file, or by its ids.

    digest, ids : current digest and ids of the source.
    """
    same = digest == index.source and int(index.rows.max()) < len(ids)
    if not same or alignment_hash(in_order(ids, index.rows), index.salt) != index.hash:
        raise DataError(
            f"party {task.party!r}, id column {key_name(task.id)!r}: the data changed after their records were aligned. "
            "Restore the data, or align again with vfl align JOB and start a new run"
        )


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRows:
    """Rows of a source to read, in the order common to all parties.

    rows : (k,) positions in the source. n_rows : number of rows of the source.
    stamp : stamp of the source's files when the ids were checked; None in a process that did not check the ids.
    persons : persons of these rows, if persons have several; None if rows are records.
    """

    rows: Integers
    n_rows: int
    stamp: tuple[tuple[object, ...], ...] | None = None
    persons: Persons | None = None


def check_aligned(task: PartyTask, spec: Any, opened: Source, index: Index, read: ReadIds | None = None) -> ChosenRows:
    """Check that the source is the one that was aligned; return the aligned rows.

    opened : the source, with its ids (`open_for`). read : function that reads the ids; None reads them in this process.

    Raises DataError if the source has changed.
    """
    stamp = stamp_of(spec)
    ids, _ = read_ids(task, opened) if read is None else read(opened)
    check_unchanged(index, digest_of(spec, task.party), ids, task)
    return ChosenRows(index.rows, len(ids), stamp, persons_of(task, index))


def persons_of(task: PartyTask, index: Index) -> Persons | None:
    """Return the persons of the rows of an index; None if rows are records."""
    if task.row_rule is None or index.person is None:
        return None
    return Persons.of(index.person, int(index.person.max()) + 1, task.row_rule)


class AlignedSource:
    """Source that yields chosen rows of another source, in that source's order. Memory grows only with the chosen rows.

    `ordered` then moves the records into the common order, in place and column by column, without a second copy of the data.

    every : readers that check the cells of all rows; None checks the chosen rows alone, as they are read.
    """

    n_records: int | None
    every: ColumnReaders | None = None

    def __init__(self, source: Source, chosen: ChosenRows, unchanged: Callable[[], bool]) -> None:
        self._source, self._chosen, self._unchanged = source, chosen, unchanged
        self.origin: Origin = source.origin
        self.names, self.typed = source.names, source.typed
        self.n_records = self.at_most = len(chosen.rows)
        self._sorted = np.sort(chosen.rows)

    @classmethod
    def of(cls, opened: Source, chosen: ChosenRows, spec: Any) -> Source:
        """Return the source of the chosen rows. Rows of a sparse matrix are put into the common order at once.

        spec : the source, whose files must not change while they are read.
        """
        if isinstance(opened, SparseSource):
            return opened.ordered(chosen.rows)
        stamp = stamp_of(spec) if chosen.stamp is None else chosen.stamp
        return cls(opened, chosen, lambda: stamp_of(spec) == stamp)

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records; see `Source`."""
        count = 0
        for batch in self._source.batches(columns, rows):
            first, last = np.searchsorted(self._sorted, [count, count + batch.num_rows])
            kept = self._sorted[first:last] - count
            count += batch.num_rows
            if count > self._chosen.n_rows:
                break
            if self.every is not None:
                self.every.check(batch)
            if len(kept) == batch.num_rows:
                yield batch
            elif len(kept):
                yield batch.take(pa.array(kept))
        if count != self._chosen.n_rows or not self.origin.attempt(self._unchanged, "cannot be read"):
            raise self.origin.error("the source changed while it was read")
        if self.every is not None:
            self.every.end()

    @property
    def order(self) -> Integers:
        """Return the positions of this source's records in the common order, (n,): record `order[i]` is the i-th."""
        return np.searchsorted(self._sorted, self._chosen.rows)

    def ordered(self, columns: Columns, labels: Vector | None) -> tuple[Columns, Vector | None]:
        """Return the columns of this source in the common order. The memory of the given columns is overwritten."""
        order = self.order
        array = columns.array
        array.flags.writeable = True
        for j in range(array.shape[1]):
            array[:, j] = array[order, j]
        array.flags.writeable = False
        for values in columns.curves.cells.values():
            values[:] = values[order]
        return columns, None if labels is None else labels[..., order]
