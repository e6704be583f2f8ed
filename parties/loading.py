"""Loading of one party's data for a job, in the party's own process."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.alignment.divided import read_divided
from parties.alignment.index import file_of, stamp_of
from parties.alignment.reading import AlignedSource, ChosenRows, check_aligned, contents_for, open_for
from parties.allowed import name_of
from parties.consent import Policy, policy_of, require_source
from parties.party import Party
from parties.rows import PersonRows, Rows, SubsampledRows
from parties.sources.blocks import CHANGED, BlockSource
from parties.sources.csv import CsvSource, ScannedFile
from parties.sources.opening import is_function, open_source, require_rereadable
from parties.sources.ranges import content_of, count_records, rows_of
from parties.sources.sparse import SparseSource
from parties.sources.stores import is_stored
from parties.storage.dense import ColumnReaders, read_columns
from parties.storage.labels import GroupReader
from parties.storage.sparse import read_sparse
from vfl.base.persons import UNITS, Persons
from vfl.base.schema import RealLabel
from vfl.errors import SpecificationError
from vfl.job.flags import exact_queries
from vfl.job.site import IN_ONE_PROCESS, ROWS_IN_ONE_PROCESS
from vfl.network.shards import Each, LocalGroup, cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from parties.alignment.divided import DividedIds
    from parties.alignment.index import Index
    from parties.alignment.reading import ReadIds
    from parties.holder import Holder
    from parties.ledger import PartyLedger
    from parties.rows import RowFacts
    from parties.session import Credentials
    from parties.sources.base import Source
    from parties.storage.classes import Storage
    from vfl.base.types import Integers, Vector
    from vfl.job import Job
    from vfl.job.job import PartyTask
    from vfl.network.shards import Group, Shard


def consented(task: PartyTask, source: Any, policy: str | None = None, *, begins: bool = False) -> Policy | None:
    """Return the owner's policy if it agrees to the job and the source; None if there is no policy. Else raise ConsentRefused.

    Without a policy, an address is refused unless the owner has listed it (parties.allowed).

    policy : path of the owner's policy (parties.consent), which is read here, before any data are opened.
    begins : True if this process is the first of the run. Then the budget in the owner's party ledger must suffice for
        the run.
    """
    agreed = policy_of(policy)
    if agreed is not None:
        agreed.check(task.job, task.party)
        if begins:
            from parties.ledger import require_room

            require_room(agreed, task.party, task.job)
    require_source(agreed, task.party, name_of(source), f"job {task.job.name!r}")
    require_library(task.job, task.party)
    return agreed


def require_library(job: Job, party: str) -> None:
    """Raise SpecificationError if this process lacks the library of homomorphic encryption that the job needs."""
    try:
        job.library()
    except SpecificationError as error:
        raise SpecificationError(f"party {party!r} cannot take part in job {job.name!r}: {error}") from None


def load(
    task: PartyTask,
    source: Any,
    policy: str | Policy | None = None,
    *,
    index: Index | None = None,
    threads: int = 1,
    own: Credentials | None = None,
    shards: int = 1,
) -> Party:
    """Return the party, after its columns are read, checked against the declarations, and scaled.

    Noise comes from the operating system; it is seeded only if the job says so. Raises DataError before anything is computed.

    policy : path of the owner's policy, which is asked before the source is opened (`consented`), or a policy that has
        agreed already. None asks nobody and keeps no party ledger.
    index : the aligned rows, in their order (parties.services.aligning); None takes all rows as they are.
    threads : number of threads of the party's kernels.
    own : the party's identity across organisations, for the keys of a run on secret shares. With an identity, the cells of all
        rows of an aligned source are checked: other parties choose the rows by their ids, so an error about the chosen rows
        alone would reveal single records to the other parties.
    shards : number of shards of the party's rows, all in this process.
    """
    agreed = policy if isinstance(policy, Policy) else consented(task, source, policy)
    opened = open_for(task, source, ids=index is not None)
    unchanged = SourceCheck(source, opened)
    rows = [
        load_rows(task, source, opened, shard, chosen, threads=threads, whole=own is not None)
        for shard, chosen in shards_of(task, source, opened, index, shards)
    ]
    if shards > 1:
        unchanged.require()
    facts = [part.facts() for part in rows]
    return over(task, LocalGroup(rows), facts, agreed, alignment="" if index is None else index.common, own=own)


def over(
    task: PartyTask,
    shards: Group,
    facts: Sequence[RowFacts],
    agreed: Policy | None,
    *,
    alignment: str = "",
    own: Credentials | None = None,
) -> Party:
    """Return the party for loaded rows, with the party ledger if there is a policy and the job has privacy.

    agreed : the owner's policy (`consented`), or None. facts : facts of each shard. own : as for `load`.
    """
    job, noise = task.job, task.job.noise_source()
    ledger: PartyLedger | None = None
    if agreed is not None and job.privacy is not None:
        from parties.ledger import PartyLedger

        ledger = PartyLedger(agreed, job, task.party)
    holder: Holder | None = None
    if job.secure is not None:
        from parties.holder import Holder
        from parties.pair_holder import PairHolder

        if not isinstance(shards, LocalGroup) or shards.size > 1:
            raise SpecificationError(IN_ONE_PROCESS)
        (rows,) = shards.members
        arguments = job, task.party, rows.columns, noise, rows.y, ledger, own, rows.held_out, rows.held_labels
        holder = Holder(*arguments) if job.secure.dealt else PairHolder(*arguments)
    products, n_records = False, sum(f.n_trained + f.n_held_out for f in facts)
    if job.shows_columns:
        from vfl.planning import plan as make_plan  # imported here, so that parties of other jobs start faster

        products = make_plan(job, n_records).has_products
    return Party(
        task.party,
        shards,
        facts,
        noise,
        ledger,
        exact_queries(job),
        products=products,
        alignment=alignment,
        holder=holder,
        subsamples=job.subsamples(n_records),
        units=UNITS if task.row_rule is not None else 1,
        library=job.library(),
    )


class SourceCheck:
    """Check that a source stays the same while several shards read it separately.

    Guarantee. No record can get into two shards by moving within the source between reads. `require` raises DataError if a file
    or an object in a store has changed, or if two shards found different rows in one block of a Ray dataset. If the source is a
    function, the process of every shard compares the data with the digest of `content_for` (`require_content`).

    opened : the source, as opened by `open_for`.
    """

    def __init__(self, source: Any, opened: Source) -> None:
        self._source = source if file_of(source) or is_stored(source) else None
        self._is_function = is_function(source)
        self._origin = opened.origin
        self._stamp = self._stamped()
        self._digests: dict[int, str] = {}

    def require(self, read: Iterable[Mapping[int, str]] = ()) -> None:
        """Raise DataError if a file has changed, or if a block has changed between the reads of two shards.

        read : digests of the blocks that each shard has read (`digests_of`).
        """
        digests = ((number, digest) for own in read for number, digest in own.items())
        if any(self._digests.setdefault(number, digest) != digest for number, digest in digests):
            raise self._origin.error(CHANGED)
        if self._stamped() != self._stamp:
            raise self._origin.error(CHANGED)

    def content_for(self, task: PartyTask, opened: Source, *, ids: bool = False) -> str:
        """Return a digest of a function's data, which this call reads once in full; '' if the source is not a function.

        ids : True if the source was opened with the id column, for an alignment.
        """
        return _content(task, opened, ids=ids) if self._is_function else ""

    def _stamped(self) -> tuple[tuple[object, ...], ...]:
        source = self._source
        return () if source is None else self._origin.attempt(lambda: stamp_of(source), "cannot be read")


def spec_for(source: Any, opened: Source, shard: Shard | None, chosen: ChosenRows | None) -> ScannedFile | None:
    """Return a CSV source with the lines of one shard only, for the shard's process; None to open the source as given.

    Aligned rows can be anywhere in a file. The process then reads the whole file.
    """
    if shard is None or chosen is not None or not (file_of(source) or is_stored(source)):
        return None
    if not (isinstance(opened, CsvSource) and opened.one_a_line):
        return None
    return ScannedFile(source, opened.lines.near(shard.start + 1, shard.stop + 1))


def digests_of(opened: Source) -> dict[int, str]:
    """Return {block: digest} of the blocks that were read, for `SourceCheck.require`; {} if the source is not in blocks."""
    return dict(opened.digests) if isinstance(opened, BlockSource) else {}


def _content(task: PartyTask, opened: Source, *, ids: bool) -> str:
    wanted = list(contents_for(task))
    named = task.id if ids else ()
    return content_of(opened, [*named, *wanted] or opened.names[:1])


def require_content(task: PartyTask, opened: Source, content: str, *, ids: bool = False) -> None:
    """Raise DataError if the records of a source do not match the digest of `SourceCheck.content_for`; '' for no check."""
    if content and _content(task, opened, ids=ids) != content:
        raise opened.origin.error(
            "its function returned different rows, or rows in a different order, to different shards: let it return the same "
            "rows each time, or leave shards at 1"
        )


def shards_of(
    task: PartyTask,
    source: Any,
    opened: Source,
    index: Index | ChosenRows | None,
    shards: int,
    read: ReadIds | None = None,
) -> Iterator[tuple[Shard | None, ChosenRows | None]]:
    """Yield each shard of the party's records, with the shard's rows of the source if the records are aligned.

    index : the index, for which the ids are read again here, to detect a change since the alignment; or rows, if this process
        has just joined the parties' rows. If the records are neither aligned nor divided, (None, None) is yielded, and the
        records are counted later, as they are read.
    read : as for `check_aligned`.
    """
    if index is not None:
        chosen = index if isinstance(index, ChosenRows) else check_aligned(task, source, opened, index, read)
        if (persons := chosen.persons) is not None:
            if shards > 1:
                raise SpecificationError(ROWS_IN_ONE_PROCESS)
            order = persons.order
            yield None, replace(chosen, rows=chosen.rows[order], persons=persons.taken(order))
            return
        for shard in cut(chosen.n_records, shards):
            yield shard, chosen.part(shard.start, shard.stop)
    elif shards == 1:
        yield None, None
    else:
        for shard in cut(count_records(opened), shards):
            yield shard, None


def load_rows(
    task: PartyTask,
    source: Any,
    opened: Source,
    shard: Shard | None,
    chosen: ChosenRows | None = None,
    *,
    threads: int = 1,
    whole: bool = False,
) -> Rows | PersonRows | SubsampledRows:
    """Return one shard of a party's rows. Raises DataError before anything is computed.

    opened : the source (`open_for`). shard : None for all rows. chosen : the shard's rows of the source, in the order common to
        all parties, if the records are aligned. whole : True to check the cells of all rows even so.
    """
    job = task.job
    read = task if job.privacy is None else _total(task)
    columns, labels, groups = _read(read, source, opened, shard, chosen, whole=whole)
    columns.warm(private=job.privacy is not None)
    if task.row_rule is not None:
        if shard is not None:
            raise SpecificationError(ROWS_IN_ONE_PROCESS)
        n, persons = columns.n_records, None if chosen is None else chosen.persons
        persons = persons or Persons.of(np.arange(n), n, task.row_rule)  # rows that were not aligned are persons
        shared: dict[str, Any] = {"threads": threads, "n_outputs": job.n_outputs}
        if (subsamples := job.subsamples(persons.count)) is not None:
            return SubsampledRows(task.party, columns, labels, subsamples, persons=persons, **shared)
        apart = None if job.split is None else job.split.held_out(persons.count)
        groups = {} if apart is None else {column: codes[apart[persons.person]] for column, codes in groups.items()}
        return PersonRows(task.party, columns, labels, persons, apart=apart, groups=groups, **shared)
    first, n_trained = (0, None) if shard is None else (shard.start, shard.n_records)
    held_out: Storage | None = None
    held_labels: Vector | None = None
    total = n_trained or columns.n_records
    if (subsamples := job.subsamples(total)) is not None:
        return SubsampledRows(
            task.party, columns, labels, subsamples, start=first, threads=threads, n_outputs=job.n_outputs
        )
    if job.split is not None:
        start = first
        n_trained, _ = job.split.sizes(total)
        first -= job.split.counts([first])[0]
        apart = job.split.held_out(start + columns.n_records, start)
        columns, held_out = columns.parted(apart)
        groups = {column: codes[apart] for column, codes in groups.items()}
        if job.secure is not None and labels is not None:  # no query needs the labels of all records
            labels, held_labels = labels[~apart], labels[apart]
    return Rows(
        task.party,
        columns,
        labels,
        held_out=held_out,
        held_labels=held_labels,
        groups=groups,
        threads=threads,
        first=first,
        n_trained=n_trained,
        n_outputs=job.n_outputs,
    )


def load_features(task: PartyTask, source: Any) -> Storage:
    """Return the party's columns for all records, without label and intercept."""
    return load_range(task.features, source, open_for(task.features, source, ids=False), None, None)[0]


