"""Export of a finished run to experiment trackers: parameters, metrics and tags, as plain values or in MLflow.

The export holds only public facts and released values: declarations of the job, the certificate's statement, and measures
that were released with noise and charged. Measures without noise, durations and the locations of the data are left out.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.errors import OutputError, SpecificationError
from vfl.launch.sites.connection import require_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

UNCHARGED = ("diagnostics",)
"""Findings that are neither noised nor charged, so they are not exported."""
LONGEST = 500
"""Largest number of characters of a parameter or a tag. Trackers refuse longer ones."""
LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "15", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Limits used instead of MLflow's defaults (120 s per request, seven retries), unless the environment sets them."""


@dataclass(frozen=True, slots=True)
class TrackedValues:
    """Plain values of a run. params and tags are text or numbers, metrics are finite numbers. Names are valid in MLflow."""

    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return params, metrics and tags as tables, for JSON."""
        return {"params": dict(self.params), "metrics": dict(self.metrics), "tags": dict(self.tags)}


def tracked(result: Any) -> TrackedValues:
    """Return the values of a run that a tracker may hold. These values are public or released, so they cost no privacy.

    Raises OutputError if a signed certificate does not fit the model.
    """
    result.require_unaltered("the run is not tracked")
    job, certificate = result.job, result.certificate
    options = {f"solver.{name}": value for name, value in certificate.solver.items() if name != "name"}
    params = {
        "job": job.name,
        "loss": job.loss if isinstance(job.loss, str) else job.loss.name,
        "penalty": job.penalty.describe(),
        "solver": job.solver.name,
        **{name: value for name, value in options.items() if value is not None},
        "parties": len(job.partition.parties),
        "features": len(result.feature_names),
        "n_records": certificate.n_records,
        "n_held_out": 0 if job.split is None else job.split.sizes(certificate.n_records)[1],
        "trust": job.trust_name,
    }
    metrics = dict(zip(("epsilon", "delta"), certificate.guaranteed, strict=True)) if certificate.private else {}
    for kind, findings in result.findings.items():
        if kind in UNCHARGED:
            continue
        for measure, estimate in findings.measures.items():
            name = f"{kind}/{measure}"
            if not estimate.too_noisy:
                metrics |= {name: estimate.value, f"{name} error": estimate.error}
            if estimate.cap is not None:
                metrics[f"{name} cap"] = estimate.cap
            if estimate.baseline is not None:
                metrics[f"{name} baseline"] = estimate.baseline
    tags = {
        "vfl.version": certificate.code_version,
        "vfl.private": str(certificate.private).lower(),
        "vfl.accounting": certificate.accounting,
        "vfl.scope": certificate.scope,
        "vfl.flags": "; ".join(certificate.flags),
        "vfl.dataset": certificate.dataset,
        "vfl.job_digest": certificate.job_digest,
        "vfl.model_digest": certificate.model_digest,
        "vfl.signed_with": "" if certificate.signature is None else certificate.signature.public_key,
    }
    shown = {name: value if isinstance(value, int | float) else str(value)[:LONGEST] for name, value in params.items()}
    return TrackedValues(
        _named(shown),
        _named({name: float(value) for name, value in metrics.items() if math.isfinite(value)}),
        {name: value[:LONGEST] for name, value in tags.items() if value},
    )


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values under names that trackers accept. Names that would become equal get numbers."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        plain = base = re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)[:200]
        number = 1
        while plain in found:
            number += 1
            plain = f"{base} {number}"
        found[plain] = value
    return found


def log_to_mlflow(result: Any, *, uri: str | None = None, experiment: str = "vfl", run_name: str | None = None) -> str:
    """Log a run to MLflow; see `Result.log_to_mlflow`."""
    found = tracked(result)
    client_of, refusals = _mlflow()
    try:
        _reach(uri or "")
        client = client_of(tracking_uri=uri)
        known = client.get_experiment_by_name(experiment)
        home = client.create_experiment(experiment) if known is None else known.experiment_id
        run = client.create_run(home, run_name=run_name or result.job.name, tags=dict(found.tags)).info.run_id
        for name, value in found.params.items():
            client.log_param(run, name, value)
        for name, number in found.metrics.items():
            client.log_metric(run, name, number)
        client.log_text(run, result.certificate.to_json(), "certificate.json")
        client.set_terminated(run)
    except (refusals, OSError) as error:
        raise OutputError(f"MLflow refuses the run: {error}") from error
    return str(run)


def check_tracker(uri: str) -> None:
    """Raise SpecificationError if MLflow is not installed, and OutputError if nothing answers at the URI. Logs nothing."""
    client_of, refusals = _mlflow()
    try:
        _reach(uri)
        client_of(tracking_uri=uri).search_experiments(max_results=1)
    except (refusals, OSError) as error:
        raise OutputError(f"MLflow cannot use {uri!r}, so nothing was trained: {error}") from error


def _reach(uri: str) -> None:
    """Raise OSError if no tracking server answers at the address. MLflow itself would retry for minutes."""
    if uri.startswith(("http://", "https://")):
        try:
            require_answer(uri)
        except ValueError as error:
            raise OSError(str(error)) from None


def _mlflow() -> tuple[Any, Any]:
    """Return MLflow's client and the base class of its exceptions. Requests have limits, unless the environment sets others."""
    for name, value in LIMITS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise SpecificationError("logging to MLflow needs the extra track: pip install 'vfl[track]'") from None
    return MlflowClient, MlflowException
