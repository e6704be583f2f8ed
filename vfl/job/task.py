"""Task of one party: the part of a job that the party needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vfl.losses import loss_of
from vfl.schema import BinaryLabel, ClassLabel, Factor, RealLabel
from vfl.security.identifiers import IdKind

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.schema import Label, Scaling, Schema


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartyTask:
    """Public facts of a job that one party needs to read the party's data. They follow from declarations alone.

    job : the whole job, which the owner's policy and the party's own ledger check.
    columns : the job's names of the party's columns in the declared order, which is the order of an array without names. The
        schema maps these names to the columns in the party's data.
    canonical : the same columns in the order of storage, in which every block is contiguous.
    schema : the declarations of all columns of the job. scaling : scaling of the canonical columns.
    sparse : True if zeros have to stay zeros. storage : 'float64' or 'float32'.
    label : (column in the party's data, declaration), if the party holds the label and the label is wanted.
    intercept : True if a column of ones is stored after the other columns.
    id : column by which records are aligned; None without alignment. id_kind : as in `Job`.
    groups : columns by which fairness is checked; such a column may be a feature too.
    factors : exposure and weight, if the party holds the label and the factors are wanted.
    """

    job: Job
    party: str
    columns: tuple[str, ...]
    canonical: tuple[str, ...]
    schema: Schema
    scaling: Scaling
    sparse: bool
    storage: str
    label: tuple[str, Label] | None
    intercept: bool
    id: str | None
    id_kind: IdKind | None
    groups: tuple[str, ...] = ()
    factors: tuple[Factor, ...] = ()

    @classmethod
    def of(cls, job: Job, party: str) -> PartyTask:
        """Return the task of one party. Raises PartitionError for an unknown party."""
        partition = job.partition
        canonical = partition.canonical_columns(party)
        label = (partition.label[1], label_of(job)) if party == partition.label_party else None
        return cls(
            job=job,
            party=party,
            columns=partition.columns(party),
            canonical=canonical,
            schema=job.schema,
            scaling=job.scaling_of(canonical),
            sparse=party in job.sparse,
            storage=job.storage,
            label=label,
            intercept=job.intercept and label is not None,
            id=job.ids.get(party),
            id_kind=None if job.id_kind is None else IdKind(job.id_kind),
            groups=tuple(c for c in (job.fairness.columns if job.fairness else ()) if partition.owner(c) == party),
            factors=factors_of(job) if label is not None else (),
        )

    @property
    def features(self) -> PartyTask:
        """Return the task for prediction: columns in float64, without label, groups and intercept."""
        return replace(self, label=None, intercept=False, storage="float64", groups=(), factors=())

    @property
    def measured(self) -> PartyTask:
        """Return the task for measuring a released model on new records: that of `features`, with label and exposure."""
        factors = tuple(factor for factor in self.factors if factor.role != "weight")
        return replace(self.features, label=self.label, factors=factors)

    def __repr__(self) -> str:
        return f"PartyTask(job {self.job.name!r}, party {self.party!r})"


def factors_of(job: Job) -> tuple[Factor, ...]:
    """Return the declarations of the per-record numbers that the label's owner sends after the label."""
    partition = job.partition
    held = {"exposure": partition.exposure, "weight": partition.weight}
    return tuple(
        Factor(role, partition.local(column), job.schema[column].limits)
        for role, column in held.items()
        if column is not None
    )


def label_of(job: Job) -> Label:
    """Return the label's declaration: classes for classification, else a number with its declared bounds."""
    classes: Any = job.classes
    if job.multinomial:
        return ClassLabel(classes)
    if job.classification:
        return BinaryLabel(classes)
    column = job.partition.label_column
    bounds = None if job.schema.unbounded([column]) else job.schema[column].limits
    return RealLabel(bounds, refuse_negative=loss_of(job.loss).power is not None)