def load_absent(task: PartyTask) -> Storage:
    """Return the columns of one record that the party lacks. Raises DataError if a column has no fill for missing cells."""
    table = {column: pa.nulls(1) for column in contents_for(task)}
    opened = open_source(table, contents_for(task), party=task.party)
    return load_range(task, table, opened, None, ChosenRows(np.array([-1]), opened.at_most))[0]


def new_records(
    task: PartyTask, source: Any, *, chosen: ChosenRows | None = None, shards: int = 1
) -> Iterator[tuple[Storage, Vector | None]]:
    """Yield the columns and labels of new records, shard by shard. One shard at a time is in memory.

    task : names the columns to read. chosen : rows to read; None for all.
    """
    opened, unchanged, ranges = divided(task, source, chosen, shards)
    for shard, chosen in ranges:
        yield load_range(task, source, opened, shard, chosen)
    if shards > 1:
        unchanged.require()


def divided(
    task: PartyTask, source: Any, index: Index | ChosenRows | None, shards: int, read: ReadIds | None = None
) -> tuple[Source, SourceCheck, Iterator[tuple[Shard | None, ChosenRows | None]]]:
    """Open a source. Return the opened source, the check that it stays unchanged, and its shards (`shards_of`).

    Raises DataError if the source may give different rows to different processes.
    """
    if shards > 1:
        require_rereadable(source, party=task.party)
    opened = open_for(task, source, ids=index is not None)
    return opened, SourceCheck(source, opened), shards_of(task, source, opened, index, shards, read)


