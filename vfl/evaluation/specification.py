"""Evaluation part of a job: the measures on held-out records."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vfl.arguments import require, require_number
from vfl.errors import PrivacyError, SpecificationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Measures of the trained model on the records that `holdout` keeps out of training, released once, with noise.

    With classes these are accuracy, true and false positive rate, area under the ROC curve, and mean clamped loss. Without
    classes they are mean absolute and root mean squared error, of clamped errors. Each has a standard error.

    epsilon : budget of the measures. None takes all of the job's ε: no record is both held out and trained on, so the run
        costs the larger of the two and not their sum (vfl.holdout). A smaller value adds noise and does not lower the run's ε.
    loss_cap : cap on a record's loss; None is four times the loss at margin 0.
    error_cap : cap on a record's error, without classes; None is the width of the label's bounds.
    public : True declares the held-out records public. Measures are then un-noised and uncharged, these records have no
        protection, and the certificate says NOT PRIVATE.
    """

    epsilon: float | None = None
    loss_cap: float | None = None
    error_cap: float | None = None
    public: bool = False

    def __post_init__(self) -> None:
        for option in ("epsilon", "loss_cap", "error_cap"):
            value = getattr(self, option)
            if value is not None:
                require_number(f"evaluation: {option}", value)
            if value is not None and not (math.isfinite(value) and value > 0):
                kind = PrivacyError if option == "epsilon" else SpecificationError
                raise kind(f"evaluation: {option} must be positive and finite, not {value!r}")
        require("evaluation: public", self.public, "True or False", fits=isinstance(self.public, bool))
        if self.public and self.epsilon is not None:
            raise PrivacyError("evaluation: records that are declared public need no epsilon: leave one of the two out")
