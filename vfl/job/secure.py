"""Check that a job can run with trust='secure'. Other jobs are refused before any data are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.errors import PrivacyError, SpecificationError
from vfl.losses import loss_of
from vfl.secure.roles import DEALER
from vfl.solvers.on_shares import why_not

if TYPE_CHECKING:
    from vfl.job.job import Job


def require_offered(job: Job) -> None:
    """Raise SpecificationError unless the job can be trained on shares; raise PrivacyError if the guarantee is the reason."""
    secure, partition, privacy = job.secure, job.partition, job.privacy
    if job.trust != "secure" or secure is None:
        return
    if privacy is None:
        raise PrivacyError("trust='secure' needs privacy: without noise, the released sums are exact gradients")
    parties = partition.parties
    if DEALER in parties:
        raise SpecificationError(
            f"party {DEALER!r} would be the dealer and could remove every mask: run the dealer elsewhere, or rename "
            "the party"
        )
    if len(parties) < 2:
        raise SpecificationError(
            "trust='secure' divides residuals among at least two parties, and the partition has one: use trust='trusted'"
        )
    if not secure.collude < len(parties):
        raise SpecificationError(
            f"secure: collude = {secure.collude} of {len(parties)} parties leaves no party to protect: give at most "
            f"{len(parties) - 1}"
        )
    for party in parties:
        if not partition.columns(party) and not (job.intercept and party == partition.label_party):
            raise SpecificationError(
                f"trust='secure' needs at least one column at every party, and party {party!r} has none: leave the party out"
            )
    loss = loss_of(job.loss)
    if why := why_not(job.solver, loss):
        raise SpecificationError(
            "trust='secure' offers logistic loss with SkGD, CD, GD and squared loss with NoisyGram; "
            f"{job.solver.name} with {loss.name} needs {why}: use one of these, or trust='trusted'"
        )
    for asked, words, remedy in (
        (
            job.holdout is not None,
            "measures held-out records from their margins",
            "leave holdout out, and measure the model on other records (vfl evaluate)",
        ),
        (job.diagnostics, "releases the objective from margins", "leave diagnostics out"),
        (
            privacy.inference is not None,
            "takes standard errors from margins or from subsamples, which shares do not have",
            "leave privacy.inference out",
        ),
        (privacy.smoothness == "data", "releases exact moments", "use smoothness='private'"),
        (job.start is not None, "starts from a released model", "leave start out, so that training starts at 0"),
        (partition.weight is not None, "weights its records", "leave weight out"),
        (bool(job.sparse), "keeps columns sparse, and masked columns are dense", "leave sparse out"),
    ):
        if asked:
            raise SpecificationError(f"under trust='secure' nobody sees margins, and this job {words}: {remedy}")
    if unbounded := job.schema.unbounded(partition.features):
        raise SpecificationError(
            f"trust='secure' rounds columns to fixed steps and needs bounds for {unbounded[0]!r}: declare them"
        )
