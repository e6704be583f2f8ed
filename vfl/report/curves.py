"""Section on calibration and lift, computed from the released histograms of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.evaluation.curves import calibration, gains
from vfl.report import charts
from vfl.report.markup import Child, Markup, element, join, section, table

if TYPE_CHECKING:
    from vfl.evaluation.curves import Histogram
    from vfl.report.facts import Facts


SAME_COUNTS = (
    "From the same released counts as the area under the curve, so neither costs budget. Positives are spread evenly "
    "within a bin."
)


def curves(facts: Facts) -> Markup | None:
    """Return the section; None if the run measured no scores on held-out records."""
    found = facts.findings
    histogram = found["held out"].histogram if "held out" in found else None
    if histogram is None:
        return None
    drawn = [part for part in (calibration_chart(histogram), _lift(histogram)) if part is not None]
    if not drawn:
        said = "Noise hides every bin of the released histogram: hold out more records, or raise ε."
        return section("Calibration and lift", element("p", said, class_="note"))
    return section("Calibration and lift", *drawn)


def calibration_chart(histogram: Histogram) -> Markup | None:
    """Return the chart of observed shares against predicted ones, None if no bin can be shown."""
    bins = calibration(histogram)
    if not bins:
        return None
    points = [((b.low + b.high) / 2, b.share) for b in bins]
    # All bins of a rare class lie near 0, so the axes end near the last bin.
    top = min(1.0, 1.05 * max(max(x, y + 2 * b.error) for (x, y), b in zip(points, bins, strict=True)))
    lines = [
        charts.Curve("as stated", [(0.0, 0.0), (top, top)], None),
        charts.Curve("found", points, 0),
        *(
            charts.Curve("two standard errors", [(x, max(0.0, y - 2 * b.error)), (x, min(1.0, y + 2 * b.error))], 1)
            for (x, y), b in zip(points, bins, strict=True)
        ),
    ]
    x = charts.Axis("probability that the model states, middle of the bin", 0.0, top)
    y = charts.Axis("share of positives found", 0.0, top)
    agree = sum(b.agrees for b in bins)
    rows: list[tuple[Child, ...]] = [
        (
            f"{b.low:.3g} to {b.high:.3g}",
            f"{b.share:.3g}",
            f"± {b.error:.2g}",
            f"{b.records:,.0f}",
            "off" * (not b.agrees),
        )
        for b in bins
    ]
    return join(
        element("p", f"{agree} of {len(bins)} bins agree with the stated probabilities within two standard errors."),
        charts.both(lambda width: charts.curves(width, x, y, lines)),
        charts.key(("f0", "share found"), ("f1", "± two standard errors"), ("dashed", "perfect calibration")),
        table(("stated", "found", "std. error", "records, noisy", ""), rows, numbers=(1, 2, 3)),
    )


def _lift(histogram: Histogram) -> Markup | None:
    found = gains(histogram)
    if not found:
        return None
    rows: list[tuple[Child, ...]] = [
        (f"{g.top:.0%}", f"{g.captured:.0%}", f"± {g.error:.0%}", f"{g.lift:.2f}") for g in found
    ]
    line = charts.Curve("of this model", [(0.0, 0.0), *((g.top, g.captured) for g in found)], 0)
    chance = charts.Curve("of a random order", [(0.0, 0.0), (1.0, 1.0)], None)
    x, y = charts.Axis("records with the highest scores", 0.0, 1.0), charts.Axis("share of all positives", 0.0, 1.0)
    return join(
        element("h3", "Lift"),
        charts.both(lambda width: charts.curves(width, x, y, [chance, line])),
        table(("top", "holds of the positives", "std. error", "lift"), rows, numbers=(0, 1, 2, 3)),
        element("p", SAME_COUNTS, class_="note"),
    )
