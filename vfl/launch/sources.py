"""Data sources of the parties: one source given per party, or one table that is split to simulate the parties."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl import examples
from vfl.base.arguments import require
from vfl.base.csv import Csv
from vfl.errors import SpecificationError, nearest
from vfl.job.environment import Environment, Source, path_of
from vfl.job.file import EXAMPLE
from vfl.job.site import Ray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from parties.prediction import ModelPart
    from parties.sources.base import Content
    from vfl.base.partition import FeaturePartition
    from vfl.base.types import Vector
    from vfl.job import Job

IDS = ("id", "uid", "uuid", "key", "customer", "subscriber", "client", "patient", "person", "user", "account")


def data_of(job: Job, environment: Environment) -> Any:
    """Return the training data with their owners' rules: {party: source}; for a simulation one table, which is read here."""
    policies, indexes = environment.policies, environment.indexes
    if environment.table is None:
        return {p: Source(given, policies.get(p), indexes.get(p)) for p, given in environment.data.items()}
    from parties.sources.opening import in_one_table, read_table

    if isinstance(environment.table, str) and environment.table.startswith(EXAMPLE):
        return Source(examples.table(environment.table.removeprefix(EXAMPLE)), policies, indexes)
    ask_owners(job, environment.table, policies)
    table = read_table(environment.table, in_one_table(_contents(job, ids=True), job.table_names))
    return Source(table, policies, indexes)


def of_environment(job: Job, data: Any, at: Any, ledger: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return data, site and ledger for the arguments of a command, and the record of the data for the run's log.

    If `data` is the environment of a job file, its data are opened, and it names the site and the ledger that are None.
    """
    if not isinstance(data, Environment):
        return data, at, ledger, {}
    own = None if data.table is not None and data.site == Ray() else data.site
    return data_of(job, data), own if at is None else at, data.ledger if ledger is None else ledger, data.to_dict()


def owned(parties: Collection[str], data: Any) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Return data without their owners' rules, {party: policy}, and {party: folder of its index}. Paths are absolute."""
    rules: dict[str, dict[str, Any]] = {"policy": {}, "index": {}}
    if isinstance(data, Source):
        for what, named in rules.items():
            given = getattr(data, what) or {}
            require(what, given, "{party: path} for one table of all parties", fits=isinstance(given, Mapping))
            named.update(given)
        data = data.data
    if isinstance(data, Mapping) and any(isinstance(source, Source) for source in data.values()):
        for what, named in rules.items():
            of_each = {p: getattr(source, what) for p, source in data.items() if isinstance(source, Source)}
            named.update({p: given for p, given in of_each.items() if given is not None})
        data = {p: source.data if isinstance(source, Source) else source for p, source in data.items()}
    policies, indexes = (_paths(parties, named, what) for what, named in rules.items())
    return data, policies, indexes


def in_memory(data: Any) -> bool:
    """Return True for tables in this process; False for sources that a party has to open."""
    if isinstance(data, Mapping):
        return all(map(in_memory, data.values()))
    from parties.sources.blocks import is_dataset

    ray = sys.modules.get("ray")
    stored = ray is not None and isinstance(data, ray.ObjectRef)
    return data is not None and not (isinstance(data, str | Path | Csv) or callable(data) or is_dataset(data) or stored)


def named_for(partition: FeaturePartition, data: Any) -> dict[str, Any]:
    """Return {party: source as given}: the party's own source, or the one table of all parties."""
    if is_by_party(partition, data):
        return {party: data[party] for party in partition.parties if party in data}
    return dict.fromkeys(partition.parties, data)


def is_by_party(partition: FeaturePartition, data: Any) -> bool:
    """Return True for {party: source}, False for one table of all columns."""
    return isinstance(data, Mapping) and any(name in partition.parties for name in data)


def ask_owners(job: Job, data: Any, policies: Mapping[str, str], *others: Job, here: bool = False) -> None:
    """Check the job against every owner's policy before this process opens a table of all parties. Raises ConsentRefused.

    A party with a source of its own checks its policy itself, where the party opens the source.

    here : True if all parties compute in this process. Then every policy is checked here, for any kind of data.
    others : further jobs on the same data; the owners' budgets must be enough for all jobs together.
    """
    from parties.ledger import require_room
    from parties.loading import consented

    if here or not (isinstance(data, Mapping) or in_memory(data)):
        for party, source in named_for(job.partition, data).items():
            for each in (job, *others):
                agreed = consented(each.for_party(party), source, policies.get(party))
            if others and agreed is not None:
                require_room(agreed, party, *others)


def named_by_owners(partition: FeaturePartition, data: Mapping[str, str] | None) -> dict[str, str]:
    """Return {party: name that the owner gave to the party's source}. Raises SpecificationError for any other data.

    A party of another organisation opens its own source. The party receives neither data nor a path.
    """
    given = {} if data is None else data
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given.values()):
        raise SpecificationError(
            "a federation's parties hold the data: give {party: name of its source}, or nothing where each has one"
        )
    _require_parties(given, partition.parties, "data are named")
    return dict(given)


def _require_parties(given: Iterable[str], parties: Collection[str], what: str) -> None:
    for name in given:
        if name not in parties:
            raise SpecificationError(f"{what} for {name!r}, which is not a party{nearest(str(name), parties)}")


