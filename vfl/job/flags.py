"""Flags: sentences about data-dependent values that a job releases without charging for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.job.job import Job

UNCHARGED = "trained with privacy=None: the model is not differentially private"
NOT_PRIVATE = "NOT PRIVATE"


def flags_of(job: Job) -> tuple[str, ...]:
    """Return one sentence for each data-dependent value that the job leaves uncharged; () when everything is charged."""
    privacy = job.privacy
    if privacy is None:
        return (UNCHARGED,)
    flags = []
    if privacy.noise is not None:
        flags.append(f"{NOT_PRIVATE}: the noise is seeded, so anyone who knows the seed can subtract it")
    if privacy.smoothness == "data":
        flags.append(
            f"{NOT_PRIVATE} as a whole: means and smoothness of the columns were computed from the data and not charged "
            "(smoothness='data'); ε would hold only if these had been fixed public numbers"
        )
    if job.uncharged:
        flags.append(f"{NOT_PRIVATE} as a whole: {job.uncharged}")
    if job.read_from_data:
        flags.append(
            f"{NOT_PRIVATE} as a whole: the job rests on {job.read_from_data}, read from the records and not charged: one "
            "record can change them, and with them what every other record contributes"
        )
    if job.start is not None and not job.start.private:
        flags.append(
            f"{NOT_PRIVATE} as a whole: training starts from the model {job.start.model[:12]}, whose own certificate gives no "
            "guarantee; ε would hold only if that model were public knowledge"
        )
    return tuple(flags)
