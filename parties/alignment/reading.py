"""Read a party's source in the order of its index: check the ids, skip unaligned rows, and put the other rows in order."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.alignment.divided import keys_in
from parties.alignment.index import digest_of, file_of, stamp_of
from parties.sources.aggregated import aggregated, raw_contents
from parties.sources.base import ABSENT
from parties.sources.opening import open_source
from parties.sources.sparse import SparseSource
from parties.storage.cells import contents_of
from parties.storage.dense import Columns, check_types
from parties.storage.labels import GroupReader
from vfl.base.columns import Known
from vfl.base.persons import Persons, kept_rows
from vfl.crypto.alignment import Aligned
from vfl.crypto.identifiers import Ids, alignment_hash, check_kinds, in_order, key_name, normalised
from vfl.errors import DataError, FederationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from parties.alignment.index import Index
    from parties.sources.base import Content, Origin, Source
    from parties.storage.dense import ColumnReaders
    from vfl.base.types import Integers, Vector
    from vfl.job import Job
    from vfl.job.job import PartyTask

    ReadIds = Callable[[Source], tuple[Sequence[bytes], str]]
    """Function that reads the ids of a source opened with its ids (`open_for`)."""


log = logging.getLogger("vfl.parties")


def contents_for(task: PartyTask) -> dict[str, Content]:
    """Return the contents of all columns that a run reads of a party's source, without the id column."""
    return contents_of(task.schema, task.columns, task.label, task.groups, task.factors)


def open_for(task: PartyTask, spec: Any, *, ids: bool) -> Source:
    """Open a party's source for its columns. ids : True to read the id column too.

    An alignment opens all columns that the run reads, so that a missing column is found before it. A bare array has the columns
    in their declared order, after the ids; blocks only determine the order of storage.
    """
    identified: dict[str, Content] = dict.fromkeys(_id_of(task), "id") if ids else {}
    source = _opened(task, spec, identified | contents_for(task))
    if isinstance(source, SparseSource) and any(isinstance(task.schema[column], Known) for column in task.columns):
        raise source.origin.error(
            "a sparse matrix has no rows of missing cells, as a left join needs: give a dense table"
        )
    return source


def _opened(task: PartyTask, spec: Any, contents: Mapping[str, Content]) -> Source:
    """Open some columns of a party's source. If its task has aggregates, the source has one row per id."""
    if not task.aggregates:
        return open_source(spec, contents, party=task.party)
    ids: dict[str, Content] = dict.fromkeys(_id_of(task), "id")
    wanted = {column: content for column, content in contents.items() if column not in ids}
    aggregates = [own for own in task.aggregates if own.result in wanted]
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
    named = key_name(columns)
    return normalised(
        lambda: keys_in(source, columns), party=task.party, column=named, key=task.key, repeating=task.repeats
    )


@dataclass(frozen=True, slots=True, eq=False)
class DistinctIds:
    """Ids of a party, each once, in the order of their first rows: the set that the party aligns.

    ids : normalised. number : (n,) position of each row's id in `ids`, −1 for a row that is left out; None if row i has id i.
    """

    ids: Sequence[bytes]
    number: Integers | None = None

    @classmethod
    def of(cls, ids: Sequence[bytes], task: PartyTask) -> DistinctIds:
        """Return the ids of all rows. Of an id with more than `most_rows` rows, only that many are kept for training.

        Every id keeps a row, and the rows of one id do not decide which rows of another id are kept (`kept_rows`).
        """
        if not task.repeats:
            return cls(ids)
        first: dict[bytes, int] = {}
        number = np.fromiter((first.setdefault(own, len(first)) for own in ids), np.int64, len(ids))
        distinct = Ids()
        distinct.extend(list(first))
        most = len(ids) if task.row_rule is None else task.row_rule.most_rows
        beyond = np.flatnonzero((np.bincount(number) > most)[number])
        if len(beyond):
            log.warning("party %r: some ids have more than %d rows; the rows beyond are left out", task.party, most)
            number[beyond[~kept_rows(list(in_order(ids, beyond)), most)]] = -1
        return cls(distinct, number)

    def rows(self, chosen: Integers) -> tuple[Integers, Integers | None]:
        """Return the rows of the chosen ids, and the position in `chosen` of each row's id; None if every id has one row.

        chosen : positions in `ids`, in the order common to all parties.
        """
        if self.number is None:
            return chosen, None
        position = np.full(len(self.ids) + 1, -1)  # the last entry is that of rows that are left out
        position[chosen] = np.arange(len(chosen))
        person = position[self.number]
        rows = np.flatnonzero(person >= 0)
        rows = rows[np.argsort(person[rows], kind="stable")]
        return rows, person[rows]


def raw_ids(task: PartyTask, spec: Any) -> list[Any]:
    """Return the ids of all rows as the source holds them, not normalised, so that the owner recognises its records.

    A composite key is a tuple of its cells.
    """
    cells = (cell for piece in keys_in(_open_ids(task, spec), _id_of(task)) for cell in piece.to_pylist())
    return [tuple(cell.values()) if isinstance(cell, dict) else cell for cell in cells]


