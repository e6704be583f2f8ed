"""Evaluations: releases besides the model, made after the last step of training, such as measures on held-out records.

The solver's executor runs each evaluation's queries. The executor charges an evaluation before its release, logs it and can
resume it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vfl.base.holdout import Side
from vfl.base.losses import unit_deviance
from vfl.base.problem import INTERCEPT
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, PrivacyError, SpecificationError
from vfl.measures import estimates
from vfl.measures.confusion import FN, FP, TP, Confusion, cheapest, mean_loss, of_outcomes, width_of
from vfl.measures.estimates import ALL, Estimate, Findings, Histogram, score_of
from vfl.measures.exact import Unclamped, finer, measures
from vfl.privacy.calibration import noise_multiplier, split
from vfl.privacy.events import Gaussian
from vfl.queries import ExactTally, Forward, Tally
from vfl.queries.statistics import (
    GRID,
    ErrorSizes,
    LabelMean,
    LabelRate,
    Losses,
    Outcomes,
    Positives,
    Residuals,
    Scores,
    weight,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from vfl.base.problem import Block, Problem
    from vfl.base.types import Vector
    from vfl.measures.specification import Evaluation
    from vfl.privacy.events import Event
    from vfl.queries import Statistic
    from vfl.queries.protocol import Exchange

    Found = Mapping[str, Findings] | None

PUBLIC = "exact and uncharged: the held-out records were declared public"
EXACT = "exact and uncharged: NOT PRIVATE"
NOISED = "with noise, charged"
SHARES = {"cells": 0.4, "loss": 0.2, "scores": 0.4}
"""Shares of an evaluation's budget μ², with classes: for counts of outcomes, clamped losses, and histograms of scores."""
DECIDING = {"cells": 0.1, "loss": 0.2, "scores": 0.7}
"""Shares of μ² if decisions are measured at several thresholds. The measures of decisions then come from the histograms of
scores, which get the largest share.
"""
CUTS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Distances of thresholds from the centre, on both sides, in the unit of EDGES. With the centre and the best threshold of a
calibrated model there are 16 thresholds.
"""
OF_NUMBERS = {"mean": 0.1, "sizes": 0.1, "errors": 0.5, "constant": 0.3}
"""Shares of μ² without classes: for the labels' mean, counts of errors by their size, the model's errors, and the errors of
predicting this mean.
"""
EDGES = (0.125, 0.25, 0.5, 1.0, 2.0)
"""Distances of the edges of the scores' histogram from its centre, on both sides. The unit is the scores' spread for columns
that are uniform within their bounds. For eight models of breast cancer and adult, from nearly constant to nearly
unpenalised, these bins lowered the area under the curve by at most 0.014, and by 0.003 at the median.
"""
FINER = (1, 2, 4, 8, 16)
"""Possible numbers of parts into which each bin between two edges is divided; see `HeldOut._finer`."""
LOWERED = 0.009
"""Twice the amount by which undivided bins usually lower the area under the curve. With f parts per bin, divide by f²."""
FINE = 400
"""Number of edges of the scores' histogram for runs without noise."""
DEVIANCE_CAP = 8.0
"""Cap on a deviance if the label's bounds imply no cap. Under Gamma loss, labels of 0.007 and of 7 times the mean have
this deviance.
"""
LARGEST_MULTIPLIER = 2.0**26
"""Largest σ/Δ that exact sums can hold."""


class ReleasedEvaluation(ABC):
    """Base class of evaluations: releases besides the model. All fields of an evaluation are public."""

    __slots__ = ()
    name: ClassVar[str]
    side: ClassVar[Side] = Side.HELD_OUT
    """Records that the evaluation asks about: training or held out."""

    @property
    def _events(self) -> tuple[Gaussian | None, ...]:
        """The event of each release; None without noise."""
        return ()

    def releases(self) -> tuple[tuple[Event, int], ...]:
        """Return all events that the evaluation will charge, as (event, count)."""
        return tuple((event, 1) for event in self._events if event is not None)

    @abstractmethod
    def schedule(self, w: Vector, found: Found = None, gone: Collection[str] = ()) -> Exchange[Findings]:
        """Yield the queries and return the findings, which depend on released values alone. w : (p,) the released model.

        found : findings of earlier evaluations. gone : lost parties, which get no queries.
        """

    @abstractmethod
    def explain(self) -> str:
        """Return a sentence for the plan, with the expected noise."""

    @property
    @abstractmethod
    def queries(self) -> int:
        """Number of queries."""