def _paths(parties: Collection[str], paths: Mapping[str, str | Path], what: str) -> dict[str, str]:
    _require_parties(paths, parties, f"{'an' if what == 'index' else 'a'} {what} is given")
    for name, path in paths.items():
        require(f"the {what} of {name!r}", path, "a path", fits=isinstance(path, str | Path))
    return {name: str(Path(path).expanduser().absolute()) for name, path in paths.items()}


def sources_of(
    job: Job, data: Any, *, label: bool = True, groups: bool | None = None, ids: bool = False
) -> dict[str, Any]:
    """Return {party: source} in the partition's order.

    data : {party: source}, which the owners will open, or one table of all columns, which is split here.
    label : True gives the label party its label. ids : True gives each party its id column.
    groups : True gives each party its group columns, and the label party the weights; None uses the value of `label`. Measures
        of a released model read neither groups nor weights.
    """
    partition, groups = job.partition, label if groups is None else groups
    parties = partition.parties
    if is_by_party(partition, data):
        _require_parties(data, parties, "data are given")
        for name in parties:
            if name not in data and partition.wanted(name, label=label, groups=groups):
                raise SpecificationError(f"no data are given for party {name!r}")
        return {name: data[name] for name in parties if name in data}
    if job.base(parties) or any(job.for_party(party).aggregates for party in parties):
        raise SpecificationError(
            "in a left join, and for aggregates of the rows of an id, the parties' tables have different rows: give each party "
            "its own source, {party: source}"
        )
    from parties.sources.opening import split_table

    parts = _contents(job, label=label, groups=groups, ids=ids)
    return split_table(data, partition, parts, label=label, names=job.table_names)


def on_joined_rows(
    job: Job,
    part_of: Callable[[str], ModelPart],
    data: Any,
    policies: Mapping[str, str],
    compute: Callable[..., Vector],
    *,
    labels: bool = False,
) -> tuple[dict[str, Vector], dict[str, Any], dict[str, Any]]:
    """Return {party: values per record}, the sources, and {party: its chosen rows, or None}, in one order of the records.

    Guarantee. Every owner's policy is checked before any source is opened.

    part_of : function of a party that returns its part of the model.
    compute : function from a party's model part and source to values, one row per record, with the keywords `permission` and
        `chosen` (ModelPart.scores).
    labels : True if the caller also reads the label party's labels.
    """
    from parties.alignment.reading import joined_rows
    from parties.prediction import all_permitted

    partition = job.partition
    given, parts = named_for(partition, data), {party: part_of(party) for party in partition.parties}
    permissions = all_permitted(parts, given, policies, receiver=partition.label_party, measured=labels)
    sources = sources_of(job, data, label=labels)
    joined, _ = joined_rows(job, sources)
    rows = {party: joined.get(party) for party in sources}
    held = {party: source for party, source in sources.items() if partition.columns(party)}
    found = {
        party: compute(parts[party], source, permission=permissions[party], chosen=rows[party])
        for party, source in held.items()
    }
    first = rows.get(partition.label_party)
    if first is not None and first.person is not None:  # rows of one id stand together
        order = np.argsort(first.rows, kind="stable")
        found = {p: (v if p == partition.label_party else v[first.person])[order] for p, v in found.items()}
        rows[partition.label_party] = replace(first, rows=first.rows[order], person=None)
    return found, sources, rows


def _contents(job: Job, *, label: bool = True, groups: bool = True, ids: bool = False) -> dict[str, dict[str, Content]]:
    """Return {party: {column: content}} for one table. Each column is read as its party would read it from its own data."""
    from parties.storage.cells import contents_of

    contents: dict[str, dict[str, Content]] = {}
    for party in job.partition.parties:
        task = job.for_party(party)
        held = task.groups if groups else ()
        factors = task.factors if groups else task.measured.factors
        contents[party] = contents_of(task.schema, task.columns, task.label if label else None, held, factors)
        if ids:
            contents[party] |= dict.fromkeys(task.id, "id")
    return contents


def row_order_warnings(job: Job, files: Mapping[str, str | Csv]) -> tuple[str, ...]:
    """Return a warning if a job matches records by row number although a file has a column that is named like an id.

    If the rows of such files are in different orders, the model is meaningless and no released number reveals it. The check
    reads only the names of columns, and ignores the columns that the job uses.

    files : {party: path, or a text file with its format}. Paths that are not files on this machine are ignored.
    """
    if job.ids or len(files) < 2:
        return ()
    from parties.sources.files import column_names

    found = {}
    for party, source in files.items():
        used = {*job.wanted(party), job.partition.label[1]}
        found[party] = next((c for c in column_names(source) if named_as_id(c) and c not in used), None)
    seen = {party: column for party, column in found.items() if column is not None}
    if not seen:
        return ()
    named = ", ".join(f"{Path(path_of(files[party])).name} has a column {column!r}" for party, column in seen.items())
    columns = set(found.values())
    spelt = ", ".join(f"{json.dumps(party)} = {json.dumps(column or '...')}" for party, column in found.items())
    value = json.dumps(columns.pop(), ensure_ascii=False) if len(columns) == 1 else f"{{ {spelt} }}"
    warning = (
        f"row i of every file is taken for the same record, so all files must hold the same records in one order; {named}: "
        f"id = {value} at the top of the job file aligns them"
    )
    return (warning,)


def named_as_id(column: str) -> bool:
    """Return True if a column has a usual name of an id."""
    return column.lower() in IDS or column.lower().endswith(("_id", "-id", " id"))
