"""Export of a result as a scikit-learn Pipeline, which can be pickled and needs no vfl.

The pipeline takes a pandas frame with the columns of all parties by name. The pipeline reads the cells, computes the
coordinates as one expression of NumPy's functions, then applies `coef_` and `intercept_` in original units. The scores agree
with `Result.decision_function` up to rounding. A cell that `predict` refuses raises ValueError, which names its columns.

Like a party, the pipeline accepts cells as pandas reads them: categories as integers, floats, truth values or text with
surrounding blanks; booleans and dates as text, but no week dates. Numeric columns must hold numbers. The pipeline does not
join parties or ids. The pipeline has no certificate, and a pipeline that is fitted again would have no guarantee.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.arguments import package
from vfl.base.columns import canonical_category
from vfl.base.features.formula import BLANK, NO_DATE, Apply, Case, Cell, shared
from vfl.launch.run.exports import cells_of, coordinates_of, reach_of, sum_of

if TYPE_CHECKING:
    from vfl.base.features.formula import Condition, Formula
    from vfl.job import Job
    from vfl.launch.run.model import Model

_NAMES = {
    name: getattr(np, name) for name in ("broadcast_arrays", "cos", "floor", "log", "nan", "select", "sin", "stack")
}
_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "remainder": "%", "power": "**"}
_TRUTHS = dict.fromkeys(("true", "True", "TRUE", "1", 1), 1.0) | dict.fromkeys(("false", "False", "FALSE", "0", 0), 0.0)
_ONE_COORDINATE = {"ensure_2d": False, "ensure_min_samples": 0}  # the expression may be one constant
_DATES = {
    f"^[{BLANK}]+|[{BLANK}]+$": "",
    r"([T ]\d\d(?::?\d\d){0,2})(?:[.,]\d+)?(?:Z|[+-]\d\d(?::?\d\d)*)?$": r"\1",  # fractions, zone
    r"^(?!\d{4}-\d\d-\d\d(?!\d)|\d{8}(?!\d)).*$": "none",  # pandas reads 2020-1-1, and a party does not
}
"""Replacements in the text of dates, which leave dates that pandas reads as a party does."""


def pipeline_of(result: Model, party: str | None = None) -> Any:
    """Return the fitted Pipeline: 'cells', 'columns', and 'model' with coef_, intercept_ and the names of coordinates.

    The model is LogisticRegression, LinearSVC (hinge losses; no probabilities) or LinearRegression; for counts and amounts in a
    TransformedTargetRegressor, as `regressor_`, which applies exp and caps the mean as `predict` does.

    party : party whose part of the score to predict, from the party's own columns, with a LinearRegression; None predicts with
        the whole model.

    A threshold different from 0.5, or from the score 0, wraps the model in a FixedThresholdClassifier as `estimator_`.

    Raises SpecificationError if pandas, whose frames name the columns, is not installed.
    """
    pd = package("pandas", "frames", "to_sklearn")
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.utils import check_array

    job, by_name = result.applied, {}
    for owner in job.partition.parties if party is None else (party,):
        own, guards = coordinates_of(job, owner, in_one_table=party is None)
        for name, formula in own.items():  # a refused cell makes a coordinate NaN
            by_name[name] = Apply("add", (formula, guards.pop())) if guards else formula
    made, formulas = shared(by_name.values())
    reading = _Reading(pd)
    source = "(" + "".join(f"{cell.column} := {reading.expression(one)}, " for cell, one in made.items())
    checked = (
        f"checked({reading.expression(formula)}, input_name={_where(whole)!r}, **rules)"
        for formula, whole in zip(formulas, by_name.values(), strict=True)
    )
    source += f"stack(broadcast_arrays({', '.join(checked)}), 1),)[-1]"
    names_used = {"__builtins__": {}, **_NAMES, "checked": check_array, "rules": _ONE_COORDINATE}
    cells, names = reading.transformer()
    columns = make_pipeline(
        _step(pd.DataFrame, columns=names),
        _step(dict),
        _step(partial(eval, source, names_used)),
        _step(pd.DataFrame, columns=list(by_name)),
    )
    nothing = pd.DataFrame(0.0, index=range(max(2, job.n_outputs)), columns=list(by_name))
    if party is not None:
        part, model = sum_of(result, party), LinearRegression().fit(nothing, [0.0, 1.0])
        model.coef_, model.intercept_ = np.array([weight for weight, _ in part.terms]), part.constant
        return Pipeline([("cells", cells), ("columns", columns), ("model", model)])
    coefficients = dict(zip(result.feature_names, result.coef_.T, strict=True))
    model = _fitted(job, np.array([coefficients[name] for name in by_name]), result.intercept_, nothing)
    return Pipeline([("cells", cells), ("columns", columns), ("model", _at_threshold(result, model, nothing.head(2)))])


def _where(formula: Formula) -> str:
    columns = ", ".join(repr(column) for column in dict.fromkeys(cell.column for cell in cells_of(formula)))
    return f"{columns} (a missing cell, or one that the column's declaration refuses)"


def _step(function: Any, **arguments: Any) -> Any:
    from sklearn.preprocessing import FunctionTransformer

    return FunctionTransformer(function, kw_args=arguments or None)


class _Reading:
    """Formulas as Python expressions, and the transformer that computes the variables in them from the cells of a frame.

    Variable vK is the number in cell K; for text, the number of the text among those that the formulas compare; else NaN.
    Variable mK is 1 for a missing cell.
    """

    def __init__(self, pd: Any) -> None:
        self._pd = pd
        self._codes: dict[Cell, dict[str, int]] = {}

    def expression(self, formula: Formula) -> str:
        if isinstance(formula, Cell):
            if formula.content == "made":
                return formula.column
            v, m = self._variables(formula)
            return f"select([({v} != {v}) & ({m} < 1)], [{NO_DATE}], {v})" if formula.content == "date" else v
        if isinstance(formula, Apply):
            args = [self.expression(one) for one in formula.args]
            operator = _OPERATORS.get(formula.name)
            return f"{formula.name}({args[0]})" if operator is None else f"({args[0]} {operator} {args[1]})"
        if isinstance(formula, Case):
            if not formula.cases:
                return self.expression(formula.otherwise)
            conditions = ", ".join(self._holds(condition) for condition, _ in formula.cases)
            values = ", ".join(self.expression(one) for _, one in formula.cases)
            return f"select([{conditions}], [{values}], {self.expression(formula.otherwise)})"
        return repr(float(formula))

    def _variables(self, cell: Cell) -> tuple[str, str]:
        self._codes.setdefault(cell, {})
        k = list(self._codes).index(cell)
        return f"v{k}", f"m{k}"

    def _holds(self, condition: Condition) -> str:
        if condition.name == "missing" and isinstance(condition.a, Cell):
            return f"({self._variables(condition.a)[1]} > 0)"
        a, b, operator = self.expression(condition.a), condition.b, "<" if condition.name == "less" else "=="
        if isinstance(b, str) and isinstance(condition.a, Cell):
            codes = self._codes[condition.a]
            return f"({a} == {codes.setdefault(b, len(codes))})"
        return f"({a} {operator} {self.expression(b)})"  # type: ignore[arg-type]

    def transformer(self) -> tuple[Any, list[str]]:
        """Return the ColumnTransformer for all cells in the expressions so far, and the names of the variables it computes."""
        from sklearn.compose import ColumnTransformer
        from sklearn.pipeline import make_pipeline

        steps = []
        for k, (cell, codes) in enumerate(self._codes.items()):
            steps.append((f"v{k}", make_pipeline(*self._steps(cell, codes)), [cell.column]))
            steps.append((f"m{k}", _step(self._pd.DataFrame.isna), [cell.column]))
        cells = ColumnTransformer(steps, sparse_threshold=0)
        return cells.fit(self._pd.DataFrame({cell.column: [np.nan] for cell in self._codes})), [
            name for name, *_ in steps
        ]

    def _steps(self, cell: Cell, codes: dict[str, int]) -> list[Any]:
        from sklearn.utils import murmurhash3_32

        frame, series = self._pd.DataFrame, self._pd.Series
        as_number = [_step(frame.fillna, value=np.nan), _step(frame.astype, dtype=float)]
        if cell.content == "number":
            return as_number
        text = [
            _step(frame.astype, dtype=object),
            _step(frame.replace, to_replace=f"^[{BLANK}]+|[{BLANK}]+$", value="", regex=True),
        ]
        one, many = _step(methodcaller("squeeze", "columns")), [_step(series.to_frame), *as_number]
        if cell.content == "hash":
            return [text[0], one, _step(methodcaller("map", murmurhash3_32, na_action="ignore")), *many]
        if cell.content == "date":
            dates = _step(self._pd.to_datetime, format="ISO8601", errors="coerce")
            naive = [_step(attrgetter("dt")), _step(methodcaller("tz_localize", None))]
            floor = [_step(attrgetter("dt")), _step(methodcaller("floor", "s"))]
            since = [
                _step(series.sub, other=self._pd.Timestamp("1970-01-01")),
                _step(series.div, other=self._pd.Timedelta(seconds=1)),
            ]
            clean = [_step(frame.replace, to_replace=a, value=b, regex=True) for a, b in _DATES.items()]
            return [*clean, one, dates, *naive, *floor, *since, *many]
        forms = _TRUTHS if cell.content == "boolean" else _forms(codes)
        return [*text, one, _step(methodcaller("map", forms)), *many]


def _forms(codes: dict[str, int]) -> dict[Any, int]:
    """Return {cell: code} for all forms of cells that a party would read as these categories (parties.storage.cells.lookup).

    pandas reads whole numbers as floats if cells are missing, and TRUE as a truth value.
    """
    found: dict[Any, int] = {}
    for text, code in codes.items():
        found[text] = code
        if text in ("true", "false"):
            found[text == "true"] = code
        with suppress(ValueError):
            if canonical_category(float(text)) == text:
                found[float(text)] = code
    return found


def _at_threshold(result: Model, model: Any, nothing: Any) -> Any:
    if not result.score_threshold:
        return model
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import FixedThresholdClassifier

    least = float(np.nextafter(result.score_threshold, np.inf))  # scikit-learn compares by >=
    fixed = FixedThresholdClassifier(
        FrozenEstimator(model), threshold=least, pos_label=model.classes_[1], response_method="decision_function"
    )
    return fixed.fit(nothing, model.classes_)


def _fitted(job: Job, coef: Any, intercept: Any, nothing: Any) -> Any:
    """Return the estimator for the job's loss: fitted to zeros, and then given the coefficients, (p,) or (p, K)."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.svm import LinearSVC

    loss, labels = job.response, np.array([0.0, 1.0])
    if job.multinomial:
        model = LogisticRegression().fit(nothing, np.arange(job.n_outputs))
        if job.n_outputs == 2:  # scikit-learn keeps the difference of two classes
            coef, intercept = np.diff(coef, axis=1), np.diff(intercept)
        model.classes_ = np.array(job.classes)
        model.coef_, model.intercept_ = np.ascontiguousarray(coef.T), intercept
        return model
    if not job.classification:
        model = LinearRegression().fit(nothing, labels + 1.0)
        model.coef_, model.intercept_ = coef, intercept
        return model if loss.power is None else _response(model, reach_of(loss), nothing, labels + 1.0)
    model = (LogisticRegression() if loss.log_odds else LinearSVC()).fit(nothing, labels)
    negative, positive = job.classes or (0, 1)
    model.classes_ = np.array([False, True] if isinstance(negative, tuple) else [negative, positive])
    model.coef_, model.intercept_ = coef[np.newaxis, :], np.array([intercept])
    return model


def _response(model: Any, reach: tuple[float, float], nothing: Any, labels: Any) -> Any:
    """Return the regressor that predicts exp(score), with the score clamped to `reach`."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    ends = dict(zip(("a_min", "a_max"), reach, strict=True))
    link = FunctionTransformer(np.log, np.exp), FunctionTransformer(inverse_func=np.clip, inv_kw_args=ends)
    found = TransformedTargetRegressor(model, transformer=make_pipeline(*link), check_inverse=False).fit(
        nothing, labels
    )
    found.regressor_ = model
    return found
