"""Comparisons: finished runs side by side, as text, plain values or one HTML page; and the page of `vfl monitor`.

Comparisons read only released values and public facts, so they cost no privacy. The page of `vfl monitor` shows the drift of
columns and score, and the calibration before and today.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.apps.report import charts
from vfl.apps.report.curves import calibration_chart
from vfl.apps.report.markup import Markup, element, join, page, remark, section, table
from vfl.apps.report.model import DRAWN, SAID, overlay
from vfl.base.losses import loss_of
from vfl.base.writing import write_whole
from vfl.errors import SpecificationError
from vfl.launch.run.effects import DOT_NOTE, Effect, effects_of
from vfl.launch.run.folder import check_finished
from vfl.launch.run.result import Result
from vfl.launch.run.verification import verify_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.apps.monitor import Drift, DriftReport, NoisyCounts
    from vfl.measures import Estimate


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of a comparison.

    name : name of the run's folder. holds : True if the run's certificate holds. facts : settings and guarantee.
    measures : {name: measure} of all findings. effects : curves of the model's columns.
    """

    name: str
    holds: bool
    facts: dict[str, Any]
    measures: dict[str, Estimate]
    effects: tuple[Effect, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "run": self.name,
            "certificate_holds": self.holds,
            **self.facts,
            "measures": {
                name: ({} if e.too_noisy else {"value": e.value, "error": e.error})
                | {"interval": list(e.interval)}
                | ({} if e.baseline is None else {"baseline": e.baseline})
                for name, e in self.measures.items()
            },
        }


def compared(run: str | Path) -> ComparedRun:
    """Read one finished run from its folder. Raises OutputError for any other folder."""
    run = Path(run)
    check_finished(run)
    report, result = verify_run(run), Result.load(run)
    certificate, job = report.certificate, result.job
    held = 0 if job.split is None else job.split.sizes(certificate.n_records)[1]
    options: Any = job.solver
    changed = [f.name for f in fields(options) if getattr(options, f.name) != getattr(type(options)(), f.name)]
    epsilon, delta = certificate.guaranteed
    facts = {
        "job": job.name,
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": delta,
        "private": certificate.private,
        "loss": loss_of(job.loss).name,
        "solver": job.solver.name,
        "solver_options": ", ".join(f"{name} = {getattr(job.solver, name)}" for name in changed) or "defaults",
        "penalty": job.penalty.describe(),
        "n_trained": certificate.n_records - held,
        "n_held_out": held,
        "features": len(result.feature_names),
        "dataset": certificate.dataset,
        "model": certificate.model_digest,
    }
    measures = {
        name if len(result.findings) == 1 or kind == "held out" else f"{kind}: {name}": e
        for kind, findings in result.findings.items()
        for name, e in findings.named.items()
    }
    return ComparedRun(run.name or str(run), report.ok, facts, measures, tuple(effects_of(result)))


def compare(runs: Sequence[str | Path]) -> tuple[ComparedRun, ...]:
    """Read the runs to compare, at least two. Raises SpecificationError for fewer, OutputError for other folders."""
    if len(runs) < 2:
        raise SpecificationError("a comparison needs two runs or more: vfl show RUN RUN")
    return tuple(compared(run) for run in runs)


def rows_of(runs: Sequence[ComparedRun]) -> list[tuple[str, ...]]:
    """Return the table: one row per measure, then one per setting. Each row has a name, then one cell per run."""
    names = list(dict.fromkeys(name for run in runs for name in run.measures))
    rows = [("certificate", *("holds" if run.holds else "DOES NOT HOLD" for run in runs))]
    rows += [(name, *(str(run.measures.get(name, "")) for run in runs)) for name in names]
    for fact in runs[0].facts:
        cells = [_plain(run.facts[fact]) for run in runs]
        shown = [f"{digest[:16]}…" for digest in cells] if fact == "model" else cells  # JSON has all digits
        rows.append((fact.replace("_", " "), *shown))
    return rows


