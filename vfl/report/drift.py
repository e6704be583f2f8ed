"""Page of `vfl monitor`: drift of columns and score, and calibration before and today, from released counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.report import charts
from vfl.report.curves import calibration_chart
from vfl.report.markup import element, join, page, section, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.launch.monitor import Counted, Drift, Monitored
    from vfl.report.markup import Markup

ABOUT = (
    "The population stability index is Σ (p − q)·ln(p/q) over the bins of a column, with shares p today and q before. Its "
    "floor is the mean index that noise and sampling alone give without drift, and its limit exceeded in one of 1,000 stable "
    "columns at most."
)


def drift_page(monitored: Monitored, threshold: float, title: str, days: Mapping[str, Monitored]) -> str:
    """Return the page. threshold : index above which a column counts as drifted. days : all comparisons so far, by time."""
    exceeding = monitored.exceeding(threshold)
    rows = [
        (one.name, f"{one.index:.3g}", f"{one.floor:.2g}", f"{one.limit:.2g}", "drift" if one.name in exceeding else "")
        for one in monitored.drifts
    ]
    said = (
        f"Beyond the threshold of {threshold:g}: {', '.join(exceeding)}" if exceeding else f"None exceeds {threshold:g}"
    )
    unwatched = f" Without bins, and not watched: {', '.join(monitored.unwatched)}." if monitored.unwatched else ""
    bars = [
        charts.Row(one.name, one.index, f"{one.index:.3g}", band=charts.around(one.limit)) for one in monitored.drifts
    ]
    return page(
        title,
        element("h1", title),
        element("div", element("b", said), class_=f"verdict {'warn' if exceeding else 'good'}"),
        section(
            "Drift",
            element("p", f"{ABOUT}{unwatched}"),
            charts.both(lambda width: charts.rows(width, bars, "population stability index; grey: limit")),
            table(("column", "index", "floor", "limit", ""), rows, numbers=(1, 2, 3)),
        ),
        *(_bins(one) for one in monitored.drifts if one.name in exceeding),
        _history(monitored, threshold, days) if len(days) > 1 else None,
        _calibration(
            {"before": monitored.before} | ({k: one.now for k, one in days.items()} or {"today": monitored.now})
        ),
        section("Cost", *(_cost(name, own) for name, own in (("Before", monitored.before), ("Today", monitored.now)))),
    )


def _bins(one: Drift) -> Markup:
    rows = [(name, f"{max(before, 0.0):.1%}", f"{max(now, 0.0):.1%}") for name, (before, now) in one.bins.items()]
    return section(one.name, table(("bin", "share before", "share today"), rows, numbers=(1, 2)))


def _history(monitored: Monitored, threshold: float, days: Mapping[str, Monitored]) -> Markup:
    """Return a heat map of each column's population stability index over time. Twice the threshold is the darkest shade."""
    over = [{one.name: one.index for one in day.drifts} for day in days.values()]
    strips = [
        charts.Strip(one.name, [day[one.name] / (2.0 * threshold) for day in over], f"{one.index:.3g}")
        for one in monitored.drifts
    ]
    rows = [
        (name, *(f"{one.index:.3g}" for one in sorted(day.drifts, key=lambda one: one.name)))
        for name, day in days.items()
    ]
    columns = sorted(one.name for one in monitored.drifts)
    return section(
        "History",
        charts.both(lambda width: charts.heat(width, strips, f"index at {len(days)} times; dark: {2 * threshold:g}")),
        table(("time", *columns), rows, numbers=tuple(range(1, 1 + len(columns)))),
    )


def _calibration(counted: Mapping[str, Counted]) -> Markup | None:
    drawn = []
    for name, own in counted.items():
        chart = None if own.scores is None else calibration_chart(own.scores, own.n_records)
        if chart is not None:
            drawn += [element("h3", name), chart]
    return section("Calibration over time", join(*drawn)) if drawn else None


def _cost(name: str, own: Counted) -> Markup:
    guarantee = f"ε = {own.epsilon:.3g}, δ = {own.delta:.2g}; " if own.epsilon < float("inf") else ""
    return element("p", f"{name}: {own.n_records:,} records; {guarantee}{own.scope}.")
