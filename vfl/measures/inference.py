"""Inference on coefficients: covariance, combinations that records determine, Wald tests, and the table of a summary."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from vfl.base import markup
from vfl.base.arguments import package, require_number
from vfl.base.columns import Categorical, indicators
from vfl.base.features import Binned, Hashed, Spline, own_of
from vfl.base.problem import INTERCEPT
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.schema import Schema
    from vfl.base.types import Vector

SUBSAMPLED = (
    "standard errors are from the spread of 8 fits on disjoint subsamples, with Student's t of 7 degrees of freedom. The "
    "spread neither separates the noise of privacy from sampling nor shows a bias that all fits share"
)


@dataclass(frozen=True, slots=True, eq=False)
class Inference:
    """Estimates of a run with their covariance, which includes both sampling and the noise of privacy.

    All values are released or post-processed, so tests and intervals cost no further privacy. The estimates are approximately
    normal around the coefficients of the capped regression on infinitely many records.

    names : coordinates as in `Result.original`: features in their order, then '(intercept)'.
    estimates : (k,) coefficients in original units.
    covariance : (k, k) covariance of the estimates.
    noise_covariance : (k, k) part of `covariance` due to the noise of privacy; None if that part is not known separately.
    df : degrees of freedom of `covariance`, for Student's t; None for the normal distribution.
    limits : (k, k) matrices Q. A combination r of coefficients has a standard error only if rᵀQr ≤ 0 for each of them.
    notes : caveats to show with the intervals. facts : {name: text} to show above the table, such as the condition number.
    """

    names: tuple[str, ...]
    estimates: Vector
    covariance: Vector
    noise_covariance: Vector | None
    notes: tuple[str, ...] = ()
    df: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[Vector, ...] = ()

    def __post_init__(self) -> None:
        k = len(self.names)
        both = [v for v in (self.covariance, self.noise_covariance, *self.limits) if v is not None]
        if self.estimates.shape != (k,) or any(v.shape != (k, k) for v in both):
            raise ValueError("an inference needs k estimates and k × k covariances for k names")
        if not all(np.isfinite(v).all() for v in (self.estimates, *both)):
            raise ValueError("an inference needs finite values")
        if self.df is not None and self.df < 1:
            raise ValueError("an inference needs at least one degree of freedom")

    def shown(self, weights: Vector) -> Vector:
        """Return (m,), True for combinations with weights (m, k) that have a standard error."""
        found = np.ones(len(weights), dtype=bool)
        for Q in self.limits:
            found &= ((weights @ Q) * weights).sum(axis=1) <= 0.0
        return found

    @classmethod
    def between(cls, names: Sequence[str], fits: Vector) -> Self:
        """Return the mean of m independent fits, (m, k), with the covariance of the mean, which has m − 1 degrees of freedom.

        The covariance of the mean is the covariance of the fits, divided by m. Each fit has its own records, equal in number,
        and its own noise. The spread of the fits therefore shows sampling and noise together, for any model (random groups:
        Wolter 2007, ch. 2). The mean has the same bias as one fit, which may be m times the bias of a fit to all records.
        """
        m, k = fits.shape
        away = fits - fits.mean(axis=0)
        covariance = away.T @ away / ((m - 1) * m)
        facts = {"covariance": f"spread of {m} fits"}
        whole = covariance.reshape(k, k)
        return cls(tuple(names), fits.mean(axis=0), whole, None, notes=(SUBSAMPLED,), df=m - 1, facts=facts)

    def to_dict(self) -> dict[str, Any]:
        """Return the inference as plain values, which `from_dict` reads."""
        return {
            "names": list(self.names),
            "estimates": self.estimates.tolist(),
            "covariance": self.covariance.tolist(),
            "noise_covariance": None if self.noise_covariance is None else self.noise_covariance.tolist(),
            "notes": list(self.notes),
            **({} if self.df is None else {"df": self.df}),
            **({"facts": dict(self.facts)} if self.facts else {}),
            **({"limits": [Q.tolist() for Q in self.limits]} if self.limits else {}),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """Return the inference that `to_dict` wrote. Raises KeyError, TypeError or ValueError for any other input."""
        estimates, both = (np.array(plain[name], dtype=np.float64) for name in ("estimates", "covariance"))
        noise = plain["noise_covariance"]
        noise = None if noise is None else np.array(noise, dtype=np.float64)
        df = plain.get("df")
        names, notes = tuple(map(str, plain["names"])), tuple(map(str, plain["notes"]))
        facts = {str(name): str(said) for name, said in plain.get("facts", {}).items()}
        limits = tuple(np.array(Q, dtype=np.float64) for Q in plain.get("limits", ()))
        return cls(names, estimates, both, noise, notes, None if df is None else int(df), facts, limits)


STEP = 1e-4
"""Half the step of the difference quotient of ∂ℓ/∂v, in units of a margin. The quotient's relative error is about STEP²."""
ALIKE = 1e-10
"""Smallest eigenvalue of the scaled curvature, per column, that counts as determined by the records."""