def notes_of(runs: Sequence[ComparedRun]) -> list[str]:
    """Return one sentence per measure in which another run differs from the first by more than both intervals explain.

    The runs count as independent. Then the squared half-width of the difference's interval is the sum of the squared
    half-widths of the two sides that face each other, also for intervals that are not symmetric (Zou & Donner 2008).
    """
    first, said = runs[0], []
    for name, own in first.measures.items():
        for other in runs[1:]:
            against = other.measures.get(name)
            if against is None or own.too_noisy or against.too_noisy:
                continue
            less, more = sorted((own, against), key=lambda e: e.value)
            away = more.value - less.value
            if away > math.hypot(more.value - more.interval[0], less.interval[1] - less.value):
                said.append(
                    f"{name}: {other.name} differs from {first.name} by {away:.3g}, more than both intervals explain"
                )
    if not said and not any(name in other.measures for other in runs[1:] for name in first.measures):
        said = [f"{first.name} shares no measure with another run, so none can be compared"]
    return said or ["no measure differs from the first run's by more than both intervals explain"]


def as_text(runs: Sequence[ComparedRun]) -> str:
    """Return the comparison as aligned columns."""
    rows = [("", *(run.name for run in runs)), *rows_of(runs)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join((*lines, "", *notes_of(runs)))


def write_comparison(runs: Sequence[ComparedRun], path: Path) -> Path:
    """Write the comparison as one HTML page that loads no other file; return its path."""
    if path.suffix != ".html":
        raise SpecificationError(f"a comparison is written to a file that ends in .html, not {path.suffix!r}")
    text = page(
        "Comparison of vfl runs",
        element("h1", "Comparison of runs"),
        section("Side by side", table(("", *(run.name for run in runs)), rows_of(runs))),
        section("Differences", *(element("p", note) for note in notes_of(runs))),
        _overlaid(runs),
        element(
            "footer",
            element("p", "Computed from released values and public facts. Intervals of 95 % cover noise and sampling."),
        ),
    )
    write_whole(path, text)
    return path


def _overlaid(runs: Sequence[ComparedRun]) -> Markup | None:
    """Return one chart per column that overlays the curves of several runs; None if no column has several curves."""
    drawn = []
    for first in runs[0].effects:
        same = [
            (k, own)
            for k, run in enumerate(runs)
            for own in run.effects
            if own.column == first.column and (own.x == first.x if isinstance(first.x, tuple) else own.numeric)
        ]
        if len(same) > 1:
            numbers, found = zip(*same, strict=True)
            drawn.append(overlay(found, numbers, [runs[k].name for k in numbers]))
    if not drawn:
        return None
    key = charts.parties_key([run.name for run in runs])
    dotted = any(effect.dotted for run in runs for effect in run.effects)
    return section("Curves", element("p", SAID), key, *drawn[:DRAWN], remark(DOT_NOTE) if dotted else None)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


ABOUT = (
    "The population stability index is Σ (p − q)·ln(p/q) over the bins of a column, with shares p today and q before. Its "
    "floor is the mean index that noise and sampling alone give without drift, and its limit exceeded in one of 1,000 stable "
    "columns at most."
)


def drift_page(monitored: DriftReport, threshold: float, title: str, days: Mapping[str, DriftReport]) -> str:
    """Return the page. threshold : index above which a column counts as drifted. days : all comparisons so far, by time."""

    def bins(one: Drift) -> Markup:
        rows = [(name, *one.shown(name)) for name in one.bins]
        most = [max(own) for own in zip(*one.noise.values(), strict=True)]
        noise = f"Shares carry noise of a standard deviation of up to {most[0]:.1%} before and {most[1]:.1%} today."
        shown = table(("bin", "share before", "share today"), rows, numbers=(1, 2))
        return section(one.name, shown, remark(noise) if any(most) else None)

    def cost(name: str, own: NoisyCounts) -> Markup:
        guarantee = f"ε = {own.epsilon:.3g}, δ = {own.delta:.2g}; " if own.epsilon < float("inf") else ""
        return element("p", f"{name}: {own.n_records:,} records; {guarantee}{own.scope}.")

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
        *(bins(one) for one in monitored.drifts if one.name in exceeding),
        _history(monitored, threshold, days) if len(days) > 1 else None,
        _calibration(
            {"before": monitored.before} | ({k: one.now for k, one in days.items()} or {"today": monitored.now})
        ),
        section("Cost", *(cost(name, own) for name, own in (("Before", monitored.before), ("Today", monitored.now)))),
    )


def _history(monitored: DriftReport, threshold: float, days: Mapping[str, DriftReport]) -> Markup:
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


def _calibration(counted: Mapping[str, NoisyCounts]) -> Markup | None:
    drawn = []
    for name, own in counted.items():
        chart = None if own.scores is None else calibration_chart(own.scores, own.n_records)
        if chart is not None:
            drawn += [element("h3", name), chart]
    return section("Calibration over time", join(*drawn)) if drawn else None
