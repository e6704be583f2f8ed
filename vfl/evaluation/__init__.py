"""What is asked of the records beside training: measures on those held out, how many labels are positive, diagnostics."""

from __future__ import annotations

from vfl.evaluation.estimates import Estimate, Findings
from vfl.evaluation.specification import Evaluation

__all__ = ["Estimate", "Evaluation", "Findings"]