def sandwich(
    X: Vector,
    margins: Vector,
    labels: Vector,
    loss: Loss,
    *,
    weights: Vector | None = None,
    ridge: Vector | None = None,
) -> Vector:
    """Return the sandwich H⁺ J H⁺, (k, k), with H = Σ s ℓ'' x xᵀ + ridge and J = Σ (s ℓ')² x xᵀ; for least squares, HC0.

    Directions that the records do not determine get variance 0. Differences of one-hot levels keep their variance.

    X : (n, k) columns, the intercept included. margins, labels, weights s : (n,). ridge : (k,) nλ per coordinate.
    """
    s = np.ones(len(X)) if weights is None else weights
    first = s * loss.derivative(margins, labels)
    second = s * (loss.derivative(margins + STEP, labels) - loss.derivative(margins - STEP, labels)) / (2.0 * STEP)
    H = (X * second[:, None]).T @ X
    if ridge is not None:
        H[np.diag_indices_from(H)] += ridge
    unit = 1.0 / np.sqrt(np.where(np.diag(H) > 0.0, np.diag(H), 1.0))
    values, vectors = np.linalg.eigh(H * np.outer(unit, unit))
    kept = values > ALIKE * len(values)
    half = vectors[:, kept] * unit[:, None]
    scores = (X @ half) * (first[:, None] / values[kept])
    return np.asarray(half @ (scores.T @ scores) @ half.T)


