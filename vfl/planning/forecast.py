"""Forecast of the quality of a model, from public facts and declared guesses, before any budget is spent.

`vfl.planning.quality` has the formulas, which hold for logistic loss and coordinate descent alone: of other losses no range was
found that holds nine of ten runs on all kinds of columns, and other solvers were not measured (docs/studies/forecast.md). If
the guesses are right and bounds are at most ten times too wide, nine of ten runs lie in the forecast range.

Widths of intervals: for uncorrelated columns of standard deviation 1, the variance of a coefficient is the sum of

    sampling φ/(n h̄)        noise (2 z C)²/(n h̄)²/T

h̄ is the mean curvature at the margins of the guessed signal, φ the residuals' variance divided by h̄, C the cap, z the noise
multiplier, and T the number of passes over which the run averages. Correlated columns have wider intervals, above all with
much noise. A mean over m subsamples has 1/m of the variance of one subsample, and a quantile of Student's t replaces the
normal quantile. The noise in the released matrices H and J also widens intervals: simulated releases, from a public seed,
pass through the estimator that a run uses (vfl.measures.covariance).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base import markup
from vfl.base.arguments import require_number
from vfl.errors import SpecificationError
from vfl.measures.covariance import Noisy
from vfl.measures.inference import quantile
from vfl.planning.public_problem import problem_of
from vfl.planning.quality import Facts, Range, margins_of, ranges
from vfl.planning.quality import missed as missed_of
from vfl.solvers.blocks.shares import Budget
from vfl.solvers.releases import products
from vfl.solvers.releases.curvature import Curvature
from vfl.solvers.releases.once import Phase
from vfl.solvers.rules import record_defaults
from vfl.solvers.rules.defaults import typical_spread

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.job import Job

NORMAL = 1.959963984540054
CORRELATED = 0.5
"""Correlation of neighbouring columns that is assumed for the wider of the two expected widths."""
REPEATS, ENTRIES = 8, 400
"""Largest number of simulated releases of H and J. For p columns, 1 + ENTRIES // p are enough: each has p diagonal entries."""


@dataclass(frozen=True, slots=True)
class Width:
    """Expected half-width of the 95 % interval of a coefficient, in units of 1/(standard deviation of its column).

    half : half-width for uncorrelated columns, in log-odds, or in standard deviations of the label. correlated : half-width if
        neighbouring columns have correlation CORRELATED. over : `half` divided by the half-width without privacy.
    """

    half: float
    correlated: float
    over: float


