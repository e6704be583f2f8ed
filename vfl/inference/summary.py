"""Table of coefficients with standard errors, in the layout of statistics packages."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl import markup
from vfl.arguments import package, require_number
from vfl.errors import SpecificationError
from vfl.inference.hypothesis import shown_p

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.inference.estimates import Estimates

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
SELECTED = (
    "selection is not accounted for: intervals and p-values are too optimistic if tuning, or a look at several fits of these "
    "records, chose this model"
)
CONSERVATIVE = "conservative: few records for this ε, so the intervals are expected to be wider than their level needs"
ROBUST = (
    "without privacy: standard errors are robust against a wrong model (the sandwich HC0); the noise of privacy is 0"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One coefficient in original units.

    name : name of the coefficient, or an expression in several coefficients, in the syntax of `Result.test`.
    z : ratio of coefficient to standard error. The ratio is normal or Student's t (`Summary.df`).
    privacy : share of the variance that is due to the noise of privacy; the rest is due to sampling. None if not known.
    """

    name: str
    coefficient: float
    standard_error: float
    z: float
    p_value: float
    low: float
    high: float
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
    ends = f"{row.low:.4g}", f"{row.high:.4g}"
    return (
        f"{row.coefficient:.4g}",
        f"{row.standard_error:.3g}",
        f"{row.z:.2f}",
        shown_p(row.p_value),
        *ends,
        "–" if row.privacy is None else f"{row.privacy:.0%}",
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
    numbers = np.column_stack([values, errors, z, p, values - reach * errors, values + reach * errors]).tolist()
    shares = (None if np.isnan(share) else float(share) for share in estimates.privacy_shares)
    return tuple(
        Row(name, b, se, t, tail, low, high, share)
        for name, (b, se, t, tail, low, high), share in zip(estimates.names, numbers, shares, strict=True)
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
