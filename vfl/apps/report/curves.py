"""Sections on held-out records: decisions, curves of the scores, calibration and fairness, from released counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.apps.report import charts
from vfl.apps.report.markup import Markup, details, element, join, remark, section, table
from vfl.base.losses import loss_of
from vfl.measures.confusion import FN, FP, TN, TP, base_rate, calibration, points
from vfl.measures.confusion import NAMES as CELLS
from vfl.measures.distance import MEASURE, Distance
from vfl.measures.estimates import score_of
from vfl.measures.fairness import OF, GroupFairness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vfl.apps.report.facts import Facts
    from vfl.launch.run.result import Result
    from vfl.measures import Estimate, Findings
    from vfl.measures.confusion import Point
    from vfl.measures.estimates import Histogram

    Place = Callable[[Point], tuple[Estimate | None, Estimate | None]]

ROWS = 16
"""Largest number of thresholds in the table."""
BARS = 40
"""Largest number of points for which a chart draws the intervals of the points."""
INTERVALS = (
    "All are computed from the same released counts as the area under the curve, so none costs budget. Bars and brackets are "
    "intervals of 95 % for noise and sampling, each by itself."
)
DROWNED = "Noise hides every bin of the released histogram: hold out more records, or raise ε."


def above(result: Result) -> str:
    """Return the rule for predicting "positive", in words."""
    what = "a probability" if loss_of(result.job.loss).log_odds else "a score"
    return f"with {what} above {result.threshold:.4g}"


def curves(facts: Facts) -> Markup | None:
    """Return the sections on decisions and on score curves; None if the run measured no scores on held-out records."""
    found = facts.findings.get("held out")
    if found is None or found.histogram is None:
        return None
    histogram, n = found.histogram, found.n_records
    at = points(histogram, n)
    drawn = [
        _chart("ROC curve", at, lambda p: (p.fpr, p.tpr), ("false positive rate", "true positive rate"), _diagonal()),
        _chart(
            "Precision and recall",
            at,
            lambda p: (p.tpr, p.precision),
            ("recall (true positive rate)", "precision"),
            charts.Curve("share of positives", [(0.0, y := base_rate(histogram, n).value), (1.0, y)], None),
        ),
        calibration_chart(histogram, n),
        _chart(
            "Lift",
            at,
            lambda p: (p.flagged, p.tpr),
            ("records with the highest scores", "positives among them"),
            _diagonal(),
        ),
    ]
    shown = [part for part in drawn if part is not None]
    body = [*shown, remark(INTERVALS)] if shown else [remark(DROWNED)]
    return join(_decisions(facts, found), section("Curves", *body))


def _diagonal() -> charts.Curve:
    return charts.Curve("by chance", [(0.0, 0.0), (1.0, 1.0)], None)


def _decisions(facts: Facts, found: Findings) -> Markup | None:
    """Return the confusion matrix at the model's threshold and a table of the measures per threshold."""
    histogram, n = found.histogram, found.n_records
    if found.confusion is None or histogram is None:
        return None
    cells = [found.confusion[name] for name in CELLS]

    def said(e: Estimate) -> str:
        return f"{e.value:,.0f} {_ends(e, ',.0f')}"

    matrix = [("negative", said(cells[TN]), said(cells[FP])), ("positive", said(cells[FN]), said(cells[TP]))]
    how = (
        f"chosen by its cost among {found.selected} on these counts; the intervals of its measures hold for all of them at once"
        if found.selected
        else "fixed before these records were seen"
    )
    asked = facts.result.job.evaluation
    edges = [*range(len(histogram.edges))[:: -(-len(histogram.edges) // ROWS)]]
    if asked is not None and asked.thresholds is not None:
        loss = loss_of(facts.result.job.loss)
        edges = histogram.nearest([score_of(t, loss) for t in asked.thresholds])
    edges = sorted({*edges, *histogram.nearest([facts.result.score_at(None)])})
    rows = [
        (f"{p.threshold:.4g}", *(_cell(e) for e in (p.flagged, p.tpr, p.fpr, p.precision, p.lift)))
        for p in points(histogram, n, edges)
    ]
    return section(
        "Decisions",
        element("p", f"Records {above(facts.result)} are predicted positive. The threshold was {how}."),
        table((f"of {n:,} held-out records", "predicted negative", "predicted positive"), matrix, numbers=(1, 2)),
        element("h3", "At other thresholds"),
        table(
            ("threshold", "predicted positive", "tpr (recall)", "fpr", "precision", "lift"),
            rows,
            numbers=(0, 1, 2, 3, 4, 5),
        ),
    )


def _cell(e: Estimate | None) -> str:
    return "hidden by noise" if e is None else f"{e.value:.3g} {_ends(e, '.3g')}"


def _ends(e: Estimate, form: str) -> str:
    low, high = e.interval
    return "" if low == high else f"[{max(low, 0.0):{form}},\N{NO-BREAK SPACE}{high:{form}}]"


def _chart(
    heading: str, at: Sequence[Point], place: Place, names: tuple[str, str], reference: charts.Curve
) -> Markup | None:
    """Return a chart of one measure against another; None if noise hides every point."""
    found = [(x, y) for x, y in map(place, at) if x is not None and y is not None]
    if not found:
        return None
    lines = [reference]
    if len(found) <= BARS:
        for a, b in found:
            low, high = (min(max(end, 0.0), 1.0) for end in b.interval)
            lines.append(charts.Curve("interval of 95 %", [(a.value, low), (a.value, high)], 1))
    lines.append(charts.Curve("of this model", sorted((a.value, b.value) for a, b in found), 0))
    x, y = (charts.Axis(name, 0.0, 1.0) for name in names)
    return join(element("h3", heading), charts.both(lambda width: charts.curves(width, x, y, lines)))


def calibration_chart(histogram: Histogram, n_records: int) -> Markup | None:
    """Return the chart of observed shares against predicted ones; None if noise hides every bin."""
    bins = calibration(histogram, n_records)
    if not bins:
        return None
    middles = [((b.low + b.high) / 2, b) for b in bins]
    # For a rare class all bins lie near 0, so the axes end near the last bin.
    top = min(1.0, 1.05 * max(max(x, b.share.interval[1]) for x, b in middles))
    lines = [
        charts.Curve("as stated", [(0.0, 0.0), (top, top)], None),
        charts.Curve("found", [(x, b.share.value) for x, b in middles], 0),
        *(charts.Curve("interval of 95 %", [(x, end) for end in b.share.interval], 1) for x, b in middles),
    ]
    x = charts.Axis("probability that the model states, middle of the bin", 0.0, top)
    y = charts.Axis("share of positives found", 0.0, top)
    agree = sum(b.agrees for b in bins)
    rows = [(f"{b.low:.3g} to {b.high:.3g}", _cell(b.share), f"{b.records:,.0f}", "off" * (not b.agrees)) for b in bins]
    return join(
        element("h3", "Calibration"),
        element("p", f"The intervals of {agree} of {len(bins)} bins meet the stated probabilities."),
        charts.both(lambda width: charts.curves(width, x, y, lines)),
        charts.key(("f0", "share found"), ("f1", "interval of 95 %"), ("dashed", "perfect calibration")),
        table(("stated", "found", "records, noisy", ""), rows, numbers=(1, 2)),
    )


NAMES = (Distance.name, GroupFairness.name)
"""Names of the findings that only this section shows."""


def fairness(facts: Facts) -> Markup | None:
    """Return the section; None for a run that measured no fairness."""
    found = facts.findings
    told = found.get(GroupFairness.name)
    if told is None:
        return None
    spans = [
        charts.Row(name, e.value, _signed(e.value), e.interval, e.noiseless, k)
        for k, names in enumerate(_by_notion(told).values())
        for name in names
        for e in (told.measures[name],)
    ]
    bounded = any(span.band is not None for span in spans)
    rows = [
        (
            name,
            _signed(e.value) if OF in name else f"{e.value:.4g}",
            e.spread,
            *((_interval(e.noiseless), _interval(e.shift)) if bounded else ()),
        )
        for name, e in told.measures.items()
    ]
    thresholds = [(group, f"{at:.4g}") for group, at in (told.thresholds or {}).items()]
    head = ("measure", "value", "95 % interval", *(("model without noise", "its difference") if bounded else ()))
    key = [("f0", "gap of this model, with an interval of 95 %")]
    if bounded:
        key.append(("noisekey", "where the gap of the model without noise lies"))
    return section(
        "Fairness",
        element(
            "p",
            "The gap of a group is its share of records, for instance of positive records that are predicted positive, minus "
            "the same share of all records. At 0 the group is treated like all; above 0 it is favoured.",
        ),
        charts.both(lambda width: charts.rows(width, spans, "gap")) if spans else None,
        charts.key(*key) if spans else None,
        remark(f"{told.n_records:,} held-out records, {told.note}"),
        _distance(found.get(Distance.name)),
        table(("group", "threshold on the score"), thresholds, numbers=(1,)) if thresholds else None,
        details("All numbers", table(head, rows, numbers=(1, 2, 3, 4))) if rows else None,
    )


def _by_notion(told: Findings) -> dict[str, list[str]]:
    """Return {notion of fairness: names of its gaps}; each notion has one colour."""
    by: dict[str, list[str]] = {}
    for name in told.measures:
        notion, separator, _ = name.partition(OF)
        if separator:
            by.setdefault(notion, []).append(name)
    return by


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{_signed(ends[0])} to {_signed(ends[1])}"


def _distance(told: Findings | None) -> Markup | None:
    if told is None:
        return None
    if MEASURE not in told.measures:
        return remark(f"The distance to the model without noise is {told.note}.")
    d = told.measures[MEASURE].value
    said = (
        f"The coefficients are at most {d:.3g} from those of the model without noise, in Euclidean norm: {told.note}."
    )
    return remark(said)
