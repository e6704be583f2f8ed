"""Reading one party's part of a job's data, where it lies."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.reading import AlignedSource, label_of, open_aligned
from parties.consent import Policy, policy_of
from parties.party import Party
from parties.sources.opening import open_source
from parties.sources.sparse import SparseSource
from parties.storage.cells import contents_of
from parties.storage.dense import read_columns
from parties.storage.sparse import read_sparse
from vfl.planning import unnoised
from vfl.schema import RealLabel

if TYPE_CHECKING:
    from parties.alignment.index import Index
    from parties.sources.base import Source
    from parties.storage.base import Storage
    from vfl.job import Job
    from vfl.schema import Label
    from vfl.types import Vector


def consented(job: Job, party: str, policy: str | None = None) -> Policy | None:
    """Return the owner's policy once it has agreed to the job, None where nothing is asked; ConsentRefused otherwise.

    policy : path of its owner's policy (parties.consent), read here, before any data are opened.
    """
    agreed = policy_of(policy)
    if agreed is not None:
        agreed.check(job, party)
    return agreed


def load(
    job: Job,
    party: str,
    source: Any,
    policy: str | Policy | None = None,
    *,
    index: Index | None = None,
    threads: int = 1,
) -> Party:
    """Return the party with its columns read, declared, scaled; its noise comes from the operating system.

    Only a job that asks for seeded noise by name gets another source. Raises DataError before anything is computed.

    policy : path of its owner's policy, asked as by `consented` before the source is opened, or a policy that has agreed
        already. Without one nothing is asked and no book is kept.
    index : the aligned rows, in their order (parties.alignment.participant); None takes all rows as they are.
    threads : that the party's kernels may take.
    """
    agreed = policy if isinstance(policy, Policy) else consented(job, party, policy)
    label = (job.partition.label_column, label_of(job)) if party == job.partition.label_party else None
    columns, labels = _read(
        job,
        party,
        source,
        label,
        intercept=job.intercept and label is not None,
        dtype=job.storage,
        index=index,
        total=job.privacy is not None,
    )
    columns.warm(private=job.privacy is not None)
    alignment = "" if index is None else index.hash
    held_out = None
    if job.split is not None:
        job.split.sizes(columns.n_records)
        columns, held_out = columns.parted(job.split.held_out(columns.n_records))
    facts: dict[str, Any] = {
        "unnoised": unnoised(job),
        "alignment": alignment,
        "held_out": held_out,
        "threads": threads,
    }
    if agreed is None or job.privacy is None:
        return Party(party, columns, job.noise_source(), labels, **facts)
    from parties.book import PartyBook

    return Party(party, columns, job.noise_source(), labels, PartyBook(agreed, job, party), **facts)


def load_features(job: Job, party: str, source: Any, *, index: Index | None = None) -> Storage:
    """Return the party's columns without label or intercept, for prediction; `index` as for `load`."""
    return _read(job, party, source, None, intercept=False, dtype="float64", index=index)[0]


def load_labels(job: Job, source: Any) -> Vector:
    """Return y of all records of the label party's source, for measuring in the clear."""
    label = (job.partition.label_column, label_of(job))
    labels = _read(job, job.partition.label_party, source, label, intercept=False, dtype="float64")[1]
    return np.zeros(0) if labels is None else labels


def _read(
    job: Job,
    party: str,
    source: Any,
    label: tuple[str, Label] | None,
    *,
    intercept: bool,
    dtype: str,
    index: Index | None = None,
    total: bool = False,
) -> tuple[Storage, Vector | None]:
    """Return columns and labels.

    total : take infinity for the largest number where no bounds are declared. In a private run the refusal would tell
        everybody of one record's cell; what such a record contributes is clipped like any other.
    """
    names = job.partition.canonical_columns(party)
    scaling = job.scaling_of(names)
    if total:
        most = float(np.finfo(dtype).max)
        scaling = replace(scaling, lo=np.maximum(scaling.lo, -most), hi=np.minimum(scaling.hi, most))
        if label is not None and label[1] == RealLabel():
            label = (label[0], RealLabel((-sys.float_info.max, sys.float_info.max)))
    options: dict[str, Any] = {"intercept": intercept, "label": label, "dtype": dtype}
    opened: Source | SparseSource | AlignedSource
    if index is not None:
        opened = open_aligned(job, party, source, index, label=label is not None)
    else:
        # A bare array is in the declared order; the blocks' order is only how columns are stored.
        opened = open_source(source, contents_of(job.schema, job.partition.columns(party), label), party=party)
    if isinstance(opened, AlignedSource):
        return opened.ordered(*read_columns(opened, names, job.schema, scaling, **options))
    if not isinstance(opened, SparseSource):
        return read_columns(opened, names, job.schema, scaling, **options)
    if names and party not in job.sparse:
        raise opened.origin.error(
            "is a sparse matrix, which shifting or centring its columns would fill: name the party in the job's sparse, "
            f"sparse=[{party!r}], or give its dense array (.toarray())"
        )
    return read_sparse(opened, names, job.schema, scaling, **options)
