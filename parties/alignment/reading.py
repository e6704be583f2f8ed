"""A party's source read in the order of its index: ids, the check that they are still the same, rows left out, rows moved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.alignment.index import digest_of, file_of, stamp_of
from parties.sources.opening import open_source
from parties.sources.sparse import SparseSource
from parties.storage.cells import contents_of
from parties.storage.dense import Columns, check_types
from vfl.errors import DataError
from vfl.schema import BinaryLabel, Label, RealLabel
from vfl.security.identifiers import IdKind, alignment_hash, check_kinds, kind_of, normalise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from parties.alignment.index import Index
    from parties.sources.base import Content, Origin, Source
    from vfl.job import Job
    from vfl.types import Integers, Vector


def label_of(job: Job) -> Label:
    """Return how the label is declared: binary for classification, else a number within its declared bounds."""
    if job.classification:
        return BinaryLabel(job.classes)
    low_high = job.schema[job.partition.label_column].limits
    return RealLabel(low_high if job.schema.unbounded([job.partition.label_column]) == () else None)


def open_with_ids(job: Job, party: str, spec: Any, *, label: bool = True) -> Source | SparseSource:
    """Open a party's source with all that a run reads of it, so that what is missing is found before the alignment.

    label : whether the label is wanted where the party holds it.
    """
    held = (job.partition.label_column, label_of(job)) if label and party == job.partition.label_party else None
    identified: dict[str, Content] = {job.ids[party]: "id"}
    # An array without names holds the ids in its first column, then what it holds without them.
    return open_source(spec, identified | contents_of(job.schema, job.partition.columns(party), held), party=party)


def check_before(job: Job, party: str, source: Source | SparseSource, *, label: bool = True) -> None:
    """Check what of a run's later reading can be checked before an alignment, which may take long: types of columns.

    What is wrong with cells is said later, since only the records that all have count. `label` as for `open_with_ids`.
    """
    if isinstance(source, SparseSource):
        return
    held = (job.partition.label_column, label_of(job)) if label and party == job.partition.label_party else None
    names = job.partition.canonical_columns(party)
    check_types(source, names, job.schema, job.scaling_of(names), label=held)


def _open_ids(job: Job, party: str, spec: Any) -> Source | SparseSource:
    identified: dict[str, Content] = {job.ids[party]: "id"}
    return open_source(spec, identified, party=party)


def read_ids(job: Job, party: str, source: Source | SparseSource) -> tuple[list[bytes], IdKind]:
    """Return the ids of all rows as they are compared, and their kind. Raises DataError; see vfl.security.identifiers."""
    column, cells = job.ids[party], _cells(source, job.ids[party])
    kind = IdKind(job.id_kind) if job.id_kind is not None else None
    normal = normalise(cells, party=party, column=column, kind=kind)
    return normal, kind or kind_of(cells, party=party, column=column)


def _cells(source: Source | SparseSource, column: str) -> list[Any]:
    return [cell for batch in source.batches([column]) for cell in batch.column(0).to_pylist()]


def raw_ids(job: Job, party: str, spec: Any) -> list[Any]:
    """Return the ids of all rows as they are in the source, for their owner to know its records by."""
    return _cells(_open_ids(job, party, spec), job.ids[party])


def holds_ids(job: Job, party: str, spec: Any) -> bool:
    """Whether a source holds the party's id column. Raises DataError for a file that is not there."""
    try:
        _open_ids(job, party, spec)
    except DataError:
        if file_of(spec) and not os.path.exists(file_of(spec)):  # noqa: PTH110 - text, '' for what is no file
            raise
        return False
    return True


def all_hold_ids(job: Job, holding: Mapping[str, bool]) -> bool:
    """Whether records are to be joined by their ids. Raises DataError when some parties' data hold them and others' not."""
    lacking = [party for party, ids in holding.items() if not ids]
    if lacking and len(lacking) < len(holding):
        raise DataError(
            f"the data of party {lacking[0]!r} have no id column {job.ids[lacking[0]]!r}, and others have one: give it for "
            "all parties, or leave it out everywhere where the rows are in the same order"
        )
    return not lacking