def event_of(statistic: Statistic, mu: float | None) -> Gaussian | None:
    """Return the event of releasing a statistic as a μ-GDP vector; None without noise."""
    if mu is None:
        return None
    z = noise_multiplier(mu, 1)
    if not z <= LARGEST_MULTIPLIER:
        raise PrivacyError("epsilon is too small to measure anything: raise it, or leave the measures out")
    Δ = statistic.sensitivity
    return Gaussian(Adjacency.REPLACE_ONE, Δ, z * Δ, statistic.dimension)


def moved(problem: Problem, w: Vector) -> dict[str, tuple[Block, Vector]]:
    """Return {party: (its block, its coefficients)}. Parties with coefficients of 0, such as lost ones, are left out."""
    whole = {q: (block, w[block.coordinates]) for q, block in problem.layout.whole().items()}
    return {q: own for q, own in whole.items() if own[1].any()} or whole


def spread_of(problem: Problem, w: Vector) -> float:
    """Return the scores' standard deviation if all columns were uniform within their bounds; 1 if it is not finite."""
    kept = np.array([name != INTERCEPT for name in problem.layout.names])
    reach = np.where(np.isfinite(problem.reach), problem.reach, 1.0)
    spread = float(np.linalg.norm((w * reach)[kept])) / math.sqrt(3.0)
    return spread if math.isfinite(spread) and spread > 0 else 1.0


def label_mean(problem: Problem) -> LabelMean | LabelRate:
    """Return the statistic for the labels' mean within the declared bounds; with exposures, for the mean per exposure."""
    high, power = problem.label_low + problem.label_range, problem.loss.power
    if problem.exposure is None or power is None:
        return LabelMean(problem.label_low, high)
    return LabelRate(high, *problem.exposure, power)


