"""Evaluation parts of a job: the measures on held-out records, and the fairness of the model on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from vfl.base.arguments import (
    check_options,
    explained,
    flag,
    number,
    option,
    require,
    require_fraction,
    require_positive,
    that,
)
from vfl.errors import PrivacyError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.base.losses import Loss

MOST_COLUMNS = 8
"""Largest number of group columns for which the sum of the codes is exact."""
MOST_THRESHOLDS = 32
_SHARE = partial(require_fraction, error=PrivacyError)
_HOLDOUT = number(lambda share: 0.0 < share < 1.0, "is a fraction of the records, between 0 and 1")
_FAIRNESS = that(lambda value: isinstance(value, Fairness), 'must be vfl.Fairness(group="COLUMN")')
SCORES = ("loss", "accuracy", "mae", "mse", "deviance")
"""Measures that can be released alone: loss and accuracy with classes, mae and mse without. Losses of counts and amounts have
mae, mse and deviance.
"""
NOTIONS = ("opportunity", "odds", "parity", "accuracy")
"""Notions of fairness. Each compares a share of a group's records with the same share of all records."""


def scores_of(loss: Loss) -> tuple[str, ...]:
    """Return the measures that can be released alone under this loss."""
    if loss.classification:
        return SCORES[:2]
    return SCORES[2:4] if loss.power is None else SCORES[2:]


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Fairness of the released model between groups, measured on the held-out records with noise, and charged.

    Guarantee: the counts behind all measures are one Gaussian release on the held-out records, paid with a share of the
    evaluation's μ². For `bound`, the distance to the model without noise follows from public facts, or is one Gaussian release
    on the training records, paid with a share of the training's μ². A run costs the larger of the ε of training and of
    evaluation (vfl.base.holdout).

    Each notion compares a group's share of records with the same share of all records (docs/fairness.md):

        opportunity   predicted positive, among the positive records
        odds          as for opportunity, and predicted negative among the negative records
        parity        predicted positive, among all records
        accuracy      predicted correctly, among all records

    group : the column that names the groups, or several columns, compared one by one. Each must be a Categorical or Boolean
        column of any party: a feature, or a column that the partition lists in `groups`.
    notions : the notions to measure.
    bound : True also bounds each measure of the model without noise (vfl.measures.distance). This needs a strongly convex
        objective that penalises every coordinate; for any other objective the plan says that there is no bound.
    threshold_per_group : True chooses a threshold for each group on half of the held-out records and measures on the other
        half. Predicting with these thresholds needs each record's group. Needs `bound=False` and one column.
    share : share of the evaluation's μ² for the counts. distance_share : share of the training's μ² for the distance, if the
        distance needs a release.
    """

    group: str | Sequence[str]
    notions: Sequence[str] = NOTIONS
    bound: bool = option(flag, True)
    threshold_per_group: bool = option(flag, False)
    share: float = option(_SHARE, 0.4)
    distance_share: float = option(_SHARE, 0.1)

    def __post_init__(self) -> None:
        check_options(self, "fairness: ")
        columns = (self.group,) if isinstance(self.group, str) else self.group
        fits = isinstance(columns, list | tuple) and bool(columns) and all(isinstance(c, str) and c for c in columns)
        require("fairness: group", self.group, "the name of a column, or a list of names", fits=fits)
        if len(set(columns)) < len(columns):
            raise SpecificationError(f"fairness: group names a column twice: {list(columns)}")
        object.__setattr__(self, "group", columns[0] if len(columns) == 1 else tuple(columns))
        fits = isinstance(self.notions, list | tuple) and bool(self.notions)
        require("fairness: notions", self.notions, f"a list of {', '.join(NOTIONS)}", fits=fits)
        for notion in self.notions:
            if notion not in NOTIONS:
                raise SpecificationError(
                    f"fairness: unknown notion {notion!r}{nearest(str(notion), NOTIONS)}; known: {', '.join(NOTIONS)}"
                )
        object.__setattr__(self, "notions", tuple(notion for notion in NOTIONS if notion in self.notions))
        if len(columns) > MOST_COLUMNS:
            raise SpecificationError(
                f"fairness: group names {len(columns)} columns, and at most {MOST_COLUMNS} are compared"
            )
        if self.threshold_per_group and self.bound:
            raise SpecificationError(
                "fairness: the bound holds for predictions with one threshold for all groups: set bound to false, or leave "
                "threshold_per_group out"
            )
        if self.threshold_per_group and len(columns) > 1:
            raise SpecificationError(
                "fairness: threshold_per_group chooses thresholds for the groups of one column: name one"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the group columns."""
        return (self.group,) if isinstance(self.group, str) else tuple(self.group)


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Measures of the trained model on records that are kept out of training. They are released once, with noise.

    With classes these are accuracy, true and false positive rate, area under the ROC curve, and mean clamped loss. Without
    classes they are mean absolute and root mean squared error, and R², of clamped errors. Poisson, Gamma and Tweedie loss add
    the mean clamped deviance and D², the fraction of the deviance that the model explains. The names state the caps. Each
    measure has a 95 % interval, and as baseline the measure of a model without features. Without classes, R², deviances and the
    baselines need bounds for the label.

    holdout : fraction of the records that are kept out of training. A public hash of positions and names chooses these records
        (vfl.base.holdout). None trains on all records and measures nothing on held-out records.
    fairness : Fairness(group=...), which compares the model's predictions between groups of held-out records; None skips this.
    diagnostics : True also releases the objective at the end, without noise; the certificate then says NOT PRIVATE.
    epsilon : budget of the measures. None takes all of the job's ε: no record is both held out and trained on, so the run costs
        the larger of the two ε, not the sum (vfl.base.holdout). A smaller epsilon adds noise and does not lower the run's ε.
    loss_cap : cap on a record's loss; None is four times the loss at score 0.
    error_cap : cap on a record's error, without classes. None is the width of the label's bounds, or the part of it that noisy
        counts of errors by their size show to suffice; for a `score` it is the width.
    deviance_cap : cap on a record's deviance, for Poisson, Gamma and Tweedie loss. None is the larger of the deviances of the
        label's two bounds under a mean midway between them, or 8 where that is infinite (Gamma loss and labels from 0); or the
        part of it that counts show to suffice.
    score : the only measure to release, with the whole budget: 'loss' or 'accuracy' with classes; without classes 'mae' or
        'mse' (mean absolute or mean squared clamped error); 'deviance' (mean clamped deviance) for Poisson, Gamma and Tweedie
        loss. None releases all measures.
    thresholds : public thresholds at which decisions are measured: probabilities with logistic loss, scores with other losses
        of two classes. A single threshold becomes the model's; at each of several, decisions are measured too. None measures
        at 0.5 (score 0); with `cost`, at 16 thresholds.
    cost : {"missed": cost of a positive record that is predicted negative, "false_alarm": cost of the opposite error}. The
        threshold with the smallest noisy cost becomes the model's (Result.threshold). The intervals of measures at this
        threshold hold for all candidate thresholds at once, and so in spite of the choice.
    public : True declares the held-out records public. Measures are then released without noise or charge, these records have
        no protection, and the certificate says NOT PRIVATE.
    class_balance : share of the training's μ² that pays for a noisy count of the positive labels among the training records.
        Class weights of a later job can be declared from this count. None releases no count.
    """

    holdout: float | None = option(_HOLDOUT, 0.2)
    fairness: Fairness | None = option(_FAIRNESS, None)
    diagnostics: bool = option(flag, False)
    epsilon: float | None = option(partial(require_positive, error=PrivacyError), None)
    loss_cap: float | None = option(require_positive, None)
    error_cap: float | None = option(require_positive, None)
    deviance_cap: float | None = option(require_positive, None)
    public: bool = option(flag, False)
    score: str | None = None
    thresholds: Sequence[float] | None = None
    cost: Mapping[str, float] | None = None
    class_balance: float | None = option(_SHARE, None)

    def __post_init__(self) -> None:
        check_options(self, "evaluation: ")
        self._check_decisions()
        if self.score is not None and self.score not in SCORES:
            raise SpecificationError(
                f"evaluation: unknown score {self.score!r}{nearest(str(self.score), SCORES)}; give one of {', '.join(SCORES)}"
            )
        if self.score is not None and self.public:
            raise SpecificationError(
                "evaluation: public records are measured without noise, so no score has to be chosen: leave score out"
            )
        if self.public and self.epsilon is not None:
            raise PrivacyError("evaluation: records that are declared public need no epsilon: leave one of the two out")
        plain = ("holdout", "diagnostics", "class_balance")
        if self.holdout is None and any(
            getattr(self, f.name) != f.default for f in fields(self) if f.name not in plain
        ):
            raise SpecificationError(
                "evaluation: measures and fairness are of records that are held out: set holdout=0.2, or leave them out"
            )

    def _check_decisions(self) -> None:
        if self.thresholds is not None:
            given = self.thresholds
            fits = isinstance(given, list | tuple) and all(
                isinstance(t, int | float) and not isinstance(t, bool) and math.isfinite(t) for t in given
            )
            require("evaluation: thresholds", given, "a list of finite numbers", fits=fits)
            if not 1 <= len(given) <= MOST_THRESHOLDS or len(set(given)) < len(given):
                raise SpecificationError(f"evaluation: give 1 to {MOST_THRESHOLDS} different thresholds")
            object.__setattr__(self, "thresholds", tuple(sorted(map(float, given))))
        if self.cost is not None:
            named = isinstance(self.cost, Mapping) and set(self.cost) == {"missed", "false_alarm"}
            require("evaluation: cost", self.cost, 'a table like {"missed": 5, "false_alarm": 1}', fits=named)
            for name, value in self.cost.items():
                require_positive(f"evaluation: the cost of {name}", value)
            object.__setattr__(self, "cost", {name: float(self.cost[name]) for name in ("missed", "false_alarm")})
        if self.score is not None and (self.thresholds is not None or self.cost is not None):
            raise SpecificationError("evaluation: a score takes the whole budget: leave out thresholds and cost")

    @property
    def decides(self) -> bool:
        """True if the job sets the thresholds at which decisions are measured."""
        return self.thresholds is not None or self.cost is not None