class ShardedSource:
    """A party's source, divided among shards. The process of each shard opens the source; a lost process can load again.

    Guarantee. Each record is in one shard: `load` raises DataError if two shards found different rows (`SourceCheck`).

    read : as for `check_aligned`.
    """

    def __init__(
        self, task: PartyTask, source: Any, index: Index | ChosenRows | None, shards: int, read: ReadIds | None = None
    ) -> None:
        opened, self._unchanged, ranges = divided(task, source, index, shards, read)
        # Every shard's process opens the files and watches them for changes.
        self._ranges = [(shard, chosen and replace(chosen, stamp=None)) for shard, chosen in ranges]
        self._content = self._unchanged.content_for(task, opened, ids=index is not None)
        self._places = [spec_for(source, opened, shard, chosen) for shard, chosen in self._ranges]

    def load(self, rows: Group, source: Any) -> list[Any]:
        """Make each process load its shard, and return the answers.

        rows : one object per shard with a method `load(source, shard, chosen, content)`, which returns an answer and the
            digests for `SourceCheck.require`. source : in the form that these objects open.
        """
        shards, chosen = map(Each, zip(*self._ranges, strict=True))
        sources = Each(place or source for place in self._places)
        answers = rows.fetch(rows.start("load", sources, shards, chosen, self._content))
        self._unchanged.require(digests for _, digests in answers)
        return [answer for answer, _ in answers]


