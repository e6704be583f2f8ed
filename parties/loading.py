"""Loading of one party's data for a job, in the party's own process."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.reading import AlignedSource, open_aligned
from parties.consent import Policy, policy_of
from parties.party import Party
from parties.sources.opening import open_source
from parties.sources.sparse import SparseSource
from parties.storage.cells import contents_of
from parties.storage.dense import read_columns
from parties.storage.groups import GroupReader
from parties.storage.sparse import read_sparse
from vfl.planning import unnoised
from vfl.schema import RealLabel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parties.alignment.index import Index
    from parties.session import Credentials
    from parties.sources.base import Source
    from parties.storage.base import Storage
    from vfl.job.task import PartyTask
    from vfl.types import Integers, Vector


def consented(task: PartyTask, policy: str | None = None) -> Policy | None:
    """Return the owner's policy once it has agreed to the job, None where nothing is asked; ConsentRefused otherwise.

    policy : path of its owner's policy (parties.consent), read here, before any data are opened.
    """
    agreed = policy_of(policy)
    if agreed is not None:
        agreed.check(task.job, task.party)
    return agreed


def load(
    task: PartyTask,
    source: Any,
    policy: str | Policy | None = None,
    *,
    index: Index | None = None,
    threads: int = 1,
    own: Credentials | None = None,
) -> Party:
    """Return the party with its columns read, declared, scaled; its noise comes from the operating system.

    A job gets seeded noise only if it names it. Raises DataError before anything is computed.

    policy : path of the owner's policy, which is asked before the source is opened (`consented`), or a policy that has
        agreed already. None asks nobody and keeps no book.
    index : the aligned rows, in their order (parties.alignment.participant); None takes all rows as they are.
    threads : number of threads of the party's kernels.
    own : the party's identity across organisations, for the keys of a run on shares.
    """
    job, party = task.job, task.party
    agreed = policy if isinstance(policy, Policy) else consented(task, policy)
    columns, labels, groups = _read(task if job.privacy is None else _total(task), source, index)
    columns.warm(private=job.privacy is not None)
    alignment = "" if index is None else index.hash
    held_out = None
    if job.split is not None:
        job.split.sizes(columns.n_records)
        apart = job.split.held_out(columns.n_records)
        columns, held_out = columns.parted(apart)
        groups = {column: codes[apart] for column, codes in groups.items()}
    facts: dict[str, Any] = {
        "unnoised": unnoised(job),
        "alignment": alignment,
        "held_out": held_out,
        "groups": groups,
        "threads": threads,
    }
    noise, book = job.noise_source(), None
    if agreed is not None and job.privacy is not None:
        from parties.book import PartyBook

        book = PartyBook(agreed, job, party)
    if job.trust == "secure":
        from parties.holder import Holder

        facts["holder"] = Holder(job, party, columns, noise, labels, book, own)
    return Party(party, columns, noise, labels, book, **facts)


def load_features(task: PartyTask, source: Any, *, index: Index | None = None) -> Storage:
    """Return the party's columns without label or intercept, for prediction; `index` as for `load`."""
    return _read(task.features, source, index)[0]


def load_labels(task: PartyTask, source: Any) -> Vector:
    """Return y of all records of the label party's source, for measuring in the clear."""
    labels = _read(replace(task, groups=()), source, None)[1]
    return np.zeros(0) if labels is None else labels


def _total(task: PartyTask) -> PartyTask:
    """Return the task with infinity taken for the largest number where no bounds are declared.

    In a private run the refusal would tell everybody of one record's cell; the contribution of such a record is clipped
    like any other.
    """
    scaling, label, most = task.scaling, task.label, float(np.finfo(task.storage).max)
    scaling = replace(scaling, lo=np.maximum(scaling.lo, -most), hi=np.minimum(scaling.hi, most))
    if label is not None and label[1] == RealLabel():
        label = (label[0], RealLabel((-sys.float_info.max, sys.float_info.max)))
    return replace(task, scaling=scaling, label=label)


def _read(task: PartyTask, source: Any, index: Index | None) -> tuple[Storage, Vector | None, Mapping[str, Integers]]:
    """Return columns, labels and codes of groups; of the aligned rows alone, in their order, where there is an index."""
    opened: Source | SparseSource | AlignedSource
    if index is not None:
        opened = open_aligned(task, source, index)
    else:
        # A bare array is in the declared order; the blocks' order is only how columns are stored.
        contents = contents_of(task.schema, task.columns, task.label, task.groups)
        opened = open_source(source, contents, party=task.party)
    wanted = task.canonical, task.schema, task.scaling
    options: dict[str, Any] = {"intercept": task.intercept, "label": task.label, "dtype": task.storage}
    if not isinstance(opened, SparseSource):
        groups = GroupReader(task.schema, task.groups, opened.origin, opened.at_most)
        columns, labels = read_columns(opened, *wanted, groups=groups, **options)
        codes = groups.codes(columns.n_records)
        if not isinstance(opened, AlignedSource):
            return columns, labels, codes
        order = opened.order
        return *opened.ordered(columns, labels), {column: own[order] for column, own in codes.items()}
    if task.groups:
        raise opened.origin.error(
            f"is a sparse matrix, which holds numbers, and fairness is checked by its column {task.groups[0]!r}: give the "
            "party's dense table, or name a column of another party"
        )
    if task.columns and not task.sparse:
        raise opened.origin.error(
            "is a sparse matrix, which shifting or centring its columns would fill: name the party in the job's sparse, "
            f'sparse = ["{task.party}"], or give a dense table (.toarray())'
        )
    return *read_sparse(opened, *wanted, **options), {}