def joined_rows(
    job: Job, sources: Mapping[str, Any], *, first: str | None = None, common: bool = False
) -> dict[str, Integers]:
    """Return {party: its rows in the order of the first party's} by equal ids, to predict where one process reads all.

    Empty when no source holds its id column: their rows are taken to be in the same order already.

    first : whose order; None is the first of `sources`. common : leave out records that a party lacks.

    Raises DataError when some hold it and others do not, or, unless `common`, lack one of the first party's ids.
    """
    if not all_hold_ids(job, {party: holds_ids(job, party, spec) for party, spec in sources.items()}):
        return {}
    found = {p: read_ids(job, p, _open_ids(job, p, spec)) for p, spec in sources.items()}
    check_kinds({party: kind for party, (_, kind) in found.items()})
    row_of = {party: {identifier: row for row, identifier in enumerate(own)} for party, (own, _) in found.items()}
    first = next(iter(sources)) if first is None else first
    wanted = found[first][0]
    if common:
        wanted = [identifier for identifier in wanted if all(identifier in rows for rows in row_of.values())]
        if not wanted:
            raise DataError("the parties have no record in common: check that their id columns hold the same ids")
    for party, rows in row_of.items():
        if any(identifier not in rows for identifier in wanted):
            raise DataError(f"party {party!r} lacks records that party {first!r} holds: give the same records for all")
    return {p: np.array([rows[identifier] for identifier in wanted], np.int64) for p, rows in row_of.items()}


def check_unchanged(index: Index, digest: str, ids: Sequence[bytes], job: Job, party: str) -> None:
    """Raise DataError unless a source is what the index was made of: the same file, and the same ids in its rows.

    digest, ids : of the source as it is now.
    """
    same = digest == index.source and int(index.rows.max()) < len(ids)
    if not same or alignment_hash([ids[row] for row in index.rows], index.salt) != index.hash:
        raise DataError(
            f"party {party!r}, id column {job.ids[party]!r}: the data changed after their records were aligned; restore "
            "them, or align again (vfl align JOB; a run that was cut off has to start anew)"
        )


def open_aligned(job: Job, party: str, spec: Any, index: Index, *, label: bool = True) -> AlignedSource | SparseSource:
    """Open a source for its aligned rows alone, once it is seen to be what was aligned; DataError otherwise.

    The rows of a sparse matrix, which is read whole, are in the common order already.

    label : as for `open_with_ids`.
    """
    source = open_with_ids(job, party, spec, label=label)
    stamp = stamp_of(spec)
    ids, _ = read_ids(job, party, source)
    check_unchanged(index, digest_of(spec, party), ids, job, party)
    if isinstance(source, SparseSource):
        return source.ordered(index.rows)
    return AlignedSource(source, index, len(ids), lambda: stamp_of(spec) == stamp)


class AlignedSource:
    """Yields the rows of another source that are in an index, in the source's order.

    What is wrong with other rows is nobody's business. `ordered` then moves the records: in place, column by column, so
    that reading in another order needs no second copy of the data.
    """

    n_records: int | None

    def __init__(self, source: Source, index: Index, n_rows: int, unchanged: Callable[[], bool]) -> None:
        self._source, self._index, self._n_rows, self._unchanged = source, index, n_rows, unchanged
        self.origin: Origin = source.origin
        self.names, self.typed = source.names, source.typed
        self.n_records = self.at_most = len(index.rows)
        self._kept = np.zeros(n_rows, bool)
        self._kept[index.rows] = True

    def batches(self, columns: Sequence[str] | None = None, rows: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records; see `Source`."""
        count = 0
        for batch in self._source.batches(columns, rows):
            kept = self._kept[count : count + batch.num_rows]
            count += batch.num_rows
            if count > self._n_rows:
                break
            if kept.all():
                yield batch
            elif kept.any():
                yield batch.filter(pa.array(kept))
        if count != self._n_rows or not self.origin.attempt(self._unchanged, "cannot be read"):
            raise self.origin.error("changed while it was read")

    def ordered(self, columns: Columns, labels: Vector | None) -> tuple[Columns, Vector | None]:
        """Return what was read of this source in the common order; overwrites the columns' memory."""
        order = np.searchsorted(np.flatnonzero(self._kept), self._index.rows)
        array = columns.array
        array.flags.writeable = True
        for j in range(array.shape[1]):
            array[:, j] = array[order, j]
        array.flags.writeable = False
        return columns, None if labels is None else labels[order]