def ids_of_shards(task: PartyTask, source: Any, opened: Source, rows: Group, handed: Any) -> tuple[DividedIds, str]:
    """Make each shard read and keep the ids of one range of rows. Return the ids of all rows, and the kind of the ids.

    Each id is read once. Raises DataError if the source changed between the reads of two shards (see `SourceCheck`).

    rows : one object per shard with the methods `read_ids(source, shard, content)`, which returns the kind and the digests of
        blocks, and the method that `DividedIds` calls. source, opened : in this process. handed : as these objects open it.
    """
    if rows.size > 1:
        require_rereadable(source, party=task.party)
    unchanged = SourceCheck(source, opened)
    shards = cut(count_records(opened), rows.size)
    content = unchanged.content_for(task, opened, ids=True)
    sources = Each(spec_for(source, opened, shard, None) or handed for shard in shards)

    def load() -> list[str]:
        answers = rows.ask("read_ids", sources, Each(shards), content)
        unchanged.require(digests for _, digests in answers)
        return [kind for kind, _ in answers]

    return read_divided(task, opened, shards, rows, load)


def load_range(
    task: PartyTask, source: Any, opened: Source, shard: Shard | None, chosen: ChosenRows | None
) -> tuple[Storage, Vector | None]:
    """Return columns and labels of one shard of new records; arguments as for `load_rows`."""
    columns, labels, _ = _read(task, source, opened, shard, chosen)
    return columns, labels


