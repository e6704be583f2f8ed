"""Comparison of finished runs: measures, guarantee and settings side by side, as text, plain values or one HTML page.

The comparison reads only the runs' folders, which hold released values and public facts, so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import SpecificationError
from vfl.launch.run.effects import DOT_NOTE, Effect, effects_of
from vfl.launch.run.folder import check_finished
from vfl.launch.run.result import Result
from vfl.launch.run.verification import verify_run
from vfl.losses import loss_of
from vfl.report import charts
from vfl.report.effects import DRAWN, SAID, overlay
from vfl.report.markup import Markup, element, page, remark, section, table
from vfl.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.evaluation import Estimate


@dataclass(frozen=True, slots=True)
class Compared:
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
                name: {"value": e.value, "error": e.error, "interval": list(e.interval)}
                | ({} if e.baseline is None else {"baseline": e.baseline})
                for name, e in self.measures.items()
            },
        }


def compared(run: str | Path) -> Compared:
    """Read one finished run from its folder. Raises OutputError for any other folder."""
    run = Path(run)
    check_finished(run)
    report, result = verify_run(run), Result.load(run)
    certificate, job = report.certificate, result.job
    held = 0 if job.split is None else job.split.sizes(certificate.n_records)[1]
    facts = {
        "job": job.name,
        "epsilon": certificate.epsilon if math.isfinite(certificate.epsilon) else None,
        "delta": certificate.delta,
        "private": certificate.private,
        "loss": loss_of(job.loss).name,
        "solver": job.solver.name,
        "solver_options": _changed(job.solver),
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
        for name, e in findings.measures.items()
    }
    return Compared(run.name or str(run), report.ok, facts, measures, tuple(effects_of(result)))


def compare(runs: Sequence[str | Path]) -> tuple[Compared, ...]:
    """Read the runs to compare, at least two. Raises SpecificationError for fewer, OutputError for other folders."""
    if len(runs) < 2:
        raise SpecificationError("a comparison needs two runs or more: vfl compare RUN RUN")
    return tuple(compared(run) for run in runs)


def rows_of(runs: Sequence[Compared]) -> list[tuple[str, ...]]:
    """Return the table: one row per measure, then one per setting. Each row has a name, then one cell per run."""
    names = list(dict.fromkeys(name for run in runs for name in run.measures))
    rows = [("certificate", *("holds" if run.holds else "DOES NOT HOLD" for run in runs))]
    rows += [(name, *(str(run.measures.get(name, "")) for run in runs)) for name in names]
    for fact in runs[0].facts:
        cells = [_plain(run.facts[fact]) for run in runs]
        shown = [f"{digest[:16]}…" for digest in cells] if fact == "model" else cells  # JSON has all digits
        rows.append((fact.replace("_", " "), *shown))
    return rows


def notes_of(runs: Sequence[Compared]) -> list[str]:
    """Return one sentence per measure in which another run differs from the first by more than both intervals explain.

    The runs count as independent. Then the squared half-width of the difference's interval is the sum of the squared
    half-widths of the two sides that face each other, also for intervals that are not symmetric (Zou & Donner 2008).
    """
    first, said = runs[0], []
    for name, own in first.measures.items():
        for other in runs[1:]:
            against = other.measures.get(name)
            if against is None:
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


def as_text(runs: Sequence[Compared]) -> str:
    """Return the comparison as aligned columns."""
    rows = [("", *(run.name for run in runs)), *rows_of(runs)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join((*lines, "", *notes_of(runs)))


def write_comparison(runs: Sequence[Compared], path: Path) -> Path:
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


def _overlaid(runs: Sequence[Compared]) -> Markup | None:
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


def _changed(solver: Any) -> str:
    default = type(solver)()
    changed = [f.name for f in fields(solver) if getattr(solver, f.name) != getattr(default, f.name)]
    return ", ".join(f"{name} = {getattr(solver, name)}" for name in changed) or "defaults"


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