def holds_ids(task: PartyTask, spec: Any) -> bool:
    """Return True if a source holds the party's id column. Raises DataError for a missing file."""
    try:
        open_source(spec, dict.fromkeys(_id_of(task), "id"), party=task.party)
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
) -> tuple[dict[str, ChosenRows], Aligned | None]:
    """Join the parties' rows by equal ids, for predictions where one process reads all sources.

    Return {party: its rows, in the order of the first party's ids} and the outcome; {} and None if the job has no ids, or no
    source holds an id column. The rows are then assumed to be in the same order at all parties.

    first : party that determines the order; None for the label party if its ids may repeat or are all taken, else for the first
        of `sources`. common : in an inner join, leave out records that a party lacks.

    Raises DataError if only some sources hold the id column. Without `common`, an inner join raises DataError also if a party
    lacks an id of the first party.
    """
    tasks = {party: job.for_party(party).features for party in sources} if job.ids else {}
    if not tasks or not all_hold_ids(job.ids, {p: holds_ids(task, sources[p]) for p, task in tasks.items()}):
        return {}, None
    found = {p: read_ids(task, _open_ids(task, sources[p])) for p, task in tasks.items()}
    check_kinds({party: kind for party, (_, kind) in found.items()})
    distinct = {p: DistinctIds.of(own, tasks[p]) for p, (own, _) in found.items()}
    number_of = {p: {identifier: number for number, identifier in enumerate(own.ids)} for p, own in distinct.items()}
    base = job.base(sources)
    if first is None:
        first = next(iter(sources)) if base is None and job.row_rule is None else job.partition.receiver(sources)
    joined = {
        p: np.array([numbers.get(identifier, -1) for identifier in number_of[first]], np.int64)
        for p, numbers in number_of.items()
    }
    lacking = [party for party, numbers in joined.items() if (numbers < 0).any()]
    if base is None and common:
        everywhere = np.all([numbers >= 0 for numbers in joined.values()], axis=0)
        if not everywhere.any():
            raise DataError("the parties have no record in common: check that their id columns hold the same ids")
        joined = {party: numbers[everywhere] for party, numbers in joined.items()}
    elif base is None and lacking:
        raise DataError(
            f"party {lacking[0]!r} lacks records that party {first!r} holds: give the same records for all, or predict the "
            "common ones with vfl.predict(result, data)"
        )
    chosen = {}
    for party, numbers in joined.items():
        rows, person = distinct[party].rows(numbers)
        chosen[party] = ChosenRows(rows, len(found[party][0]), person=person)
    sizes = {party: len(numbers) for party, numbers in number_of.items()} if base is None else {}
    return chosen, Aligned("", len(joined[first]), sizes)


def check_unchanged(index: Index, digest: str, ids: Sequence[bytes], task: PartyTask) -> None:
    """Raise DataError if the source differs from the source of the index: by the digest of its file, or by its ids.

    digest, ids : current digest and ids of the source.
    """
    same = digest == index.source and int(index.rows.max()) < len(ids)
    if not same or alignment_hash(in_order(ids, present(index.rows)), index.salt) != index.hash:
        raise DataError(
            f"party {task.party!r}, id column {key_name(task.id)!r}: the data changed after their records were aligned. "
            "Restore the data, or align again with vfl align JOB and start a new run"
        )


def present(rows: Integers) -> Integers:
    """Return the rows that the party has, without those of absent records."""
    return rows if int(rows.min()) >= 0 else rows[rows >= 0]


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRows:
    """Rows of a source to read, in the order common to all parties.

    rows : (k,) positions in the source, −1 for a record that the party lacks. n_rows : number of rows of the source.
    stamp : stamp of the source's files when the ids were checked; None in a process that did not check the ids.
    persons : persons of these rows in a training, if persons have several; None if rows are records.
    person : (k,) number of each row's record, ascending, as in `Index`; None if rows are records.
    """

    rows: Integers
    n_rows: int
    stamp: tuple[tuple[object, ...], ...] | None = None
    persons: Persons | None = None
    person: Integers | None = None

    @property
    def n_records(self) -> int:
        """Return the number of records."""
        return len(self.rows) if self.person is None else int(self.person[-1]) + 1

    def part(self, start: int, stop: int) -> ChosenRows:
        """Return the rows of the records start..stop − 1, with these records numbered from 0."""
        if self.person is None:
            return replace(self, rows=self.rows[start:stop])
        first, last = np.searchsorted(self.person, [start, stop])
        return replace(self, rows=self.rows[first:last], person=self.person[first:last] - start)


def check_aligned(task: PartyTask, spec: Any, opened: Source, index: Index, read: ReadIds | None = None) -> ChosenRows:
    """Check that the source is the one that was aligned; return the aligned rows.

    opened : the source, with its ids (`open_for`). read : function that reads the ids; None reads them in this process.

    Raises DataError if the source has changed.
    """
    stamp = stamp_of(spec)
    ids, _ = read_ids(task, opened) if read is None else read(opened)
    check_unchanged(index, digest_of(spec, task.party), ids, task)
    return ChosenRows(index.rows, len(ids), stamp, persons_of(task, index), index.person)


def persons_of(task: PartyTask, index: Index) -> Persons | None:
    """Return the persons of the rows of an index; None if rows are records."""
    if task.row_rule is None or index.person is None:
        return None
    return Persons.of(index.person, int(index.person.max()) + 1, task.row_rule)


class AlignedSource:
    """Source that yields chosen rows of another source, in that source's order. Memory grows only with the chosen rows.

    Records that the party lacks come first, as rows whose cells are all missing. In a sparse matrix they have no entries.
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
        count, absent = 0, int(np.searchsorted(self._sorted, 0))
        for batch in self._source.batches(columns, rows):
            while absent > 0 and batch.num_rows:
                missing = min(absent, batch.num_rows)
                absent -= missing
                yield batch.take(pa.nulls(missing, pa.int64())).replace_schema_metadata({ABSENT: b""})
            first, last = np.searchsorted(self._sorted, [count, count + batch.num_rows])
            kept = self._sorted[first:last] - count
            count += batch.num_rows
            if count > self._chosen.n_rows:
                break
            if self.every is not None:
                self.every.check(batch)
            if len(kept) == batch.num_rows and (np.diff(kept) == 1).all():
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