def width_of(solver: Any, problem: Problem, signal: float, share: float | None) -> Width | None:
    """Return the expected width for a signal; None for a run without intervals, and for a loss without a rule.

    signal : AUC or R² of the best linear model. share : share of positive labels; None without classes.
    """
    if not problem.inferred or not (problem.loss.log_odds or problem.loss.quadratic):
        return None
    solver, n, L = solver.resolve(problem), problem.n_records, problem.loss.curvature
    walk = Budget(solver, problem).walk(Curvature.flat(problem))
    z, later = walk.multipliers[-1]
    averaged = max(1, min(later, walk.n_passes - record_defaults.early_passes(walk.n_passes)))
    clip = (solver.decided.record_clip or 0.0) * math.sqrt(problem.layout.n_coordinates * L)
    if share is None:
        clip, curvature, variance = clip / typical_spread(problem), 1.0, 1.0 - signal
    else:
        margins, weights = margins_of(signal, share)
        π = 1.0 / (1.0 + np.exp(-margins))
        curvature = variance = float(weights @ (π * (1.0 - π)))
    sampling = variance / (n * curvature**2)
    noise = (2.0 * z * clip / (n * curvature)) ** 2 / averaged
    m = problem.subsamples
    reach = quantile(0.95, None if m == 1 else m - 1)
    sigmas = (0.0, 0.0)
    if problem.inference is not None:
        cap = clip / math.sqrt(L)
        events = products.events_of(problem, Budget(solver, problem).spent(Phase.END))
        bounds = products.bounds_of(problem, cap, events[0])
        sigmas = (events[0].sigma * bounds[0] * L / n / curvature, events[1].sigma * bounds[1] * L / n / variance)

    def half(correlation: float) -> float:
        """Return the half-width for a typical column if neighbouring columns have this correlation."""
        rng, p = np.random.default_rng(0), problem.layout.n_coordinates
        found = []
        for _ in range(min(REPEATS, 1 + ENTRIES // p)):
            H, J = (_released(correlation, σ, p, rng) for σ in sigmas)
            inverse = np.linalg.inv(H.raised())
            total = sampling * (inverse @ J.near(H.raised(), H.size)[0] @ inverse) + noise * (inverse @ inverse)
            found.append(np.diag(total))
        return reach * math.sqrt(float(np.median(found)) / m)

    return Width(half(0.0), half(CORRELATED), half(0.0) * math.sqrt(m / sampling) / NORMAL)


def _released(correlation: float, sigma: float, p: int, rng: np.random.Generator) -> Noisy:
    """Simulate a noisy release of a correlation matrix.

    correlation : r, in the entries r^|i−j| of the matrix. sigma : σ of the noise.
    """
    whole = correlation ** abs(np.subtract.outer(np.arange(p), np.arange(p)))
    noise = np.tril(rng.normal(scale=sigma / math.sqrt(2.0), size=(p, p)))
    return Noisy(whole + (noise + noise.T) / np.where(np.eye(p), math.sqrt(2.0), 1.0), sigma)


SIGNALS = {"AUC": (0.65, 0.95), "R²": (0.1, 0.7)}
"""Default guesses of the AUC or R² that the best linear model reaches: a weak and a strong signal."""
ENOUGH = 0.1
"""Share of the explainable effect that a model may miss if a forecast calls the number of records enough."""
NOISE = 0.7
"""Share of the explainable effect above which a forecast calls the model noise: that share is expected to be missed.

Of 190 runs that were expected to miss more than this share, one in 14 missed less than half of the effect.
"""
MOST = 10**9
MEASURED = ("SkGD", "CD")
"""Solvers whose runs were compared with forecasts."""


@dataclass(frozen=True, slots=True, repr=False)
class Forecast:
    """Expected quality of a job's model, computed from public facts and guesses without reading data.

    The signal is the AUC or R² of the best linear model. A forecast has a weak and a strong guess of the signal.

    n_records : number of training records. epsilon : ε of the job; None without privacy.
    missed : shares of the explainable effect that SkGD is expected to miss, for the strong and the weak guess, and other
        solvers at least; () for a loss that has no forecast.
    needed : numbers of training records with which the model misses a tenth, for both guesses; None if no number is enough,
        () without measures.
    positives : guessed share of positive labels; None without classes. signal : (weak, strong) guess; None without a use.
    guessed : names of the guesses that the caller did not give.
    by_signal : {signal: {"auc" | "loss": range}}, the stronger guess first; {} for a loss or a solver that has no forecast.
    widths : {signal: width of intervals}; {} without intervals.
    """

    n_records: int
    epsilon: float | None
    missed: tuple[float, ...]
    needed: tuple[int | None, ...]
    positives: float | None
    signal: tuple[float, float] | None
    guessed: tuple[str, ...] = field(default=())
    by_signal: Mapping[float, Mapping[str, Range]] = field(default_factory=dict)
    widths: Mapping[float, Width] = field(default_factory=dict)

    @property
    def measures(self) -> dict[str, Range]:
        """{measure: range over both guesses of the signal}, with the best and constant values of the stronger one."""
        each = list(self.by_signal.values())
        return {
            name: replace(first, low=min(one[name].low for one in each), high=max(one[name].high for one in each))
            for name, first in (each[0].items() if each else ())
        }

    @property
    def noise(self) -> bool:
        """True if the model is expected to be mostly noise, even with the stronger signal."""
        return bool(self.missed) and self.missed[0] > NOISE

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the sentences of the forecast."""
        words = []
        if self.noise:
            of = "" if self.signal is None else f" for a signal of {self._kind} {self.signal[1]:.3g} or less"
            words.append(f"NOISE: {self._records} are too few {self._budget}{of}: the model would show next to nothing")
        elif self.missed and self.missed[1] > NOISE:
            words.append(f"a weak signal would be lost in noise with {self._records} {self._budget}")
        for signal, measures in self.by_signal.items():
            found = ", ".join(f"{said(name)} {range_}" for name, range_ in measures.items())
            words.append(f"{found}, if the best linear model has {self._kind} {signal:.3g}")
        if not self.measures:
            words.append("no quality is forecast for this loss and solver: hold records out to measure it")
        if self.widths:
            halves, wider, factors = zip(*map(astuple, self.widths.values()), strict=True)
            unit = "standard deviations of the label" if self.positives is None else "log-odds"
            words.append(
                f"95 % intervals: about ± {_ends(halves)} {unit} per standard deviation of an uncorrelated column, "
                f"{_ends(factors)} times as wide as without privacy; ± {_ends(wider)} if neighbouring columns correlate by "
                f"{CORRELATED:g}"
            )
        if not self.measures:
            return tuple(words)
        words.append("ranges hold nine of ten runs if bounds are at most ten times too wide")
        if self.positives is not None:
            words.append(f"a share {self.positives:.3g} of the labels is assumed to be positive")
        return (*words, self._needs)

    @property
    def _records(self) -> str:
        return f"{self.n_records:,} record{'s' if self.n_records != 1 else ''}"

    @property
    def _budget(self) -> str:
        return "without privacy" if self.epsilon is None else f"at ε = {self.epsilon:g}"

    @property
    def _kind(self) -> str:
        return said("r2" if self.positives is None else "auc")

    @property
    def _needs(self) -> str:
        strong, weak = (None if n is None else _rounded(n) for n in self.needed)
        if strong is None:
            return "no number of records is enough to learn nine tenths of the signal"
        if weak is None or weak == strong:
            return f"about {strong:,} records learn nine tenths of the signal {self._budget}"
        return f"about {strong:,} records learn nine tenths of a strong signal {self._budget}, {weak:,} of a weak one"

    def __str__(self) -> str:
        return "\n  ".join((f"forecast for {self._records} {self._budget}", *self.lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        title = f"Forecast for {self._records} {self._budget}"
        return markup.whole(markup.line(title, strong=True), *map(markup.line, self.lines))

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as plain values, for JSON."""
        return {
            "n_records": self.n_records,
            "epsilon": self.epsilon,
            "noise": self.noise,
            "measures": _plain(self.measures),
            "missed": list(self.missed),
            "records_needed": list(self.needed),
            "positives": self.positives,
            "signal": None if self.signal is None else list(self.signal),
            "guessed": list(self.guessed),
            "widths": {str(signal): asdict(width) for signal, width in self.widths.items()},
            "by_signal": [{"signal": signal, "measures": _plain(found)} for signal, found in self.by_signal.items()],
        }


def _plain(measures: Mapping[str, Range]) -> dict[str, dict[str, float]]:
    return {name: asdict(one) for name, one in measures.items()}


def forecast(
    job: Job, n_records: int, *, positives: float | None = None, signal: float | tuple[float, float] | None = None
) -> Forecast:
    """Return the expected quality of a job's model, trained on n records. Reads no data and spends no budget.

    n_records : n, held-out records included.
    positives : guess of the share of positive labels; None is ½.
    signal : guess of the AUC (classes) that the best linear model reaches without noise on these columns; for numbers of R²,
        which gives the widths of intervals alone. A pair is a weak and a strong guess. None is 0.65 to 0.95 for AUC, 0.1 to 0.7
        for R². Guess from public knowledge: a guess that was read from the records is not private.

    Raises SpecificationError for guesses that do not fit the loss.
    """
    problem = problem_of(job, n_records)
    share = _share(positives) if problem.loss.classification else None
    if positives is not None and share is None:
        name = problem.loss.name
        raise SpecificationError(
            f"positives is the share of positive labels, and {name} loss has no classes: leave positives out"
        )
    signals = _signals(problem.loss, signal)
    widths = {value: width for value in signals or () if (width := width_of(job.solver, problem, value, share))}
    forecasts = signals if problem.loss.log_odds and signals is not None and share is not None else ()
    ranged = forecasts if job.solver.name in MEASURED else ()
    if not forecasts and not widths:
        signals = None
    open_ = (("positives", share is not None and positives is None), ("signal", signal is None))
    guessed = tuple(guess for guess, left in open_ if left) if signals is not None else ()

    def missed(at: Problem) -> tuple[float, ...]:
        return tuple(missed_of(Facts.of(at), value, share or 0.5) for value in reversed(forecasts))

    whole = job.on_all_records()  # a split of many records takes long to count

    def needed(which: int) -> int | None:
        return _least(lambda n: missed(problem_of(whole, n))[which] <= ENOUGH)

    return Forecast(
        n_records=problem.n_records,
        epsilon=None if job.privacy is None else job.privacy.epsilon,
        missed=missed(problem),
        needed=tuple(map(needed, range(len(ranged)))),
        positives=share if signals is not None else None,
        signal=signals,
        guessed=guessed,
        by_signal={value: expected(job, n_records, value, share) for value in reversed(ranged)},
        widths=widths,
    )


def _ends(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def _share(positives: float | None) -> float:
    if positives is None:
        return 0.5
    require_number("positives", positives)
    if not 0.0 < positives < 1.0:
        raise SpecificationError(f"positives is a share between 0 and 1, not {positives!r}")
    return float(positives)


def _signals(loss: Loss, signal: float | tuple[float, float] | None) -> tuple[float, float] | None:
    """Return a weak and a strong signal; None for a loss that has no forecast."""
    measure = "AUC" if loss.log_odds else "R²" if loss.quadratic else None
    if measure is None:
        if signal is not None:
            raise SpecificationError(
                f"signal is the AUC or R² of the best model, and {loss.name} loss has no forecast: leave signal out"
            )
        return None
    values = SIGNALS[measure] if signal is None else tuple(signal) if isinstance(signal, Sequence) else (signal, signal)
    low = 0.5 if loss.log_odds else 0.0
    for value in values:
        require_number("signal", value)
    if len(values) != 2 or not low < values[0] <= values[1] < 1.0:
        raise SpecificationError(
            f"signal is the {measure} of the best model, above {low:g} and below 1, or a pair of a weak and a strong one, "
            f"not {signal!r}"
        )
    return float(values[0]), float(values[1])


def expected(job: Job, n_records: int, signal: float, positives: float | None) -> dict[str, Range]:
    """Return {measure: range} of a job at n records, for one guess of the signal; see `forecast`."""
    return ranges(Facts.of(problem_of(job, n_records)), signal, positives or 0.5)


def _least(enough: Any) -> int | None:
    """Return the smallest n for which `enough` is true, to within 5 %; None if `enough` is false even at n = MOST."""
    if not enough(MOST):
        return None
    low, high = 1, MOST
    while high > low + 1 and high > 1.05 * low:
        middle = math.isqrt(low * high) if high > 4 * low else (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _rounded(n: int) -> int:
    unit = int(10 ** max(0, len(str(n)) - 2))
    return -(-n // unit) * unit


def said(name: str) -> str:
    """Return the display name of a measure."""
    return {"auc": "AUC", "r2": "R²"}.get(name, name)
