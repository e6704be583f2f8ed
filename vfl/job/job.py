"""The job: public specification of a run, which can be printed, hashed, stored and signed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from vfl.base import markup
from vfl.base.arguments import explained, named, provides, require, require_number
from vfl.base.columns import Dropped, Known, Numeric, canonical_category, categories_of
from vfl.base.features import Aggregate, Crossed, Curve, curves_in
from vfl.base.holdout import Split, Subsamples
from vfl.base.losses import Loss, loss_of
from vfl.base.partition import FeaturePartition
from vfl.base.penalties import PENALTIES, NoPenalty
from vfl.base.persons import RowRule
from vfl.base.problem import INTERCEPT, Targets, coordinates_of
from vfl.base.schema import BinaryLabel, ClassLabel, Factor, RealLabel, Scaling, Schema
from vfl.crypto.identifiers import JOINS, Id, columns_of
from vfl.errors import PrivacyError, SpecificationError, entry, nearest, no_bounds
from vfl.job.plain import FORMAT, digest_of, plain_of
from vfl.job.start import Start
from vfl.measures.estimates import score_of
from vfl.measures.specification import Evaluation, Fairness, scores_of
from vfl.privacy.noise import CryptographicNoise
from vfl.privacy.specification import Privacy
from vfl.secure.roles import NONE, Secure
from vfl.solvers import SOLVERS, SkGD
from vfl.solvers.on_shares import why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from vfl.base.columns import Category
    from vfl.base.penalties import Penalty
    from vfl.base.schema import Declaration, Label
    from vfl.crypto.identifiers import Key
    from vfl.job.environment import Environment
    from vfl.privacy.noise import NoiseSource
    from vfl.queries.protocol import Solver

MOST_GROUPS = 16
"""Largest number of groups between which fairness is checked, per column."""
TRUSTS = ("trusted", "secure")
PRECISIONS = ("float64", "float32")
INTERVALS_SHARE = 0.1
"""Default fraction of μ² for intervals. The coverage of intervals hardly depends on it. With few records, their widths do."""
SUBSAMPLES = "subsamples"
"""Value of `intervals` for standard errors from the spread of fits on disjoint subsamples."""
APART = ("name", "precision")
"""Options that change neither the guarantee nor what others see of the data, and so are no part of the digest."""
ALL = "*"
OF_PARTY = ".*"
SPELT = {"bounds": "(low, high)", "columns": "vfl.Categorical([...]) or another declaration"}


@explained
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Job:
    """Public specification of a run: the model to train, the owners of the columns, and the privacy guarantee.

    partition : owners of the columns and of the label.
    loss : name of a loss (vfl.base.losses): 'logistic', 'squared', 'huber', 'poisson', 'gamma', 'tweedie', 'hinge',
        'smoothed_hinge'; or a loss with options, vfl.losses.Huber(width=2.0). 'multinomial' is softmax regression over
        `classes`.
    penalty : penalty ψ on the scaled features; the intercept is never penalised.
    solver : solver (vfl.solvers), or the name of one: 'SkGD', 'cd'. Names of losses, penalties and
        solvers may be in any case.
    privacy : Privacy(...); None trains without privacy, as plan and certificate then say.
    bounds : {column: (low, high)}, declared and never taken from data. Values outside are clamped. With privacy every feature
        needs bounds, unless scaling='none' has an explicit clip and smoothness. Squared loss also needs bounds of the label.
        "*" stands for all numeric features without bounds of their own, "PARTY.*" for such features of one party. Neither form
        includes the label.
    columns : {column: Numeric(...), Boolean(...), Categorical(...) or a feature}, for declarations beyond bounds. Only a column
        with a `fill` or an indicator may have missing cells, which are otherwise an error at the column's owner. Bounds that a
        declaration leaves out are those of `bounds`. Dropped() removes a column; the job then equals a job that never named it.
    classes : (negative, positive) if the label is not 0/1 or boolean. For a one-vs-rest model, the negative class may be
        several labels, (("a", "b"), "c"). With multinomial loss, all labels that may occur, ("a", "b", "c").
    scaling : 'bounds' maps declared bounds to [−1, 1], or without an intercept only divides by a factor. 'none' does not scale.
    precision : 'float64', or 'float32' for columns in half the memory. Products and sums are float64 in both cases. Where a
        party takes several steps per message (SkGD and CD, not under trust='secure'), 'float32' also rounds the linear
        predictors that a party receives, and the changes that it returns; the sum of the changes stays float64. The guarantee
        is unchanged, because clips and caps hold for any linear predictors.
    trust : 'trusted', with a central coordinator as in the papers; or 'secure', which trains on shares, so that nobody sees a
        margin, a residual or another party's column (docs/secure.md). Secure(...) also names the dealer and the number of
        parties that may collude. The certificate states who sees what.
    dataset : name of the data set in the ledger. With None, the guarantee covers this fit alone.
    id : column by which the parties' records are aligned, one name for all parties or {party: column}. The id is not a feature.
        Id(column, kind='integer') or kind='text' decides how ids are compared; without a kind the type of the id columns does,
        which has to be the same at all parties, and columns of text files are text (vfl.crypto.identifiers). None means that
        all parties hold the records in the same order.
    intervals : fraction, at most 0.5, of the μ² that is left when the passes begin. It pays for standard errors of the
        coefficients (`Result.summary`). True takes INTERVALS_SHARE; None or False releases no standard errors. 'subsamples'
        instead trains on each of 8 disjoint public subsamples, and takes errors from the spread of the 8 models
        (vfl.base.holdout). These errors are wider, but no party sees another party's columns. Without privacy this option has
        no effect: `Result.infer` computes errors from the records.
    evaluation : Evaluation(holdout=...), the records that are kept out of training and the measures on them, which spend the
        full ε. They add no cost, since no record is both trained on and held out. None trains on all records.
    start : Start(...), a released model of the same columns from which training starts. `vfl.train(job, warm_start=RUN)` reads
        such a model from a run. None starts from the constant model.

    Raises SpecificationError, or PrivacyError for options of the guarantee. The message names the remedy.
    """

    partition: FeaturePartition
    privacy: Privacy | None
    loss: str | Loss = "logistic"
    penalty: Penalty = field(default_factory=NoPenalty)
    solver: Solver = field(default_factory=SkGD)
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    columns: Mapping[str, Declaration | Dropped] = field(default_factory=dict)
    classes: tuple[Category | tuple[Category, ...], ...] | None = None
    intercept: bool = True
    scaling: str = "bounds"
    precision: str = "float64"
    trust: str | Secure = "trusted"
    dataset: str | None = None
    id: str | Sequence[str] | Mapping[str, str | Sequence[str]] | Id | None = None
    intervals: bool | float | str | None = None
    evaluation: Evaluation | None = None
    start: Start | None = None
    name: str = "job"
    schema: Schema = field(init=False, repr=False)

    from_toml: ClassVar[Callable[[str | Path], tuple[Job, Environment]]]
    """Read a job file. This is `vfl.job.file.read`; vfl.job attaches it here, since vfl.job.file imports this module."""

    def __post_init__(self) -> None:
        kinds: dict[str, Mapping[str, Any]] = {"penalty": PENALTIES, "solver": SOLVERS}
        for option, named_kinds in kinds.items():
            if isinstance(name := getattr(self, option), str):
                object.__setattr__(self, option, named(option, name, named_kinds)())
        self._check_types()
        for option in SPELT:
            object.__setattr__(self, option, dict(getattr(self, option)))
        self._name()
        self._drop()
        self._name()
        self._add_known()
        loss = loss_of(self.loss)
        if loss == type(loss)():  # a loss with default options is stored by name, so that equal jobs have one digest
            object.__setattr__(self, "loss", loss.name)
        object.__setattr__(self, "schema", self._declared())
        self._check_sparse()
        for option, known in (("trust", TRUSTS), ("precision", PRECISIONS)):
            if getattr(self, option) not in known and not isinstance(getattr(self, option), Secure):
                raise SpecificationError(f"unknown {option} {getattr(self, option)!r}; give one of: {', '.join(known)}")
        self._check_ids()
        self._check_aggregates()
        self._check_absence()
        given: Any = self.classes
        if self.multinomial:
            if self.classes is None:
                raise SpecificationError(
                    'multinomial loss needs all labels that may occur, from public knowledge: classes = ["A", "B", "C"]'
                )
            listed = not isinstance(given, str) and hasattr(given, "__iter__")
            require("classes", given, 'a list of all labels, ["A", "B", "C"]', fits=listed)
            object.__setattr__(self, "classes", ClassLabel(given if isinstance(given, tuple) else tuple(given)).classes)
            self._check_multinomial()
        elif self.classes is not None:
            if not self.classification:
                raise SpecificationError(
                    f"{self.loss} loss predicts numbers, and classes are declared: leave classes out, --set classes= of a "
                    "job file, or choose the loss of classes, 'logistic' or 'multinomial'"
                )
            try:
                classes = BinaryLabel(given).classes
            except SpecificationError:
                classes = None
            if classes is None:
                more = isinstance(self.classes, tuple | list) and len(self.classes) > 2
                raise SpecificationError(
                    "classes are two different labels of a classification loss, the negative one first"
                    + ("; for more than two labels use loss='multinomial'" if more else "")
                )
            object.__setattr__(self, "classes", classes)
        self._check_intervals()
        self.scaling_of(self.partition.features)
        self._check_evaluations(loss)
        self._check_amounts(loss)
        self._check_exposure(loss)
        self._check_weight()
        self._check_rows()
        self._check_trust()
        if self.start is not None:
            self._check_start(self.start)
        if self.privacy is not None:
            self._check_declarations(self.privacy)

    def _check_start(self, start: Start) -> None:
        """Refuse a start from a model with other columns, and a start for a solver that always starts at 0."""
        for column in self.partition.features:
            declared = self.schema[column]
            if isinstance(declared, Curve) and declared.knots is None:
                raise SpecificationError(
                    f"the run would find new knots of column {column!r}, and the start has coefficients for its own knots: "
                    "declare the knots of the model to start from (Result.knots, with flat=True)"
                )
        columns = (*self.schema.features(self.partition.features), *((INTERCEPT,) if self.intercept else ()))
        start.require([name for column in columns for name in coordinates_of(column, self.class_names)])
        if not self.solver.warm_starts:
            raise SpecificationError(f"{self.solver.name} starts at 0: use SkGD, CD or GD, or leave start out")

    def _check_multinomial(self) -> None:
        """Refuse options that need exactly two classes."""
        if self.fairness is not None:
            raise SpecificationError(
                "fairness compares predictions of two classes, and multinomial loss has more: leave fairness out, or train "
                "a one-vs-rest model"
            )

    def _check_amounts(self, loss: Loss) -> None:
        """Refuse gamma and Tweedie loss without an upper bound of the label, on which the curvature of these losses depends."""
        if loss.power in (None, 1.0):
            return
        column = self.partition.label_column
        if not math.isfinite(loss.curvature) and self.schema.unbounded([column]):
            raise SpecificationError(
                f"the curvature of {loss.name} loss grows with the largest label: declare {entry('bounds', column)}"
            )
        if not self.schema.unbounded([column]) and not self.schema[column].limits[1] > 0.0:
            raise SpecificationError(f"{loss.name} loss is for amounts above 0: correct the bounds of {column!r}")

    def _check_exposure(self, loss: Loss) -> None:
        """Refuse exposures without public limits, and exposures with a loss that does not use them."""
        exposure = self.partition.exposure
        if exposure is None:
            return
        low, high = self.schema[exposure].limits
        if not (low > 0.0 and math.isfinite(high)):
            raise SpecificationError(
                f"exposure {exposure!r} needs public limits, above 0: declare {entry('bounds', exposure)}"
            )
        if loss.power is None:
            raise SpecificationError(
                f"exposure is an offset of log(mean), and {loss.name} loss models no mean by its logarithm: use poisson, "
                "gamma or tweedie loss, or leave exposure out"
            )

    def _check_weight(self) -> None:
        """Refuse weights without public limits, and weights with a solver that does not use them."""
        weight = self.partition.weight
        if weight is None:
            return
        low, high = self.schema[weight].limits
        if not (low >= 0.0 and 0.0 < high < math.inf):
            raise SpecificationError(
                f"weight {weight!r} needs public limits, from 0 on: declare {entry('bounds', weight)}"
            )
        if not self.solver.weighs:
            raise SpecificationError(
                f"{self.solver.name} does not support weights: use SkGD, CD or GD, or leave weight out"
            )

    def _check_rows(self) -> None:
        """Refuse persons with several rows where the guarantee or the algorithm counts rows."""
        if self.row_rule is None:
            return
        for asked, words, remedy in (
            (self.secure is not None, "trust='secure' has a share of every row", "use trust='trusted'"),
            (
                not self.solver.weighs,
                f"{self.solver.name} does not support weights",
                "use SkGD, CD, GCD, GD, SGD, SVRG or OutputPerturbation",
            ),
            (
                self.shows_columns,
                "products of columns (intervals = true or a fraction, joint = true) are bounded per record",
                "use intervals = 'subsamples', and leave joint out",
            ),
            (
                self.fairness is not None and self.fairness.bound,
                "the bound of fairness without noise counts whole records",
                "set bound to false",
            ),
        ):
            if asked:
                raise SpecificationError(f"id: most_rows lets a person have several rows, but {words}: {remedy}")

    def _check_trust(self) -> None:
        """Refuse a job that cannot be trained on shares, and give equal jobs one form."""
        if self.trust == Secure():
            object.__setattr__(self, "trust", "secure")
        _require_offered(self)

    def _check_types(self) -> None:
        """Refuse options of a wrong type; the error names the right type."""
        for option, kind, wanted in (
            ("partition", FeaturePartition, "vfl.FeaturePartition({party: its columns}, label=(party, column))"),
            ("privacy", Privacy | None, "vfl.Privacy(epsilon=...), or None to train without"),
            ("evaluation", Evaluation | None, "vfl.Evaluation(...), or None"),
            ("trust", str | Secure, "'trusted', 'secure' or vfl.federation.Secure(...)"),
            ("start", Start | None, "a vfl.job.start.Start, or None"),
            ("intercept", bool, "True or False"),
            ("name", str, "text"),
            ("dataset", str | None, "text, or None"),
        ):
            require(option, getattr(self, option), wanted, fits=isinstance(getattr(self, option), kind))
        penalised = provides(self.penalty, ("prox", "convexity", "describe"))
        require("penalty", self.penalty, "a penalty such as vfl.L2(0.1)", fits=penalised)
        solved = provides(self.solver, ("resolve", "releases", "schedule"))
        require("solver", self.solver, "a solver such as vfl.SkGD()", fits=solved)
        for option in SPELT:
            value = getattr(self, option)
            require(option, value, f"a mapping, {{column: {SPELT[option]}}}", fits=isinstance(value, MappingABC))

    def _check_intervals(self) -> None:
        """Refuse a fraction out of range, and give equal jobs one form."""
        if isinstance(self.intervals, bool):
            object.__setattr__(self, "intervals", INTERVALS_SHARE if self.intervals else None)
        if self.intervals is None or self.intervals == SUBSAMPLES:
            return
        if isinstance(self.intervals, str):
            raise PrivacyError(f"intervals must be true, a fraction, or {SUBSAMPLES!r}, not {self.intervals!r}")
        object.__setattr__(self, "intervals", require_number("intervals", self.intervals))
        if not 0 < self.intervals <= 0.5:
            raise PrivacyError(f"intervals must be true or a fraction of at most 0.5, not {self.intervals!r}")

    @property
    def intervals_share(self) -> float | None:
        """Fraction of μ² for sums of products of columns; None for a run that releases no such sums."""
        return self.intervals if isinstance(self.intervals, float) and self.privacy is not None else None

    @property
    def subsampled(self) -> bool:
        """True if standard errors come from disjoint subsamples."""
        return self.intervals == SUBSAMPLES and self.privacy is not None

    def _check_evaluations(self, loss: Loss) -> None:
        """Refuse evaluation measures that the job or its budget does not allow."""
        asked, privacy = self.evaluation or Evaluation(), self.privacy
        unused = "error_cap" if loss.classification else "loss_cap"
        if getattr(asked, unused) is not None:
            raise SpecificationError(f"evaluation: {unused} has no use under {loss.name} loss: leave {unused} out")
        for threshold in asked.thresholds or ((0.5,) if asked.cost is not None else ()):
            score_of(threshold, loss)
        if asked.decides and self.fairness is not None and self.fairness.threshold_per_group:
            raise SpecificationError(
                "fairness.threshold_per_group replaces the one threshold for all records: leave it out, or leave out "
                "thresholds and cost of the evaluation"
            )
        if asked.deviance_cap is not None and loss.power is None:
            raise SpecificationError(
                f"evaluation: deviance_cap has no use under {loss.name} loss: leave deviance_cap out"
            )
        if asked.epsilon is not None and (privacy is None or asked.epsilon > privacy.epsilon):
            raise PrivacyError(
                f"evaluation: epsilon = {asked.epsilon:g} exceeds the job's budget, which covers training and "
                "evaluation. Raise privacy.epsilon, or leave evaluation.epsilon out to use the job's epsilon"
            )
        if asked.score is not None:
            fitting = scores_of(loss)
            if asked.score not in fitting:
                raise SpecificationError(
                    f"evaluation: score {asked.score!r} does not fit {loss.name} loss: give "
                    f"{' or '.join(map(repr, fitting))}"
                )
            if privacy is None:
                raise SpecificationError(
                    "evaluation: score names the only measure to release, and without privacy all are exact: leave score out"
                )
            if self.fairness is not None:
                raise SpecificationError(
                    "evaluation: a score takes the whole budget: leave score out, or leave fairness out"
                )
        if self.class_balance is not None and privacy is None:
            raise PrivacyError(
                "class_balance is a share of the budget, and without privacy there is none: leave it out"
            )
        if self.class_balance is not None and (self.multinomial or not loss.classification):
            raise SpecificationError(
                f"class_balance counts the labels of two classes, which {loss.name} loss has not: leave class_balance out"
            )
        self._check_fairness(loss)

    def _check_fairness(self, loss: Loss) -> None:
        """Refuse a check of fairness that the job's columns, labels or hold-out do not allow."""
        listed, fairness = self.partition.group_columns, self.fairness
        if fairness is not None:
            self._check_compared(fairness, loss)
        unused = [column for column in listed if fairness is None or column not in fairness.columns]
        if unused:
            raise SpecificationError(
                f"the partition lists {unused[0]!r} in groups, and fairness does not compare by it: set "
                f"fairness=vfl.Fairness(group={unused[0]!r}) in the evaluation, or leave it out of groups"
            )

    def _check_compared(self, fairness: Fairness, loss: Loss) -> None:
        """Refuse to compare groups if the job lacks the group column, classes or held-out records."""
        listed = self.partition.group_columns
        if not loss.classification:
            raise SpecificationError(
                f"fairness compares predicted classes, and {loss.name} loss predicts numbers: use a "
                "classification loss, or leave fairness out"
            )
        for column in fairness.columns:
            if column not in self.partition.features and column not in listed:
                known = (*self.partition.features, *listed)
                raise SpecificationError(
                    f"fairness: no party holds a column {column!r}{nearest(column, known)}; if it is not a feature, list it "
                    f"in the partition: groups={{PARTY: [{column!r}]}}"
                )
            groups = categories_of(self.schema[column])
            if not 2 <= len(groups) <= MOST_GROUPS:
                why = f"it has {len(groups)}" if groups else "it is declared as numbers"
                raise SpecificationError(
                    f"fairness compares from 2 to {MOST_GROUPS} groups, and column {column!r} does not fit: {why}. "
                    f"Declare columns={{{column!r}: vfl.Categorical([...])}}, or name another column"
                )

    def _name(self) -> None:
        """Replace names such as 'PARTY.COLUMN' by the names that the partition uses, so that equal jobs are written alike."""
        for option in SPELT:
            named: dict[str, Any] = {}
            for column, value in getattr(self, option).items():
                grouped = not isinstance(column, str) or column.endswith(OF_PARTY)
                name = column if grouped else self.partition.named(column)
                if name in named:
                    raise SpecificationError(
                        f"column {name!r}: `{option}` is declared twice, with and without its party"
                    )
                named[name] = value
            object.__setattr__(self, option, named)
        if self.fairness is not None:
            columns = tuple(map(self.partition.named, self.fairness.columns))
            fairness = replace(self.fairness, group=columns)
            object.__setattr__(self, "evaluation", replace(self.evaluation, fairness=fairness))  # type: ignore[type-var]

    def _drop(self) -> None:
        """Remove dropped columns from partition and declarations, so that equal jobs are written alike."""
        dropped = {column for column, declared in self.columns.items() if isinstance(declared, Dropped)}
        if not dropped:
            return
        for column in dropped & set(self.bounds):
            raise SpecificationError(f"column {column!r} is dropped: leave it out of bounds")
        object.__setattr__(self, "partition", self.partition.without(dropped))
        kept = {column: declared for column, declared in self.columns.items() if column not in dropped}
        object.__setattr__(self, "columns", kept)

    def _add_known(self) -> None:
        """Give each other party of a left join a column of the records that it has. Remove such columns from other jobs."""
        made = {c for c in self.partition.features if isinstance(self.columns.get(c), Known)}
        left = self.join == JOINS[1]
        if not (made or left):
            return
        partition = self.partition.without(made)
        columns = {column: declared for column, declared in self.columns.items() if column not in made}
        if left:
            held = {*partition.features, *partition.group_columns, *partition.factor_columns, partition.label_column}
            known = {
                party: f"known at {party}"
                for party in partition.parties
                if party != partition.label_party and partition.columns(party)
            }
            for column in held.intersection(known.values()):
                raise SpecificationError(f"a left join adds a column {column!r}: rename the one in the partition")
            partition = partition.with_columns(known)
            columns |= {column: Known() for column in known.values()}
        object.__setattr__(self, "partition", partition)
        object.__setattr__(self, "columns", columns)

    def _declared(self) -> Schema:
        """Return the declarations of all columns.

        "*" and "PARTY.*" declare bounds of all columns without bounds of their own, or a curve per numeric column with bounds.
        """
        features = self.partition.features
        late = (self.partition.label_column, *self.partition.factor_columns, *self.partition.group_columns)
        known = dict.fromkeys((*features, *late))
        groups = {f"{party}{OF_PARTY}": self.partition.columns(party) for party in self.partition.parties} | {
            ALL: features
        }
        named = {column: limits for column, limits in self.bounds.items() if column in known or column not in groups}
        curves = {name: self.columns[name] for name in groups if name in self.columns and name not in known}
        for group, declared in curves.items():
            if not isinstance(declared, Curve):
                raise SpecificationError(
                    f"columns [{group!r}] declare numbers with bounds as vfl.Curve(...), not {declared!r}"
                )
        schema = Schema({c: d for c, d in self.columns.items() if c not in curves}, bounds=named)
        schema.check({*known, *schema.bases()})
        for group, columns in groups.items():
            if group in self.bounds and group not in known:
                try:
                    schema = schema.bounded(columns, self.bounds[group])
                except SpecificationError as error:
                    raise SpecificationError(f"bounds [{group!r}]: {error}") from None
        for group, columns in groups.items():
            if isinstance(curve := curves.get(group), Curve):
                schema = schema.curved(columns, curve)
        local = {column: self.partition.local(column) for column in known if self.partition.local(column) != column}
        schema = schema.placed({column: self.partition.owner(column) for column in known}, local)
        for column in self.partition.columns(self.partition.label_party):
            if self.partition.label[1] in schema.cells(column):
                raise SpecificationError(
                    f"column {column!r} is made of the label {self.partition.label[1]!r}: a feature must not depend on it"
                )
        return schema

    def _check_sparse(self) -> None:
        """Refuse declarations that would turn a cell that a sparse matrix does not store into a value different from 0."""
        for party in self.partition.sparse:
            for column in self.partition.columns(party):
                if curves_in(self.schema[column]):
                    raise SpecificationError(
                        f"column {column!r} of sparse party {party!r} is a curve or a product with one, which fills cells that "
                        "are 0: leave the party out of sparse and give a dense table, or declare a number"
                    )
                low, high = self.schema[column].limits
                if not low <= 0.0 <= high:
                    raise SpecificationError(
                        f"column {column!r} of sparse party {party!r} has bounds [{low:g}, {high:g}], which exclude 0. "
                        "Cells that are not stored are 0 and would be clamped: widen the bounds"
                    )

    def _check_declarations(self, privacy: Privacy) -> None:
        """Refuse a private job whose sensitivities or steps would depend on the data."""
        clipped = getattr(self.solver, "clip", None) is not None
        declared = not isinstance(privacy.smoothness, str)
        if (missing := self.schema.unbounded(self.partition.features)) and not (declared and clipped):
            raise PrivacyError(
                f"{no_bounds(*missing)}, or release them with vfl.releases.private_bounds. To train without bounds, set "
                "scaling='none', an explicit clip in the solver and a smoothness constant M_j for every column "
                "(smoothness={column: M_j} in Privacy, or column = M_j under [privacy.smoothness] of a job file)"
            )
        if not isinstance(privacy.smoothness, str):
            coordinates = self.schema.features(self.partition.features)
            for coordinate in coordinates:
                if coordinate not in privacy.smoothness:
                    raise PrivacyError(f"smoothness declares no M_j for {coordinate!r}: give one")
            for name in privacy.smoothness:
                if name not in coordinates:
                    raise SpecificationError(
                        f"smoothness names {name!r}, which is not a column{nearest(name, coordinates)}"
                    )
        label = self.partition.label_column
        if not math.isfinite(loss_of(self.loss).slope) and self.schema.unbounded([label]) and not clipped:
            raise PrivacyError(
                f"{loss_of(self.loss).name} loss has an unbounded derivative: declare bounds for the label {label!r}, or "
                "give the solver an explicit clip"
            )

    def _check_aggregates(self) -> None:
        """Refuse aggregates per id in a job without ids, and at a label party whose rows are records."""
        for column in self.partition.features:
            if not isinstance(self.schema[column], Aggregate):
                continue
            if self.id is None:
                raise SpecificationError(f"column {column!r} is an aggregate of the rows of an id: declare id, too")
            if self.row_rule is not None and self.partition.owner(column) == self.partition.label_party:
                raise SpecificationError(
                    f"column {column!r} is an aggregate at the label party, whose rows the job trains on one by one: leave "
                    "most_rows of the id out, or make it a column of its own"
                )

    def _check_absence(self) -> None:
        """Refuse a left join in which a party's columns do not say what to use for records that the party lacks."""
        if self.join != JOINS[1]:
            return
        for column in (*self.partition.features, *self.partition.group_columns):
            found, party = self.schema[column], self.partition.owner(column)
            if party == self.partition.label_party:
                continue
            sides = found.sides if isinstance(found, Crossed) else ()
            for name, declared in {side.column: side.declared for side in sides}.items() or [(column, found)]:
                if declared.fill is not None or declared.missing is not None:
                    continue
                fill = entry("columns", name, f"vfl.columns.{type(declared).__name__}(fill=VALUE)", "{ fill = VALUE }")
                raise SpecificationError(
                    f"column {name!r}: party {party!r} may lack a record of a left join: declare {fill}, or "
                    "missing='indicator'"
                )

    def _check_ids(self) -> None:
        """Refuse an id that does not name one column per party. Equal ids are then written alike."""
        if self.id is None:
            return
        given: Any = self.id.column if isinstance(self.id, Id) else self.id
        named = given if isinstance(given, MappingABC) else dict.fromkeys(self.partition.parties, given)
        for party, column in named.items():
            if party not in self.partition.parties:
                raise SpecificationError(
                    f"id names {party!r}, which is not a party{nearest(party, self.partition.parties)}"
                )
            listed = columns_of(column)
            if not listed or len(set(listed)) < len(listed) or not all(isinstance(own, str) and own for own in listed):
                raise SpecificationError(
                    "id is the name of a column, a list of different names for a composite key, or {party: either}, "
                    f"not {column!r}"
                )
            used = {
                *self.partition.features,
                self.partition.label_column,
                *self.partition.factor_columns,
                *self.partition.group_columns,
            }
            for own in used.intersection(listed):
                raise SpecificationError(
                    f"the id column {own!r} is also a feature or the label: leave it out of the partition, since a model "
                    "with an id as a feature would reveal records"
                )
        for party in self.partition.parties:
            if party not in named:
                raise SpecificationError(
                    f"id names no column of party {party!r}: give one, or one name for all parties"
                )
        keys = {party: columns_of(named[party]) for party in self.partition.parties}
        columns = {party: own if len(own) > 1 else own[0] for party, own in keys.items()}
        whole = columns if len(set(columns.values())) > 1 else next(iter(columns.values()))
        whole_id = self.id if isinstance(self.id, Id) else Id(whole)  # raises if the parties' keys do not fit together
        object.__setattr__(self, "id", whole_id.on(whole))

    @property
    def _id(self) -> Id:
        """The id with its rules. Without an id, the column has no name."""
        return self.id if isinstance(self.id, Id) else Id(self.id or "")

    @property
    def key(self) -> Key:
        """Rule by which ids are compared."""
        return self._id.key

    @property
    def row_rule(self) -> RowRule | None:
        """Rule for persons with several rows at the label party; None if every row is a record."""
        most_rows = self._id.most_rows
        return None if most_rows == 1 else RowRule(self.partition.label_party, most_rows)

    @property
    def unit(self) -> str:
        """Return what the guarantee protects: each 'record', or each 'person' with up to `most_rows` rows."""
        return "record" if self.row_rule is None else "person"

    @property
    def secure(self) -> Secure | None:
        """Threat model of training on shares; None under trust='trusted'."""
        return self.trust if isinstance(self.trust, Secure) else Secure() if self.trust == "secure" else None

    @property
    def trust_name(self) -> str:
        """Return 'trusted' or 'secure'."""
        return TRUSTS[self.secure is not None]

    @property
    def dealer(self) -> str | None:
        """Return 'separate' or 'coordinator', the dealer of training on shares; None for a job without a dealer."""
        return None if self.secure is None or self.secure.dealer == NONE else self.secure.dealer

    def library(self) -> str:
        """Return name and version of the library of homomorphic encryption that the job needs; '' if it needs none.

        Raises SpecificationError if the library is not installed here.
        """
        if self.secure is None or self.secure.dealt:
            return ""
        from vfl.secure.homomorphic import require_library  # imported here, since it loads ciphers

        return require_library()

    @property
    def join(self) -> str:
        """Return the kind of join, 'inner' or 'left'."""
        return self._id.join

    def base(self, parties: Collection[str]) -> str | None:
        """Return the party, among these, all of whose ids a left join takes; None for an inner join."""
        return None if self.join == JOINS[0] else self.partition.receiver(parties)

    @property
    def joining(self) -> tuple[Any, ...]:
        """Facts that decide which rows an alignment takes, as plain values, for the names of files that keep an alignment."""
        rule = None if self.row_rule is None else [self.row_rule.party, self.row_rule.most_rows]
        return list(self.ids.items()), self.key.digest, self.base(self.partition.parties), rule

    @property
    def ids(self) -> Mapping[str, tuple[str, ...]]:
        """{party: columns of its id, several for a composite key} in the partition's order; {} without alignment."""
        if self.id is None:
            return {}
        own = self._id.column
        named = own if isinstance(own, MappingABC) else dict.fromkeys(self.partition.parties, own)
        return {party: columns_of(columns) for party, columns in named.items()}

    @property
    def table_names(self) -> dict[str, dict[str, str]]:
        """{party: {column of its data: its name in one table of all parties}}.

        The name is 'PARTY.COLUMN' if several parties read a column of that name. The id column has one name for all parties.
        """
        parties, sources = self.partition.parties, self.schema.sources
        read = {party: [s for c in self.partition.wanted(party) for s in sources(c)] for party in parties}
        held = Counter(column for columns in read.values() for column in dict.fromkeys(columns))
        named = {
            party: {c: f"{party}.{c}" if held[c] > 1 else c for c in dict.fromkeys(columns)}
            for party, columns in read.items()
        }
        return {party: columns | {c: c for c in self.ids.get(party, ())} for party, columns in named.items()}

    def for_party(self, party: str) -> PartyTask:
        """Return one party's view of the job. Raises PartitionError for an unknown party."""
        return PartyTask.of(self, party)

    def wanted(self, party: str) -> tuple[str, ...]:
        """Return all columns that the job reads from a party: features, groups, the id, and the label at its owner."""
        made_of = [source for column in self.partition.wanted(party) for source in self.schema.cells(column)]
        return tuple(dict.fromkeys([*made_of, *self.ids.get(party, ())]))

    def made_of(self, party: str) -> tuple[str, ...]:
        """Return the columns from which a party's features are computed, under the party's own names."""
        columns = self.partition.columns(party)
        return tuple(dict.fromkeys(source for column in columns for source in self.schema.contents(column)))

    @property
    def multinomial(self) -> bool:
        """True if the model has one margin per class."""
        return loss_of(self.loss).multinomial

    @property
    def targets(self) -> Targets:
        """Per-record vectors that the job has besides the labels (offsets, weights), and the form of its margins."""
        own, rows = self.partition, self.row_rule
        exact = self.secure is not None or rows is not None or not self.solver.several_steps
        kind = PRECISIONS[0] if exact else self.precision
        return Targets(own.exposure is not None, own.weight is not None, self.n_outputs, kind, rows)

    @property
    def n_outputs(self) -> int:
        """Number of margins per record: K with multinomial loss, else 1."""
        return max(1, len(self.class_names))

    @property
    def shows_columns(self) -> bool:
        """True if participants may see other parties' columns before noise is added. Then policies ask for consent.

        Public rules may decline products when the number of records is known (`Plan.has_products`).
        """
        return bool(self.intervals_share) or (self.solver.shows_columns and self.secure is None)

    def shape_of_margins(self, n_records: int) -> tuple[int, ...]:
        """Return the shape of predicted margins: (n,), or (n, K) with multinomial loss."""
        return (n_records, self.n_outputs) if self.multinomial else (n_records,)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, as they appear in a multinomial model's coordinates; () with one margin per record."""
        return tuple(map(canonical_category, self.classes or ())) if self.multinomial else ()

    @property
    def declared_loss(self) -> Loss:
        """The loss of the labels. Limits that the job leaves open follow from the declared bounds of the labels."""
        return loss_of(self.loss).declared(self.schema[self.partition.label_column].limits[1])

    @property
    def response(self) -> Loss:
        """The loss whose response turns the margin of a record with an exposure of 1 into a prediction."""
        exposure = self.partition.exposure
        limits = (1.0, 1.0) if exposure is None else self.schema[exposure].limits
        return loss_of(self.loss).declared(self.schema[self.partition.label_column].limits[1], limits)

    @property
    def classification(self) -> bool:
        """True if labels are classes."""
        return loss_of(self.loss).classification

    @property
    def holdout(self) -> float | None:
        """Fraction of the records that are kept out of training; None if training uses all records."""
        return None if self.evaluation is None else self.evaluation.holdout

    @property
    def fairness(self) -> Fairness | None:
        """Comparison between groups of held-out records; None without one."""
        return None if self.evaluation is None else self.evaluation.fairness

    @property
    def class_balance(self) -> float | None:
        """Share of the budget for a noisy count of the positive labels; None without one."""
        return None if self.evaluation is None else self.evaluation.class_balance

    @property
    def diagnostics(self) -> bool:
        """True if the job releases the objective at the end, without noise."""
        return self.evaluation is not None and self.evaluation.diagnostics

    @property
    def split(self) -> Split | None:
        """The public split of the records; None if training uses all records."""
        return None if self.holdout is None else Split(self._salt, self.holdout)

    def subsamples(self, n_records: int) -> Subsamples | None:
        """Return the disjoint public subsamples of n records on which the job trains; None if it trains on all at once."""
        return Subsamples(self._salt, n_records) if self.subsampled else None

    @property
    def _salt(self) -> str:
        """Text that names columns, label and data set, so that jobs with other training options split the records alike."""
        features = sorted(self.partition.features)
        return json.dumps([features, self.partition.label_column, self.dataset], ensure_ascii=True)

    @property
    def uncharged(self) -> str:
        """Values besides the model that the job releases without noise or charge, in words; '' if there are none."""
        said = []
        if self.diagnostics:
            said.append("the objective at the end is released exact and uncharged (diagnostics)")
        if self.evaluation is not None and self.evaluation.public:
            said.append(
                "the held-out records were declared public: measures on them are exact and uncharged "
                "(evaluation.public), and ε is about the other records only"
            )
        return "; ".join(said)

    def on_all_records(self) -> Job:
        """Return the job without the hold-out, the measures and groups that need a hold-out, and the exact objective."""
        partition = self.partition.without_groups()
        ids: Any = {party: self.ids[party] for party in partition.parties} if self.ids else None
        ids = self._id.on(ids)
        groups = self.partition.group_columns
        columns = {column: declared for column, declared in self.columns.items() if column not in groups}
        balance = self.class_balance
        counted = None if balance is None else Evaluation(holdout=None, class_balance=balance)
        return replace(self, evaluation=counted, partition=partition, id=ids, columns=columns)

    def noise_source(self) -> NoiseSource:
        """Return the noise source: the operating system, unless the job names seeded noise."""
        return (self.privacy.noise if self.privacy is not None else None) or CryptographicNoise()

    def scaling_of(self, columns: Sequence[str]) -> Scaling:
        """Return the public scaling of some columns, in order."""
        unshifted = {column for party in self.partition.sparse for column in self.partition.columns(party)}
        return Scaling.of(self.schema, columns, scaling=self.scaling, intercept=self.intercept, unshifted=unshifted)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain tables and lists, which `vfl.job.file.decode` reads."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        fields.pop("partition")
        plain: dict[str, Any] = {"format": FORMAT, **{k: plain_of(v) for k, v in fields.items() if v is not None}}
        plain["partition"] = self.partition.to_dict()
        plain["columns"] = Schema(self.columns).to_dict()
        plain["penalty"] = {"kind": self.penalty.name, **plain_of(self.penalty)}
        plain["solver"] = {"kind": self.solver.name, **plain_of(self.solver)}
        if not isinstance(self.loss, str):
            plain["loss"] = {"kind": self.loss.name, **plain_of(self.loss)}
        if self.privacy is None:
            plain["privacy"] = "none"
        scalars = {k: v for k, v in plain.items() if not isinstance(v, dict)}
        return scalars | {k: v for k, v in plain.items() if isinstance(v, dict)}

    def to_toml(self) -> str:
        """Return the text of a job file."""
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of what owners consent to, in hexadecimal.

        Equal declarations have one digest, in whichever option they stand. The name and the options of execution have no part.
        """
        plain = {key: value for key, value in self.to_dict().items() if key not in (*SPELT, *APART)}
        declared = {column: own for column, own in self.schema.to_dict().items() if own != {"kind": Numeric.kind}}
        return digest_of({**plain, "columns": declared})

    def __repr__(self) -> str:
        lines = [
            f"Job {self.name!r}, digest {self.digest[:12]}",
            *(f"  {key:<10} {said}" for key, said in self._facts()),
        ]
        return "\n".join((*lines, *(f"  {text}" for text in repr(self.partition).splitlines())))

    def _repr_html_(self) -> str:
        return markup.whole(
            markup.line(f"Job {self.name!r}, digest {self.digest[:12]}", strong=True),
            markup.table((), self._facts()),
            self.partition._repr_html_(),
        )

    def _facts(self) -> tuple[tuple[str, str], ...]:
        """Return the job's options as (name, words)."""
        privacy = self.privacy
        guarantee = "NONE: the model is not differentially private"
        if privacy is not None:
            delta = "1/n²" if privacy.delta is None else f"{privacy.delta:.3g}"
            guarantee = f"ε = {privacy.epsilon:g}, δ = {delta}" + (
                ", NOT PRIVATE: seeded noise" if privacy.noise else ""
            )
        return (
            ("loss", loss_of(self.loss).name),
            ("penalty", "none" if self.penalty.describe() == "0" else self.penalty.describe()),
            ("privacy", guarantee),
            ("solver", self.solver.name),
            ("scaling", self.scaling + (", with an intercept" if self.intercept else ", without an intercept")),
            ("data set", self.dataset or "none: covered for each fit alone"),
            ("trust", self.trust_name if self.secure is None else f"secure, {self.secure.describe()}"),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def _identity(self) -> tuple[str, ...]:
        return (self.digest, *(getattr(self, option) for option in APART))


def require_job(value: Any) -> None:
    """Raise SpecificationError unless the value is a Job. The message says how to read a Job from a file."""
    wanted = "a vfl.Job (Job.from_toml(FILE) returns the job of a file, and its environment)"
    require("job", value, wanted, fits=isinstance(value, Job))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PartyTask:
    """Public facts of a job that one party needs to read the party's data. They follow from declarations alone.

    job : the whole job, which the owner's policy and the party's own ledger check.
    columns : the job's names of the party's columns in the declared order, which is the order of an array without names. The
        schema maps these names to the columns in the party's data.
    canonical : the same columns in the order of storage, in which every block is contiguous.
    schema : the declarations of all columns of the job. scaling : scaling of the canonical columns.
    sparse : True if zeros have to stay zeros. storage : 'float64' or 'float32'.
    label : (column in the party's data, declaration), if the party holds the label and the label is wanted.
    intercept : True if a column of ones is stored after the other columns.
    id : columns by which records are aligned, several for a composite key; () without alignment. key : as in `Job`.
    groups : columns by which fairness is checked; such a column may be a feature too.
    factors : exposure and weight, if the party holds the label and the factors are wanted.
    row_rule : rule for persons with several rows, at the label party of a run; None elsewhere, and if every row is a record.
    """

    job: Job
    party: str
    columns: tuple[str, ...]
    canonical: tuple[str, ...]
    schema: Schema
    scaling: Scaling
    sparse: bool
    storage: str
    label: tuple[str, Label] | None
    intercept: bool
    id: tuple[str, ...]
    key: Key
    groups: tuple[str, ...] = ()
    factors: tuple[Factor, ...] = ()
    row_rule: RowRule | None = None

    @classmethod
    def of(cls, job: Job, party: str) -> PartyTask:
        """Return the task of one party. Raises PartitionError for an unknown party."""
        partition = job.partition
        canonical = partition.canonical_columns(party)
        label = (partition.label[1], label_of(job)) if party == partition.label_party else None
        return cls(
            job=job,
            party=party,
            columns=partition.columns(party),
            canonical=canonical,
            schema=job.schema,
            scaling=job.scaling_of(canonical),
            sparse=party in partition.sparse,
            storage=job.precision,
            label=label,
            intercept=job.intercept and label is not None,
            id=job.ids.get(party, ()),
            key=job.key,
            groups=tuple(c for c in (job.fairness.columns if job.fairness else ()) if partition.owner(c) == party),
            factors=factors_of(job) if label is not None else (),
            row_rule=job.row_rule if label is not None else None,
        )

    @property
    def repeats(self) -> bool:
        """Return True if ids may repeat at this party. A prediction takes all rows of an id."""
        return self.job.row_rule is not None and self.party == self.job.partition.label_party

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """Aggregates among the party's columns. The party then has several rows per id, of which it makes one."""
        declared = (self.schema[column] for column in self.columns)
        return tuple(dict.fromkeys(own for own in declared if isinstance(own, Aggregate)))

    @property
    def features(self) -> PartyTask:
        """Return the task for prediction: columns in float64, without label, groups and intercept."""
        return replace(self, label=None, intercept=False, storage="float64", groups=(), factors=(), row_rule=None)

    @property
    def measured(self) -> PartyTask:
        """Return the task for measuring a released model on new records: that of `features`, with label and exposure."""
        factors = tuple(factor for factor in self.factors if factor.role != "weight")
        return replace(self.features, label=self.label, factors=factors)

    def __repr__(self) -> str:
        return f"PartyTask(job {self.job.name!r}, party {self.party!r})"


def factors_of(job: Job) -> tuple[Factor, ...]:
    """Return the declarations of the per-record numbers that the label's owner sends after the label."""
    partition = job.partition
    held = {"exposure": partition.exposure, "weight": partition.weight}
    return tuple(
        Factor(role, partition.local(column), job.schema[column].limits)
        for role, column in held.items()
        if column is not None
    )


def label_of(job: Job) -> Label:
    """Return the label's declaration: classes for classification, else a number with its declared bounds."""
    classes: Any = job.classes
    if job.multinomial:
        return ClassLabel(classes)
    if job.classification:
        return BinaryLabel(classes)
    column = job.partition.label_column
    bounds = None if job.schema.unbounded([column]) else job.schema[column].limits
    return RealLabel(bounds, refuse_negative=loss_of(job.loss).power is not None)


def _require_offered(job: Job) -> None:
    """Raise SpecificationError unless the job can be trained on shares; raise PrivacyError if the guarantee is the reason."""
    secure, partition, privacy = job.secure, job.partition, job.privacy
    if secure is None:
        return
    if privacy is None:
        raise PrivacyError("trust='secure' needs privacy: without noise, the released sums are exact gradients")
    parties = partition.parties
    if len(parties) < 2:
        raise SpecificationError(
            "trust='secure' divides residuals among at least two parties, and the partition has one: use trust='trusted'"
        )
    secure.roles(parties, partition.label_party)  # raises an error for numbers and names that do not fit
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
            job.holdout is not None and not loss.log_odds,
            "measures held-out records with a loss whose sums are not opened from shares",
            "leave holdout out, and measure the model on other records (vfl evaluate)",
        ),
        (
            job.fairness is not None,
            "compares groups by the margins and norms of single records",
            "leave fairness out, and compare groups of other records (vfl evaluate)",
        ),
        (
            job.evaluation is not None and job.evaluation.public,
            "measures public records without noise, and every number from shares is opened with noise",
            "leave public out",
        ),
        (
            job.holdout is not None and job.class_balance is not None,
            "counts labels of training records alone, and the label party's count includes held-out ones",
            "leave class_balance out; the measures state the share of positive labels",
        ),
        (job.diagnostics, "releases the objective from margins", "leave diagnostics out"),
        (
            job.intervals is not None,
            "takes standard errors from margins or from subsamples, which shares do not have",
            "leave intervals out",
        ),
        (privacy.smoothness == "data", "releases exact moments", "use smoothness='private'"),
        (job.start is not None, "starts from a released model", "leave start out, so that training starts at 0"),
        (partition.weight is not None, "weights its records", "leave weight out"),
        (bool(partition.sparse), "keeps columns sparse, and masked columns are dense", "leave sparse out"),
    ):
        if asked:
            raise SpecificationError(f"under trust='secure' nobody sees margins, and this job {words}: {remedy}")
    if unbounded := job.schema.unbounded(partition.features):
        raise SpecificationError(
            f"trust='secure' rounds columns to fixed steps and needs bounds for {unbounded[0]!r}: declare them"
        )
