"""Wald tests of linear hypotheses on coefficients, written as text or as weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from vfl.arguments import require_number
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from vfl.inference.estimates import Estimates

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

    Raises SpecificationError for unknown coefficients, for combinations that the records do not determine, and for hypotheses
    that repeat or contradict one another.
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
