"""Rows of measures with their baselines, for the report and the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.evaluation import Findings

HEAD = ("", "measure", "value", "95 % interval", "baseline", "")
BASELINE = (
    "Baseline: a model without features, computed from released values: the best constant prediction; for tpr and fpr, "
    "predictions at random that are positive as often."
)


def rows_of(found: Mapping[str, Findings]) -> list[tuple[str, ...]]:
    """Return a row of `HEAD` per measure."""
    return [
        (
            name,
            measure,
            f"{e.value:.4g}",
            e.spread,
            "" if e.baseline is None else f"{e.baseline:.2g}",
            "too noisy to tell" if e.too_noisy else "",
        )
        for name, findings in found.items()
        for measure, e in findings.measures.items()
    ]