def full_sets(schema: Schema, columns: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the full sets: coordinates of one column, such as levels, bins or buckets, whose sum is 1 on every record."""
    found = []
    for column in columns:
        declared = schema[column]
        names = own_of(declared, column)
        if isinstance(declared, Categorical):
            full = declared.unknown != "zero"
        else:
            full = isinstance(declared, Binned | Spline) or (isinstance(declared, Hashed) and not declared.signed)
        if full:
            # A missing cell without a fill value is in no level, so the indicator of missing cells completes the set.
            found.append(names if declared.fill is not None else (*names, *indicators(column, declared.missing)))
    return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """Linear combinations of a run's coefficients that the records determine, in original units.

    The levels of a full set add up to 1 on every record, as does the intercept. Adding a number to the coefficients of all
    levels and subtracting it from the intercept changes no prediction. So neither the levels nor the intercept have standard
    errors of their own. Levels are therefore reported as differences from the first level of their set. The intercept is
    reported for a record that is in the first level of every set.

    names : (m,) expressions in the coefficients, in the syntax of `wald`. weights : (m, k) weights of the coefficients.
    sets : (s, k) indicators: one row for the intercept, then one per full set of levels.
    """

    inference: Inference
    names: tuple[str, ...]
    weights: Vector
    sets: Vector

    @classmethod
    def of(cls, inference: Inference, levels: Sequence[Sequence[str]]) -> Estimates:
        """Return the combinations for a model. levels : names of the coordinates of each full set."""
        at = {name: j for j, name in enumerate(inference.names)}
        unit = np.eye(len(at))
        ones = [[at[name] for name in own] for own in ([INTERCEPT], *levels) if all(name in at for name in own)]
        sets = np.array([unit[own].sum(axis=0) for own in ones]).reshape(len(ones), len(at))
        first, rest = ones[:1], ones[1:]
        reference = {j: own[0] for own in rest for j in own}
        whole, alone = sum((unit[own[0]] for own in rest), np.zeros(len(at))), {j for own in first for j in own}
        rows: dict[str, Vector] = {}
        order = sorted(at.values(), key=lambda j: (inference.names[j] != INTERCEPT, j))
        for j in order:
            name = inference.names[j]
            if j in alone and rest:
                rows[" + ".join((name, *(inference.names[own[0]] for own in rest)))] = unit[j] + whole
            elif j not in reference:
                rows[name] = unit[j]
            elif j != reference[j]:
                rows[f"{name} - {inference.names[reference[j]]}"] = unit[j] - unit[reference[j]]
        return cls(inference, tuple(rows), np.array(list(rows.values())).reshape(len(rows), len(at)), sets)

    @property
    def values(self) -> Vector:
        """(m,) estimates."""
        return self.weights @ self.inference.estimates

    @property
    def covariance(self) -> Vector:
        """(m, m) covariance of the estimates; NaN in rows and columns of estimates without a standard error."""
        unknown = np.where(self.inference.shown(self.weights), 0.0, np.nan)
        return self.weights @ self.inference.covariance @ self.weights.T + np.add.outer(unknown, unknown)

    @property
    def errors(self) -> Vector:
        """(m,) standard errors; NaN where they are withheld."""
        known = self.inference.shown(self.weights)
        return np.where(known, errors_of(self.inference.covariance, self.weights), np.nan)

    @property
    def privacy_shares(self) -> Vector:
        """(m,) share of each variance due to the noise of privacy; 0 for a variance of 0, NaN if unknown."""
        if self.inference.noise_covariance is None:
            return np.full(len(self.names), np.nan)
        whole, noise = self.errors**2, errors_of(self.inference.noise_covariance, self.weights) ** 2
        return np.clip(np.divide(noise, whole, out=whole * 0.0, where=whole > 0.0), 0.0, 1.0)

    def weights_of(self, terms: Mapping[str, float]) -> Vector:
        """Return the weights (k,) of a combination. SpecificationError if the records do not determine the combination."""
        row = np.array([float(terms.get(name, 0.0)) for name in self.inference.names])
        sums = self.sets @ row
        for own, total in zip(self.sets, sums, strict=True):
            if abs(total - sums[0]) > 1e-9 * max(1.0, float(np.abs(row).sum())):
                first, second = (self.inference.names[j] for j in np.flatnonzero(own)[:2])
                raise SpecificationError(
                    f"{first!r} and the other levels add up to 1 on every record, so records determine their differences "
                    f"only: test a difference, such as {f'{second} = {first}'!r}"
                )
        return row


def errors_of(covariance: Vector, weights: Vector) -> Vector:
    """Return the standard deviations (m,) of the combinations with weights (m, k)."""
    variances: Vector = ((weights @ covariance) * weights).sum(axis=1)
    return np.sqrt(np.maximum(variances, 0.0))


Hypothesis: TypeAlias = str | Mapping[str, float] | Sequence[str | Mapping[str, float]]
"""A hypothesis: 'age = 0', 'age = income', 'age = 0, income = 0' (both), {'age': 1, 'income': -1} (sum 0), or a list."""

_NUMBER = re.compile(r"\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?")
_REPEATED = 1e-10
"""Smallest eigenvalue of the correlation matrix of the hypotheses. Below it, some hypotheses repeat others."""


@dataclass(frozen=True, slots=True)
class WaldTest:
    """Wald test of a linear hypothesis. A small p-value is evidence against the hypothesis.

    hypothesis : text of the hypothesis, Rθ = q for the coefficients θ.
    statistic : (Rθ − q)ᵀ(R V Rᵀ)⁻¹(Rθ − q). The statistic is χ² with `df` degrees of freedom if the hypothesis holds. The
        covariance V includes sampling and the noise of privacy.
    error_df : None for χ². If V is estimated with ν degrees of freedom, the statistic is Hotelling's T² times
        (ν − df + 1)/(ν·df), which is F with df and error_df = ν − df + 1 degrees of freedom.
    """

    hypothesis: str
    statistic: float
    df: int
    p_value: float
    error_df: int | None = None

    def __str__(self) -> str:
        p = shown_p(self.p_value)
        law = f"χ²({self.df})" if self.error_df is None else f"F({self.df}, {self.error_df})"
        return f"Wald test of {self.hypothesis}: {law} = {self.statistic:.4g}, p {p if p[0] == '<' else f'= {p}'}"

    __repr__ = __str__


def shown_p(p: float) -> str:
    """Return a p-value as text."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def wald(estimates: Estimates, hypothesis: Hypothesis) -> WaldTest:
    """Return the Wald test of a hypothesis. The test costs no privacy.

    Raises SpecificationError for unknown coefficients, for combinations that the records do not determine or whose standard
    error is withheld, and for hypotheses that repeat or contradict one another.
    """
    from scipy.stats import chi2, f

    read = _read(hypothesis, estimates.inference.names)
    R = np.array([estimates.weights_of(terms) for terms, _ in read])
    q = np.array([value for _, value in read])
    V = R @ estimates.inference.covariance @ R.T
    deviations = np.sqrt(np.maximum(np.diag(V), 0.0))
    if not (R != 0.0).any(axis=1).all():
        raise SpecificationError(
            "a hypothesis names no coefficient, or only cancels one out: give one, such as 'age = 0'"
        )
    tests, df = len(read), estimates.inference.df
    if df is not None and tests > df:
        raise SpecificationError(
            f"standard errors from subsamples have {df} degrees of freedom, so at most {df} hypotheses can be tested at once"
        )
    if not (deviations > 0.0).all() or np.linalg.eigvalsh(V / np.outer(deviations, deviations))[0] < _REPEATED:
        raise SpecificationError("the hypotheses repeat or contradict one another: leave one of them out")
    unit = R / deviations[:, None]
    if any(np.linalg.eigvalsh(unit @ Q @ unit.T)[-1] > _REPEATED for Q in estimates.inference.limits):
        raise SpecificationError(f"{_in_words(read)} has no test. {' '.join(estimates.inference.notes)}")
    away = R @ estimates.inference.estimates - q
    statistic = float(away @ np.linalg.solve(V, away))
    if df is None:
        return WaldTest(_in_words(read), statistic, tests, float(chi2.sf(statistic, tests)))
    left = df - tests + 1
    statistic *= left / (df * tests)
    return WaldTest(_in_words(read), statistic, tests, float(f.sf(statistic, tests, left)), left)


Read: TypeAlias = list[tuple[dict[str, float], float]]
"""One pair per hypothesis: (weights of the coefficients, value of their weighted sum)."""


def _read(hypothesis: Hypothesis, names: Sequence[str]) -> Read:
    if isinstance(hypothesis, str):
        return _Reader(hypothesis, names).hypotheses()
    if isinstance(hypothesis, Mapping):
        for name, weight in hypothesis.items():
            if name not in names:
                raise SpecificationError(f"the model has no coefficient {name!r}{nearest(str(name), names)}")
            require_number(f"weight of {name!r}", weight)
            if not np.isfinite(weight):
                raise SpecificationError(f"weight of {name!r} must be finite, not {weight!r}")
        return [({name: float(weight) for name, weight in hypothesis.items()}, 0.0)]
    if isinstance(hypothesis, Sequence) and hypothesis:
        return [one for own in hypothesis for one in _read(own, names)]
    raise SpecificationError(
        f"a hypothesis is text such as 'age = 0', weights such as {{'age': 1, 'income': -1}}, or a list, not {hypothesis!r}"
    )


class _Reader:
    """Parser of 'a*x + b*y = c, ...'. The parser tries the longest coefficient names first, because names may contain signs."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self._text, self._at = text, 0
        self._names = sorted((name for name in names if name.strip()), key=len, reverse=True)

    def hypotheses(self) -> Read:
        found: Read = []
        while True:
            sides = [self._side()]
            while self._takes("="):
                sides.append(self._side())
            if len(sides) == 1:
                raise self._error("'=' is missing")
            for left, right in pairwise(sides):
                terms = {name: left.get(name, 0.0) - right.get(name, 0.0) for name in {**left, **right}}
                found.append(({name: weight for name, weight in terms.items() if name}, -terms.get("", 0.0)))
            if not self._takes(","):
                break
        if self._rest():
            raise self._error("a sign is missing")
        return found

    def _side(self) -> dict[str, float]:
        """Read a sum of terms; return the weights of coefficients, and the constant under the empty name."""
        weights: dict[str, float] = {}
        sign: float | None = self._sign() or 1.0
        while sign is not None:
            factor, name = self._term()
            weights[name] = weights.get(name, 0.0) + sign * factor
            sign = self._sign()
        return weights

    def _sign(self) -> float | None:
        return 1.0 if self._takes("+") else -1.0 if self._takes("-") else None

    def _term(self) -> tuple[float, str]:
        number, name = self._number(), ""
        if number is None or self._takes("*"):
            name = self._name()
            if number is None and self._takes("*"):
                number = self._number()
                if number is None:
                    raise self._error("a number is missing")
        return 1.0 if number is None else number, name

    def _rest(self) -> str:
        self._at += len(self._text[self._at :]) - len(self._text[self._at :].lstrip())
        return self._text[self._at :]

    def _takes(self, sign: str) -> bool:
        taken = self._rest().startswith(sign)
        self._at += taken * len(sign)
        return taken

    def _longest(self) -> str | None:
        rest = self._rest()
        return next((name for name in self._names if rest.startswith(name.lstrip())), None)

    def _number(self) -> float | None:
        found, name = _NUMBER.match(self._rest()), self._longest()
        if found is None or (name is not None and len(name) > len(found[0])):
            return None
        self._at += len(found[0])
        return float(found[0])

    def _name(self) -> str:
        name = self._longest()
        if name is None:
            raise self._error("a coefficient is missing")
        self._at += len(name.lstrip())
        following = self._text[self._at : self._at + 1]
        if following and (following.isalnum() or following == "_") and (name[-1].isalnum() or name[-1] == "_"):
            self._at -= len(name.lstrip())
            raise self._error("a coefficient is missing")
        return name

    def _error(self, said: str) -> SpecificationError:
        word = re.match(r"[^\s=,+*-]*", self._rest())
        near = nearest(word[0], self._names) if word else ""
        return SpecificationError(
            f"the hypothesis {self._text!r} cannot be read at {self._rest()!r}: {said}{near}. Write 'age = 0', or give "
            "weights, such as {'age': 1, 'income': -1}"
        )


def _in_words(read: Read) -> str:
    return ", ".join(f"{_sum(terms)} = {value + 0.0:g}" for terms, value in read)


def _sum(terms: Mapping[str, float]) -> str:
    said = ""
    for name, weight in terms.items():
        if weight:
            sign = ("-" if weight < 0 else "") if not said else (" - " if weight < 0 else " + ")
            said += sign + ("" if abs(weight) == 1.0 else f"{abs(weight):g}*") + name
    return said


CAPPED = (
    "target: the capped regression, which cuts contributions of records beyond the run's cap. It equals the usual one "
)
USUAL = {
    "classes": "if the logistic model is right; else they may differ",
    "log link": "if no labels are cut. Cut large labels lower the intercept, and so predicted means",
    "numbers": "if errors are symmetric given the columns. Skewed errors shift the intercept, and so predicted means; also "
    "slopes, if the errors' spread follows a column",
}
"""End of the sentence CAPPED, by kind of loss: when the coefficients are those of the usual regression, and when not."""
FEW = (
    "few records may have most of the variance of {}, and the cap cuts such records: if the effect is not linear there, the "
    "coefficient differs from that of a usual regression. Declare narrower bounds, or a curve"
)
SELECTED = (
    "selection is not accounted for: intervals and p-values are too optimistic if tuning, or a look at several fits of these "
    "records, chose this model"
)
WITHHELD = (
    "–: no standard error, because noise hides the effect in these records: {}. More records or a larger ε help; or leave one "
    "of the columns out, narrow bounds to the data, or merge rare levels"
)
TOGETHER = (
    "{} nearly depend on one another, so that at most sums or differences are known (Result.test, vfl show --test)"
)
ALONE = "of {} nothing is known, since values vary little within their bounds, or few records have the level"
UNLIKELY = (
    "no deviance, AIC or likelihood ratio of the training records: noise moves the coefficients away from the maximum, and the "
    "likelihood would be a further release. Compare nested models by Wald tests (Result.test), others by measures on a holdout"
)
CLAMPED = "labels are clamped to [{:g}, {:g}] first: if many lie outside, the coefficients are those of clamped labels"
CURVES = "the coefficients of a curve mean little one by one: Result.curves(RUN) gives each curve with its band"
ROBUST = (
    "without privacy: standard errors are robust against a wrong model (the sandwich HC0); the noise of privacy is 0"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One coefficient in original units.

    name : name of the coefficient, or an expression in several coefficients, in the syntax of `Result.test`.
    z : ratio of coefficient to standard error. The ratio is normal or Student's t (`Summary.df`).
    privacy : share of the variance that is due to the noise of privacy; the rest is due to sampling. None if not known.

    All numbers but the coefficient are None if the standard error is withheld; a note of the summary says why.
    """

    name: str
    coefficient: float
    standard_error: float | None
    z: float | None
    p_value: float | None
    low: float | None
    high: float | None
    privacy: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """Table of the coefficients with standard errors, tests and intervals, the intercept first. The table costs no privacy.

    title : model and job. facts : {name: value} above the table. level : level of the intervals. notes : assumptions.
    df : degrees of freedom of Student's t; None for the normal distribution.
    """

    title: str
    facts: Mapping[str, str]
    level: float
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    df: int | None = None

    @property
    def statistic(self) -> str:
        """Name of the ratio of a coefficient to its standard error: 't' if `df` is given, else 'z'."""
        return "z" if self.df is None else "t"

    @property
    def _head(self) -> tuple[str, ...]:
        tail = (1.0 - self.level) / 2.0
        z = self.statistic
        return "", "coef", "std err", z, f"P>|{z}|", f"[{tail:.3g}", f"{1.0 - tail:.3g}]", "privacy"

    @property
    def _cells(self) -> list[tuple[str, ...]]:
        return [(_printable(row.name), *cells_of(row)) for row in self.rows]

    def __str__(self) -> str:
        cells = [self._head, *self._cells]
        widths = [max(len(row[j]) for row in cells) for j in range(len(self._head))]
        lines = [
            "  ".join((row[0].ljust(widths[0]), *(own.rjust(w) for own, w in zip(row[1:], widths[1:], strict=True))))
            for row in cells
        ]
        rule = "=" * len(lines[0])
        width = max(map(len, self.facts), default=0)
        facts = (f"{name:<{width}}  {_printable(value)}" for name, value in self.facts.items())
        numbered = (f"[{k}] {_printable(note)}" for k, note in enumerate(self.notes, 1))
        notes = (textwrap.fill(note, max(79, len(rule)), subsequent_indent="    ") for note in numbered)
        return "\n".join(
            (_printable(self.title), rule, *facts, rule, lines[0], rule.replace("=", "-"), *lines[1:], rule, *notes)
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return markup.whole(
            markup.line(self.title, strong=True),
            markup.table((), list(self.facts.items())),
            markup.table(self._head, self._cells, numbers=range(1, len(self._head))),
            *map(markup.line, self.notes),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "df" or value is not None}

    def to_frame(self) -> Any:
        """Return a pandas frame with one row per coefficient. Raises SpecificationError without pandas."""
        pd = package("pandas", "frames", "to_frame")
        frame = pd.DataFrame([asdict(row) for row in self.rows]).set_index("name")
        return frame.rename_axis(None)


def cells_of(row: Row) -> tuple[str, ...]:
    """Return the numbers of a table row as text."""
    written = ("{:.4g}", row.coefficient), ("{:.3g}", row.standard_error), ("{:.2f}", row.z), ("{}", row.p_value)
    more = ("{:.4g}", row.low), ("{:.4g}", row.high), ("{:.0%}", row.privacy)
    return tuple(
        "–" if value is None else form.format(shown_p(value) if form == "{}" else value)
        for form, value in (*written, *more)
    )


def quantile(level: float, df: int | None = None) -> float:
    """Return z for intervals estimate ± z·error of this level: a normal quantile, or Student's t with df degrees of freedom.

    Raises SpecificationError for a level outside (0, 1).
    """
    from scipy.special import ndtri, stdtrit

    require_number("level", level)
    if not 0.0 < level < 1.0:
        raise SpecificationError(f"level lies between 0 and 1, such as 0.95, not {level!r}")
    upper = (1.0 + level) / 2.0
    return float(ndtri(upper) if df is None else stdtrit(df, upper))


def rows_of(estimates: Estimates, level: float) -> tuple[Row, ...]:
    """Return one row per combination in `estimates`."""
    from scipy.special import ndtr, stdtr

    df = estimates.inference.df
    reach = quantile(level, df)
    values, errors = estimates.values, estimates.errors
    with np.errstate(divide="ignore", invalid="ignore"):
        z = values / errors
    p = 2.0 * (ndtr(-abs(z)) if df is None else stdtr(df, -abs(z)))
    numbers = np.column_stack(
        [values, errors, z, p, values - reach * errors, values + reach * errors, estimates.privacy_shares]
    )
    return tuple(
        Row(name, row[0], *(None if np.isnan(v) else v for v in row[1:]))
        for name, row in zip(estimates.names, numbers.tolist(), strict=True)
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
