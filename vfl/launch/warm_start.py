"""Jobs that start from a released model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.arguments import require
from vfl.errors import OutputError, SpecificationError
from vfl.job.job import require_job
from vfl.job.start import Start
from vfl.launch.run.result import Result
from vfl.losses import loss_of

if TYPE_CHECKING:
    from vfl.job import Job


def starting_from(job: Job, model: Result | str | Path | None) -> Job:
    """Return the job with a start from a result, or from the run in a folder; for None return the job itself.

    A released model is public, so it costs no budget. Its coefficients are taken in original units, so bounds may differ.

    Raises SpecificationError if the model has different columns or another loss, OutputError if its certificate does not
    match it.
    """
    if model is None:
        return job
    require_job(job)
    fits = isinstance(model, Result | str | Path)
    require("warm_start", model, "a vfl.Result, or the folder of a run", fits=fits)
    result = model if isinstance(model, Result) else Result.load(model)
    if why := result.altered():
        raise OutputError(f"training cannot start from this model, since its certificate does not hold: {why}")
    own, other = loss_of(job.loss).name, loss_of(result.job.loss).name
    if own != other:
        raise SpecificationError(
            f"the model to start from was trained with {other} loss, and the job has {own} loss: "
            "start from a model of the job's loss"
        )
    certificate = result.certificate
    start = Start(model=certificate.model_digest, coefficients=result.original, private=certificate.private)
    return replace(job, start=start)
