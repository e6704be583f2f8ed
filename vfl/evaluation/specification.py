"""What is to be measured on held-out records: the evaluation part of a job."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vfl.arguments import require, require_number
from vfl.errors import PrivacyError, SpecificationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Measures of the trained model on the records that `holdout` keeps out of training, released once, with noise.

    With classes: accuracy, true and false positive rate, area under the ROC curve, mean clamped loss. Else: mean absolute
    and root mean squared error, of clamped errors. Each with a standard error.

    epsilon : None takes all of the job's ε: the hold-out and the training part have no record in common, so the run
        costs the larger of the two and not their sum (vfl.holdout). Less leaves the run's ε as it is, with more noise.
    loss_cap : a record's loss counts at most so much; None is four times the loss at margin 0.
    error_cap : without classes, a record's error counts at most so much; None is the width of the label's bounds.
    public : the held-out records are declared public: measures are un-noised and uncharged, these records have no
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