def tally(statistic: Statistic, event: Gaussian | None, side: Side) -> Tally:
    """Return the query for a statistic, with the noise of an event; event None asks for no noise."""
    return ExactTally(statistic, None, side) if event is None else Tally(statistic, event, side)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut(ReleasedEvaluation):
    """Measures of the model on held-out records. Their releases are μ-GDP for each held-out record and use no other records.

    The coordinator sees the scores of these records, as in training, and releases only noisy sums
    (vfl.queries.statistics). With classes, the first release holds counts of outcomes and the sum of clamped losses; the
    second holds histograms of scores. The histograms are centred at the score that a calibrated logistic model has at the
    released base rate. The edges depend on released values only. Without classes, the first release is the mean of the labels
    within their declared bounds. The last holds the clamped errors of the model and of a constant model, which predicts the
    released mean, times the exposure of a record if there are exposures. For losses of counts and amounts, it also holds the
    clamped deviances of both models. A release in between counts the errors by their size; the caps follow from these counts
    unless the job declares them. Without bounds for the label there is neither a constant model nor a deviance.

    Decisions are measured at one threshold: the given one, or the one that costs least according to the released histograms. If
    the job names several thresholds, they are also measured at each of them.

    problem : problem of the training records. n_records : number of held-out records. mu : budget; None adds no noise.
    threshold : score of the threshold of a finished model, used as it is; None takes the threshold of `spec`.
    price : standard deviation of the noise of sums, divided by the charged one; above 1 on shares.
    """

    problem: Problem
    spec: Evaluation
    n_records: int
    mu: float | None
    threshold: float | None = None
    price: float = 1.0

    name: ClassVar[str] = "held out"

    @property
    def _fixed(self) -> float | None:
        """The score at which decisions are measured; None if the job asks to choose the threshold by its cost."""
        if self.threshold is not None:
            return self.threshold
        given = self.spec.thresholds
        if given is not None and len(given) == 1:
            return score_of(given[0], self.problem.loss)
        return 0.0 if self.spec.cost is None else None

    @property
    def _several(self) -> bool:
        """True if decisions are measured at several thresholds."""
        return self._fixed is None or (self.threshold is None and len(self.spec.thresholds or ()) > 1)

    def _cuts(self, spread: float, centre: float) -> Vector:
        """Return the scores of the thresholds (m,), ascending; they follow from public and released values."""
        if self.spec.thresholds is not None:
            return np.array([score_of(t, self.problem.loss) for t in self.spec.thresholds])
        if self.spec.cost is None:
            return np.zeros(0)
        cuts = np.array(CUTS)
        cost = self.spec.cost
        bayes = [math.log(cost["false_alarm"] / cost["missed"])] if self.problem.loss.log_odds else []
        return np.sort(np.concatenate([centre + spread * np.concatenate([-cuts, [0.0], cuts]), bayes]))

    @property
    def _added(self) -> int:
        """Number of edges that the thresholds add to the histograms."""
        cuts = len(self._cuts(1.0, 0.0))
        if self.spec.thresholds is not None or not cuts or self.mu is None:
            return cuts
        within = len(CUTS) * 2 + 1
        return cuts - within + (0 if self._finer > 1 else 2 * len(set(CUTS) - set(EDGES)))

    @property
    def _shares(self) -> tuple[float | None, ...]:
        if self.mu is None or not self._in_two:
            return self.mu, None, None
        if self.problem.loss.classification:
            return split(self.mu, self._parts["cells"] + self._parts["loss"])
        first, rest = split(self.mu, OF_NUMBERS["mean"])
        return first, *split(rest, OF_NUMBERS["sizes"] / (1.0 - OF_NUMBERS["mean"]))

    @property
    def _parts(self) -> dict[str, float]:
        return DECIDING if self._several else SHARES

    @property
    def _in_two(self) -> bool:
        """True if there are several releases, each of which depends on those before it."""
        return self.problem.loss.classification or math.isfinite(self.problem.label_range)

    @property
    def _first(self) -> Outcomes | LabelMean | LabelRate | Residuals:
        if not self.problem.loss.classification:
            return label_mean(self.problem) if self._in_two else self._errors(None)
        cells, loss = self._parts["cells"], self._parts["loss"]
        steps = (weight(cells / (cells + loss), 2.0), weight(loss / (cells + loss), 1.0))
        return Outcomes(self.problem.loss, self.loss_cap(), steps, self._fixed or 0.0)

    def _errors(self, constant: float | None, shares_of_caps: tuple[float, ...] = (1.0, 1.0)) -> Residuals:
        """Return the errors to sum. shares_of_caps : shares of the caps on errors and deviances that suffice (`ErrorSizes`)."""
        shares = [0.5] * 2
        if constant is not None:
            total = OF_NUMBERS["errors"] + OF_NUMBERS["constant"]
            shares = [OF_NUMBERS[part] / total / 2 for part in ("errors", "errors", "constant", "constant")]
        cap = None if constant is None else self.deviance_cap()
        if cap is not None:
            shares = [2.0 / 3.0 * share for share in (*shares[:2], shares[1], *shares[2:], shares[3])]
        steps = tuple(weight(share, 1.0) for share in shares)
        exposure = 0.0 if constant is None or self.problem.exposure is None else self.problem.exposure[1]
        cap = None if cap is None else cap * shares_of_caps[-1]
        return Residuals(self.problem.loss, self.error_cap() * shares_of_caps[0], steps, constant, cap, exposure)

    def _sizes(self, constant: float) -> ErrorSizes:
        low = self.problem.label_low
        return ErrorSizes(self._errors(constant), low, low + self.problem.label_range)

    def loss_cap(self) -> float:
        """Return the cap on a record's loss."""
        if self.spec.loss_cap is not None:
            return self.spec.loss_cap
        if self.problem.layout.classes:
            return 4.0 * math.log(self.problem.layout.width)
        return 4.0 * float(self.problem.loss.value(np.zeros(2), np.array([-1.0, 1.0])).max())

    def error_cap(self) -> float:
        """Return the cap on a record's error; raise SpecificationError if neither the job nor the label's bounds give a cap."""
        cap = self.spec.error_cap or self.problem.label_range
        if self.mu is None and not math.isfinite(cap):
            return 1.0  # a unit: nothing is clamped
        if not math.isfinite(cap):
            raise SpecificationError(
                "evaluation: errors are clamped to a public cap: declare bounds for the label, or give error_cap"
            )
        return cap

    def deviance_cap(self) -> float | None:
        """Return the cap on a record's deviance; None for a loss without deviances."""
        power = self.problem.loss.power
        if power is None or self.spec.deviance_cap is not None:
            return None if power is None else self.spec.deviance_cap
        low = max(self.problem.label_low, 0.0)
        ends = np.array([low, self.problem.label_low + self.problem.label_range])
        largest = float(unit_deviance(ends, np.full(2, ends.mean()), power).max())
        return largest if math.isfinite(largest) and largest > 0.0 else DEVIANCE_CAP

    @property
    def _first_event(self) -> Gaussian | None:
        return event_of(self._first, self._shares[0])

    def _scores(self, w: Vector, rate: float) -> Scores:
        """Return the histogram of scores. The edges follow from the released w and base rate, so they are public."""
        spread, f = spread_of(self.problem, w), self._finer
        centre = self._centre(rate)
        ends = np.array((0.0, *EDGES))
        outward = (ends[:-1, None] + np.diff(ends)[:, None] * np.arange(1, f + 1) / f).ravel()
        if self.mu is None:
            outward = np.geomspace(1e-3, 8.0, FINE // 2)
        edges, cuts = centre + spread * np.concatenate([-outward[::-1], [0.0], outward]), self._cuts(spread, centre)
        if len(cuts) > self._added:  # most cuts are edges already
            apart = np.array([abs(edges - cut).min() for cut in cuts])
            cuts = cuts[np.argsort(-apart)[: self._added]]
        return Scores(np.sort(np.concatenate([edges, cuts])))

    def _second_event(self) -> Gaussian | None:
        """Return the event of the second release, if there is one. Size and Δ of that release do not depend on the first."""
        if not self._in_two:
            return None
        if not self.problem.loss.classification:
            return event_of(self._errors(0.0), self._shares[-1])
        return self._event_of_scores(self._finer, self._added)

    def _event_of_scores(self, finer: int, added: int = 0) -> Gaussian | None:
        return event_of(Scores(np.arange(2.0 * finer * len(EDGES) + 1.0 + added)), self._shares[1])

    @property
    def _finer(self) -> int:
        """Number of parts into which each bin of the scores is divided; computed from public numbers alone.

        Few bins lower the area under the curve; many bins add noise. The choice minimises the sum of squares of both errors.
        The error from few bins counts twice, since no interval covers it.
        """
        if self.mu is None:
            return 1
        n = self.n_records

        def lost(f: int) -> float:
            event = self._event_of_scores(f)
            noise = estimates.area_noise(2 * (f * len(EDGES) + 1), n / 2, n / 2, event.sigma if event else 0.0)
            return math.hypot(LOWERED / f**2, noise)

        return min(FINER, key=lost)

    @property
    def _events(self) -> tuple[Gaussian | None, ...]:
        return self._first_event, *self._sizes_event, self._second_event()

    @property
    def _sizes_event(self) -> tuple[Gaussian, ...]:
        """The event of counting errors by their size; () for runs that do not."""
        counts = self._in_two and not self.problem.loss.classification
        event = event_of(self._sizes(0.0), self._shares[1]) if counts else None
        return () if event is None else (event,)

    def schedule(self, w: Vector, found: Found = None, gone: Collection[str] = ()) -> Exchange[Findings]:
        """Query the scores, which stay at the coordinator; then query the sums."""
        yield Forward(moved(self.problem, w), side=Side.HELD_OUT)
        measured: dict[str, Estimate] = {}
        note = NOISED if self.mu is not None else PUBLIC if self.problem.private else EXACT
        fixed = {ALL: self._fixed} if self._fixed is not None and (self.spec.decides or self._fixed) else None
        further: dict[str, Any] = {"thresholds": fixed}
        try:
            yield from self._measure(w, measured, further)
        except BudgetExceeded:  # a resumed run has also paid for lost releases, and keeps the measures released so far
            cut_off = f"{note}; a run that was cut off had paid for the rest"
            return Findings(measured, self.n_records, cut_off, thresholds=fixed)
        note += (self._clamped if self.mu is not None else "") + further.pop("remark", "")
        drowned = [name for name in self._measures if name not in measured]
        if drowned:
            note += f"; left out, since noise dominates them: {', '.join(drowned)}"
        if self.mu is not None and (drowned or any(e.too_noisy for e in measured.values())):
            caps = "" if self.problem.loss.classification else ", narrower bounds of the label or a lower error_cap"
            note += f"; more held-out records, a larger ε{caps} would show more"
        if chosen := further.get("selected"):
            note += (
                f"; the threshold has the smallest cost of {chosen}, by the same noisy counts; its intervals hold for "
                "all of them at once"
            )
        return Findings(measured, self.n_records, note, **further)

    @property
    def _measures(self) -> tuple[str, ...]:
        if self.problem.loss.classification:
            decided = ("precision", "flagged") if self.spec.decides else ()
            cost = () if self.spec.cost is None else ("cost",)
            rates = ("accuracy", "tpr", "fpr", "precision", "flagged")
            at = (f"{name} at {t:g}" for t in self._asked for name in rates)
            return ("accuracy", "tpr", "fpr", *decided, *cost, "loss", "auc", *at)
        if not self._in_two:
            return ("mae", "rmse")
        return ("mae", "rmse", "r2") if self.deviance_cap() is None else ("mae", "rmse", "r2", "deviance", "d2")

    @property
    def _asked(self) -> tuple[float, ...]:
        """The thresholds at each of which decisions are measured, as the job states them; () if it names one at most."""
        given = tuple(self.spec.thresholds or ())
        return given if self.threshold is None and len(given) > 1 else ()

    @property
    def _clamped(self) -> str:
        """The bounds to which labels are clamped, in words; '' for labels that are not."""
        if self.problem.loss.classification or not self._in_two:
            return ""
        low = self.problem.label_low
        high = low + self.problem.label_range
        return f"; labels are clamped to [{low:.4g}, {high:.4g}] first, and at_bounds is their share at an end"

    def _measure(self, w: Vector, found: dict[str, Estimate], further: dict[str, Any]) -> Exchange[None]:
        """Query the sums. Fill `found` with measures, and `further` with other fields of the findings, both in place."""
        first, event = self._first, self._first_event
        if event is None and isinstance(first, Residuals):
            found |= yield from self._exact(None)
            return
        released, sigma = yield from self._tallied(first, event)
        if isinstance(first, Residuals):
            found |= estimates.residuals(released, first, self.n_records, sigma)
            return
        event = self._second_event()
        if isinstance(first, LabelMean | LabelRate):
            constant, apart, exposures = first.constant(released, self.n_records, estimates.WIDTH * sigma)
            if event is None:
                found |= yield from self._exact(constant)
                return
            caps, known, found["at_bounds"] = yield from self._sized(constant)
            errors = self._errors(constant, caps)
            (released,) = yield tally(errors, event, Side.HELD_OUT)
            found |= estimates.residuals(released, errors, self.n_records, event.sigma, apart, exposures, known)
            return
        confusion = of_outcomes(released, first, self.n_records, sigma)
        self._decide(found, confusion)
        positives, noise = float(confusion.possible[[FN, TP]].sum()), confusion.sigma
        base = estimates.constant_loss(first, positives / self.n_records)
        found["loss"] = mean_loss(released, first, self.n_records, sigma, base)
        rate = estimates.base_rate(positives, self.n_records)
        edges, released, sigma = yield from self._histogram(w, rate, event)
        if event is None:
            (exact,) = (yield from self._exact(None)).values()
            share = positives / self.n_records
            found["loss"] = replace(exact, baseline=estimates.constant_loss(replace(first, cap=math.inf), share))
            fine = Scores(finer(edges, released.reshape(2, -1).sum(axis=0)))
            (counts,) = yield tally(fine, None, Side.HELD_OUT)
            found |= estimates.scores(counts, self.n_records, 0.0, positives, 0.0)
        else:
            found |= estimates.scores(released, self.n_records, sigma, positives, noise)
        histogram = Histogram.of(edges, released, sigma, logistic=self.problem.loss.log_odds)
        (edge,) = histogram.nearest([first.threshold])
        other = Confusion.at(histogram, edge, self.n_records).raw
        self._decide(found, confusion, float(other[FN] + other[TP]), float(other[FP] + other[TP]))
        further |= {"histogram": histogram, "confusion": confusion.cells()}
        for t in self._asked:
            (edge,) = histogram.nearest([score_of(t, self.problem.loss)])
            at = Confusion.at(histogram, edge, self.n_records).measures(positives)
            found |= {f"{name} at {t:g}": own for name, own in at.items()}
        if self._fixed is None and self.spec.cost is not None:
            cuts = histogram.nearest(self._cuts(spread_of(self.problem, w), self._centre(rate)))
            edge = cheapest(histogram, cuts, self.spec.cost, self.n_records)
            confusion = Confusion.at(histogram, edge, self.n_records, width_of(len(cuts)))
            self._decide(found, confusion, positives)
            further |= {
                "thresholds": {ALL: histogram.edges[edge]},
                "confusion": confusion.cells(),
                "selected": len(cuts),
            }

    def _tallied(self, first: Any, event: Gaussian | None) -> Exchange[tuple[Vector, float]]:
        """Query the first statistic; return it, and the standard deviation of its noise."""
        (released,) = yield tally(first, event, Side.HELD_OUT)
        return released, event.sigma if event is not None else 0.0

    def _histogram(self, w: Vector, rate: float, event: Gaussian | None) -> Exchange[tuple[Vector, Vector, float]]:
        """Query the histograms of the scores; return edges, counts of both classes, and the noise of a count."""
        statistic = self._scores(w, rate)
        (released,) = yield tally(statistic, event, Side.HELD_OUT)
        return statistic.edges, released, event.sigma if event is not None else 0.0

    def _sized(self, constant: float) -> Exchange[tuple[tuple[float, ...], tuple[float, ...], Estimate]]:
        statistic, (event,) = self._sizes(constant), self._sizes_event
        (released,) = yield tally(statistic, event, Side.HELD_OUT)
        kept = self.spec.error_cap is not None, self.spec.deviance_cap is not None
        low_end = self.problem.loss.power is None or self.problem.label_low > 0.0
        return estimates.sizes_of(released, statistic, self.n_records, event.sigma, kept, low_end=low_end)

    def _decide(
        self,
        found: dict[str, Estimate],
        confusion: Confusion,
        positives: float | None = None,
        flagged: float | None = None,
    ) -> None:
        """Replace the measures of decisions, in place; see `Confusion.measures`."""
        for name in ("tpr", "fpr", "precision"):
            found.pop(name, None)
        own = confusion.measures(positives, flagged, self.spec.cost)
        found |= {name: e for name, e in own.items() if name in self._measures}

    def _centre(self, rate: float) -> float:
        """Return the score that a calibrated logistic model has at the released base rate; 0 for other losses."""
        return math.log(rate / (1.0 - rate)) if self.problem.loss.log_odds else 0.0

    def _exact(self, constant: float | None) -> Exchange[dict[str, Estimate]]:
        classes = self.problem.loss.classification
        cap = self.loss_cap() if classes else self.error_cap()
        exposed = constant is not None and self.problem.exposure is not None
        statistic = Unclamped(self.problem.loss, cap, constant, self.deviance_cap() or 1.0, exposed)
        (sums,) = yield tally(statistic, None, Side.HELD_OUT)
        return measures(sums, statistic, self.n_records)

    def explain(self) -> str:
        """Return a sentence for the plan: the measures, the number of records, and the expected noise."""
        about = f"{self.n_records} records held out"
        event, first, second = self._first_event, self._first, self._second_event()
        if event is None:
            return f"{about}, measured {PUBLIC if self.problem.private else EXACT}"
        if not isinstance(first, Outcomes):
            errors = self._errors(0.0 if self._in_two else None)
            noise = (second or event).sigma / (errors.steps[0] * GRID) / self.n_records * errors.cap
            most = "at most " * self._in_two
            said = f"{about}; noise of the mean absolute error {most}{noise:.2g}, errors cut at {most}{errors.cap:.4g}"
            if errors.deviance_cap is None:
                return said
            noise = (second or event).sigma / (errors.steps[2] * GRID) / self.n_records * errors.deviance_cap
            return f"{said}; noise of the mean deviance {most}{noise:.2g}, deviances cut at {most}{errors.deviance_cap:.4g}"
        a, b = (self.price * event.sigma / (step * GRID) / self.n_records for step in first.steps)
        half, tenth = (estimates.area_error(*self._binned, share) for share in (0.5, 0.1))
        return (
            f"{about}; noise of the accuracy {a:.2g}, of the loss {b * first.cap:.2g} (clamped at {first.cap:.3g}); standard "
            f"error of the AUC about {half:.2g} if half of the labels are positive, {tenth:.2g} if a tenth is"
        )

    @property
    def _binned(self) -> tuple[int, int, float]:
        """Number of bins of scores per class, number of records, and noise of a bin."""
        second = self._second_event()
        return 2 * (self._finer * len(EDGES) + 1) + self._added, self.n_records, second.sigma if second else 0.0

    @property
    def queries(self) -> int:
        """Return the number of queries: scores and releases; without noise, also the queries for `_exact` and `finer`."""
        if self.mu is None and self.problem.loss.classification:
            return 5
        return 3 + len(self._sizes_event) if self._in_two else 2


@dataclass(frozen=True, slots=True, eq=False)
class ClassBalance(ReleasedEvaluation):
    """Number of positive labels among the training records: a count of sensitivity 1, released with μ-GDP.

    n_records : number of training records. mu : budget, a share of the training's; None counts without noise.
    """

    n_records: int
    mu: float | None

    name: ClassVar[str] = "class balance"
    queries: ClassVar[int] = 1
    side: ClassVar[Side] = Side.TRAINING

    @property
    def _events(self) -> tuple[Gaussian | None]:
        return (event_of(Positives(), self.mu),)

    def schedule(self, w: Vector, found: Found = None, gone: Collection[str] = ()) -> Exchange[Findings]:
        """Query the count."""
        (event,) = self._events
        note = NOISED if event is not None else EXACT
        try:
            ((count,),) = yield tally(Positives(), event, self.side)
        except BudgetExceeded:
            return Findings({}, self.n_records, f"{note}; a run that was cut off had paid for it")
        noise = event.sigma / self.n_records if event is not None else 0.0
        share = estimates.bounded_mean(float(count) / self.n_records, noise, self.n_records)
        return Findings({"positive": share}, self.n_records, note)

    def explain(self) -> str:
        """Return a sentence for the plan on the expected noise."""
        (event,) = self._events
        noise = "none" if event is None else f"{event.sigma / self.n_records:.2g}"
        return f"share of positive labels; noise {noise}"


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis(ReleasedEvaluation):
    """Objective F(w) at the end of training, without noise or charge. NOT PRIVATE, so only on request."""

    problem: Problem

    name: ClassVar[str] = "diagnostics"
    queries: ClassVar[int] = 2  # scores and loss
    side: ClassVar[Side] = Side.TRAINING

    def schedule(self, w: Vector, found: Found = None, gone: Collection[str] = ()) -> Exchange[Findings]:
        """Query Xw at the final w, then the mean loss."""
        problem = self.problem
        yield Forward(moved(problem, w), into="reset")
        ((total,),) = yield ExactTally(Losses(problem.loss), None)
        loss = float(total) / problem.n_records
        measured = {"loss": Estimate(loss, 0.0), "objective": Estimate(loss + problem.penalty_of(w), 0.0)}
        return Findings(measured, problem.n_records, EXACT)

    def explain(self) -> str:
        """Return a sentence for the plan."""
        return f"the objective at the end, {EXACT}"