def _total(task: PartyTask) -> PartyTask:
    """Return a task that reads infinite values as the largest number wherever no bounds are declared, and clamps negative ones.

    In a private run, refusing an infinite or negative value would reveal one record's value to everybody. The contribution of
    the record is clipped in any case. The owner's log names the column of negative counts, weights and exposures.
    """
    scaling, label, most = task.scaling, task.label, float(np.finfo(task.storage).max)
    scaling = replace(scaling, lo=np.maximum(scaling.lo, -most), hi=np.minimum(scaling.hi, most))
    if label is not None and isinstance(label[1], RealLabel) and label[1].bounds is None:
        label = (label[0], replace(label[1], bounds=(-sys.float_info.max, sys.float_info.max)))
    if label is not None and isinstance(label[1], RealLabel):
        label = (label[0], replace(label[1], refuse_negative=False))
    factors = tuple(replace(factor, refuse_negative=False) for factor in task.factors)
    return replace(task, scaling=scaling, label=label, factors=factors)


def _read(
    task: PartyTask, source: Any, opened: Source, shard: Shard | None, chosen: ChosenRows | None, *, whole: bool = False
) -> tuple[Storage, Vector | None, Mapping[str, Integers]]:
    """Return columns, labels and group codes of one shard of the records, in their order.

    whole : as for `load_rows`.
    """
    wanted = task.canonical, task.schema, task.scaling
    options: dict[str, Any] = {"label": task.label, "factors": task.factors, "dtype": task.storage}
    if chosen is not None:
        if whole and isinstance(opened, SparseSource) and task.sparse:
            read_sparse(opened, *wanted, **options)
        opened = AlignedSource.of(opened, chosen, source)
    elif shard is not None:
        opened = rows_of(opened, shard.start, shard.stop)
    if not isinstance(opened, SparseSource):
        if whole and chosen is not None and isinstance(opened, AlignedSource):
            groups = GroupReader(task.schema, task.groups, opened.origin, chosen.n_rows)
            opened.every = ColumnReaders(opened.origin, chosen.n_rows, *wanted, groups=groups, **options)
        groups = GroupReader(task.schema, task.groups, opened.origin, opened.at_most)
        columns, labels = read_columns(opened, *wanted, groups=groups, intercept=task.intercept, **options)
        codes = groups.codes(columns.n_records)
        if not isinstance(opened, AlignedSource):
            return columns, labels, codes
        order = opened.order
        return *opened.ordered(columns, labels), {column: own[order] for column, own in codes.items()}
    if task.groups:
        raise opened.origin.error(
            f"a sparse matrix holds only numbers, but its column {task.groups[0]!r} must name the groups for the fairness "
            "check: give the party's dense table, or name a column of another party"
        )
    if task.columns and not task.sparse:
        raise opened.origin.error(
            "shifting or centring its columns would fill a sparse matrix: name the party in the partition's sparse, "
            f'sparse = ["{task.party}"], or give a dense table (.toarray())'
        )
    return *read_sparse(opened, *wanted, intercept=task.intercept, **options), {}
