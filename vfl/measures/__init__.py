"""Measures of a trained model: on held-out records, of fairness, and standard errors of its coefficients.

`evaluations` are releases after training and `estimates` the measures with intervals made of them; `inference` and `covariance`
are post-processing of the run's own releases. Begin with `specification`, then `evaluations`.
"""

from __future__ import annotations

from vfl.measures.estimates import Estimate, Findings
from vfl.measures.inference import Inference as Inference
from vfl.measures.specification import Evaluation, Fairness

__all__ = ["Estimate", "Evaluation", "Fairness", "Findings"]
