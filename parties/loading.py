"""Reading one party's part of a job's data, where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parties.columns import contents_of, read_columns
from parties.consent import policy_of
from parties.party import Party
from parties.sources import open_source
from vfl import kernels
from vfl.planning import unnoised
from vfl.schema import BinaryLabel, Label, RealLabel

if TYPE_CHECKING:
    from parties.columns import Columns
    from vfl.job import Job
    from vfl.types import Vector


def load(job: Job, party: str, source: Any, policy: str | None = None) -> Party:
    """Return the party with its columns read, declared, scaled; its noise comes from the operating system.

    Only a job that asks for seeded noise by name gets another source. Raises DataError before anything is computed.

    policy : path of its owner's policy (parties.consent), read here; the source is opened only when it agrees to the
        job, else ConsentRefused is raised. Without one nothing is asked and no book is kept.
    """
    agreed = policy_of(policy)
    if agreed is not None:
        agreed.check(job, party)
    label = (job.partition.label_column, label_of(job)) if party == job.partition.label_party else None
    columns, labels = _read(job, party, source, label, intercept=job.intercept and label is not None, dtype=job.storage)
    kernels.warm(columns.array.dtype, private=job.privacy is not None)
    if agreed is None or job.privacy is None:
        return Party(party, columns, job.noise_source(), labels, unnoised=unnoised(job))
    from parties.book import PartyBook

    return Party(party, columns, job.noise_source(), labels, PartyBook(agreed, job, party), unnoised(job))


def load_features(job: Job, party: str, source: Any) -> Columns:
    """Return the party's columns without label or intercept, for prediction."""
    return _read(job, party, source, None, intercept=False, dtype="float64")[0]


def label_of(job: Job) -> Label:
    """Return how the label is declared: binary for classification, else a number within its declared bounds."""
    if job.classification:
        return BinaryLabel(job.classes)
    low_high = job.schema[job.partition.label_column].limits
    return RealLabel(low_high if job.schema.unbounded([job.partition.label_column]) == () else None)


def _read(
    job: Job, party: str, source: Any, label: tuple[str, Label] | None, *, intercept: bool, dtype: str
) -> tuple[Columns, Vector | None]:
    names = job.partition.canonical_columns(party)
    # A bare array is in the declared order; the blocks' order is only how columns are stored.
    opened = open_source(source, contents_of(job.schema, job.partition.columns(party), label), party=party)
    return read_columns(opened, names, job.schema, job.scaling_of(names), intercept=intercept, label=label, dtype=dtype)
