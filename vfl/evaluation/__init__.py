"""Releases besides the model: measures on held-out records, the count of positive labels, diagnostics."""

from __future__ import annotations

from vfl.evaluation.estimates import Estimate, Findings
from vfl.evaluation.specification import Evaluation, Fairness

__all__ = ["Estimate", "Evaluation", "Fairness", "Findings"]
