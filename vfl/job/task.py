"""One party's view of a job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vfl.schema import BinaryLabel, ClassLabel, Factor, RealLabel
from vfl.security.identifiers import IdKind

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.schema import Label, Scaling, Schema


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartyTask:
    """All that one party needs to know of a job to read its data. Public, and derived from declarations alone.

    job : the whole job, which the owner's policy and book judge.
    columns : in the declared order, which is that of an array without names. Their names are those of the job; the schema
        knows the columns of the party's data that they are read from.
    canonical : the same columns in the order in which they are stored, where every block is contiguous.
    schema : the declarations of all columns of the job. scaling : of the canonical columns.
    sparse : whether zeros have to stay zeros. storage : 'float64' or 'float32'.
    label : (column of the party's data, declaration) where the party holds the label and it is wanted.
    intercept : whether a column of ones is stored after the others.
    id : column by which records are aligned, None without alignment. id_kind : how ids are compared; None takes the kind
        of the column's own type.
    groups : columns by which fairness is checked, features or not.
    factors : exposure and weight, where the party holds the label and it is wanted.
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
        """Derive the view of one party. Raises PartitionError for a name that is not a party."""
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
        """The view for prediction: the columns alone, without label, groups and intercept, in float64."""
        return replace(self, label=None, intercept=False, storage="float64", groups=(), factors=())

    @property
    def measured(self) -> PartyTask:
        """The view for measuring a released model on new records: as `features`, with the label and the exposure."""
        factors = tuple(factor for factor in self.factors if factor.role != "weight")
        return replace(self.features, label=self.label, factors=factors)

    def __repr__(self) -> str:
        return f"PartyTask(job {self.job.name!r}, party {self.party!r})"


def factors_of(job: Job) -> tuple[Factor, ...]:
    """Return the declarations of the numbers that the label's owner passes on after the label."""
    partition = job.partition
    held = {"exposure": partition.exposure, "weight": partition.weight}
    return tuple(
        Factor(role, partition.local(column), job.schema[column].limits)
        for role, column in held.items()
        if column is not None
    )


def label_of(job: Job) -> Label:
    """Return the label's declaration: classes for classification, else a number within its declared bounds."""
    classes: Any = job.classes
    if job.multinomial:
        return ClassLabel(classes)
    if job.classification:
        return BinaryLabel(classes)
    column = job.partition.label_column
    return RealLabel(None if job.schema.unbounded([column]) else job.schema[column].limits)
