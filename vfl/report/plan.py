"""Plots of `vfl plan --plot`: expected quality, noise and cost against ε, computed from public facts alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.arguments import package
from vfl.certificate.issue import planned
from vfl.errors import OutputError, SpecificationError, VflError
from vfl.planning import plan as make_plan
from vfl.planning.forecast import Forecast, expected, forecast, said
from vfl.report import charts
from vfl.report.markup import Markup, element, join, page, remark, section, style, table
from vfl.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.planning.quality import Range

KINDS = (".html", ".svg", ".png")
DECADE = 8
"""Points per decade of ε, from a tenth of the job's ε to ten times that ε."""

FLAT = 1.1
"""A cost is drawn only if the largest cost is at least this many times the smallest."""
EPSILONS = [10.0 ** (k / 8) for k in range(-8, 9)]
RECORDS = [10.0 ** (k / 4) for k in range(-8, 9)]
"""Factors on n at which curves are computed; EPSILONS holds the factors on ε."""
SIGNALS = ("weak signal", "strong signal")


@dataclass(frozen=True, slots=True)
class Point:
    """Noise and cost of the planned job at one ε.

    noise_multiplier : σ/Δ of the most frequent release.
    sigma : σ/n, the noise in a coordinate of the mean gradient. For solvers that add noise to the model, σ of that noise.
    releases, round_trips, seconds : cost.
    """

    epsilon: float
    noise_multiplier: float
    sigma: float
    releases: int
    round_trips: int
    seconds: float


def points(plan: Plan) -> list[Point]:
    """Return noise and cost of the job at other values of ε, ascending. Values of ε at which planning fails are left out.

    Raises SpecificationError for a job without privacy.
    """
    privacy = plan.job.privacy
    if privacy is None:
        raise SpecificationError("a job without privacy has no noise to plot: give it a [privacy] table")
    found = []
    for k in range(-DECADE, DECADE + 1):
        epsilon = privacy.epsilon * 10.0 ** (k / DECADE)
        try:
            other = make_plan(replace(plan.job, privacy=replace(privacy, epsilon=epsilon)), plan.n_records)
        except VflError:
            continue
        noise, deviation = _noise(other)
        count = sum(count for _, count in other.releases)
        seconds = other.seconds if other.sharing is None else math.nan  # not predicted
        found.append(Point(epsilon, noise, deviation, count, other.round_trips, seconds))
    return found


def _noise(plan: Plan) -> tuple[float, float]:
    """Return σ/Δ and σ/n (σ for a sealed solver) of the most frequent noised release, or of the last such release."""
    releases = plan.solver.releases(plan.problem)
    noised = [(count, event) for event, count in reversed(releases) if hasattr(event, "sigma")]
    if not noised:
        raise SpecificationError(f"{plan.solver.name} adds no Gaussian noise to plot")
    event: Any = max(noised, key=lambda entry: entry[0])[1]
    sigma = float(event.sigma)
    return sigma / float(event.sensitivity), sigma if plan.solver.sealed else sigma / plan.problem.n_records


def panels(plan: Plan, drawn: Sequence[Point]) -> dict[str, str]:
    """Return {field of `Point`: name}: one drawing for the noise, and one for each cost that changes with ε."""
    deviation = "noise of a coefficient, σ" if plan.solver.sealed else "noise of a coordinate's mean gradient, σ/n"
    shown = {"noise_multiplier": "noise multiplier, σ/Δ", "sigma": deviation}
    for field, name in (("releases", "releases"), ("seconds", "expected time, s")):
        values = [getattr(point, field) for point in drawn]
        shown |= {field: name} if max(values) > FLAT * min(values) else {}
    return shown


def unit(plan: Plan) -> str:
    """Return the unit of σ, in words."""
    if plan.solver.sealed:
        return "σ is that of the published coefficients on the scaled features."
    if plan.solver.adaptive or plan.solver.by_pass:
        return "σ/n is in units of a release's sensitivity, which depends on earlier releases."
    return f"σ/n is in the unit of the clipped values: {planned(plan)['geometry']}."


def write_plan(
    plan: Plan, path: str | Path, *, positives: float | None = None, signal: float | tuple[float, float] | None = None
) -> Path:
    """Draw expected noise and cost against ε into an .html, .svg or .png file; return its path. No data are read.

    An .html page also shows the expected quality against ε and n. positives, signal : guesses, as for `vfl.forecast`.

    Raises SpecificationError for another file ending, for a job without privacy, and for .png without matplotlib; OutputError
    if the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in KINDS:
        raise SpecificationError(f"a plot is written to a file that ends in {', '.join(KINDS)}, not {path.suffix!r}")
    drawn = points(plan)
    if path.suffix == ".png":
        _draw_png(plan, drawn, path)
    else:
        quality = expectation(plan, positives=positives, signal=signal) if path.suffix == ".html" else None
        write_whole(path, html(plan, drawn, quality) if path.suffix == ".html" else svg(plan, drawn))
    return path


def _axes(field: str, name: str, drawn: Sequence[Point]) -> tuple[charts.Axis, charts.Axis, charts.Curve]:
    values = [(p.epsilon, float(getattr(p, field))) for p in drawn]
    low, high = min(v for _, v in values), max(v for _, v in values)
    log = low > 0 and high / low > 5
    y = charts.Axis(name, low * 0.8, high * 1.25, log=True) if log else charts.Axis(name, 0.0, high * 1.15)
    return charts.Axis("ε", drawn[0].epsilon, drawn[-1].epsilon, log=True), y, charts.Curve(name, values)


def _panel(width: int, plan: Plan, panel: tuple[str, str], drawn: Sequence[Point]) -> Markup:
    x, y, curve = _axes(*panel, drawn)
    marks = ((plan.job.privacy.epsilon, "this job"),) if plan.job.privacy is not None else ()
    return charts.panel(width, x, y, [curve], marks=marks, height=220)


def html(plan: Plan, drawn: Sequence[Point], quality: Markup | None = None) -> str:
    """Return the page. quality : section on the expected quality."""

    def chart(panel: tuple[str, str]) -> Markup:
        said = f"{panel[1]} against ε"
        return charts.both(lambda width: charts.svg(width, 220, said, _panel(width, plan, panel, drawn)))

    def cells(point: Point) -> tuple[str, ...]:
        seconds = "–" if math.isnan(point.seconds) else f"{point.seconds:.2g}"
        noise = (f"{point.epsilon:.3g}", f"{point.noise_multiplier:.4g}", f"{point.sigma:.3g}")
        return (*noise, f"{point.releases:,}", f"{point.round_trips:,}", seconds)

    own = plan.job.privacy.epsilon if plan.job.privacy is not None else None
    rows = [tuple(element("b", cell) if p.epsilon == own else cell for cell in cells(p)) for p in drawn]
    shown = list(panels(plan, drawn).items())
    return page(
        f"{plan.job.name}: plan of a vfl run",
        element("h1", plan.job.name),
        element(
            "p",
            f"Expected quality, noise and cost, before anything is spent: {plan.solver.name}, {_size(plan)}",
            class_="soft",
        ),
        quality,
        section(
            "Noise",
            element("p", "More privacy is a smaller ε, to the left, and more noise."),
            *map(chart, shown[:2]),
            remark(unit(plan)),
        ),
        section("Cost", element("p", _cost(plan, constant=len(shown) == 2)), *map(chart, shown[2:])),
        section(
            "Numbers",
            table(
                ("ε", "σ/Δ", "σ" if plan.solver.sealed else "σ/n", "releases", "round trips", "s"),
                rows,
                numbers=tuple(range(6)),
            ),
        ),
        section(
            "The plan of this job",
            *(element("p", element("code", line.strip())) for line in plan.explain().splitlines()),
        ),
        element(
            "footer", element("p", "Computed from public facts alone: no data were read, and no budget was spent.")
        ),
    )


def _cost(plan: Plan, *, constant: bool) -> str:
    releases = sum(count for _, count in plan.releases)
    time = f"about {plan.seconds:.2g} s" if plan.sharing is None else "of a time that is not predicted"
    own = f"{releases:,} releases in {plan.round_trips:,} round trips, {time}"
    if constant:
        return f"About the same at every ε: {own}."
    return f"At this job's ε: {own}. Open options of the job are resolved at every ε, so the cost changes with it."


def _size(plan: Plan) -> str:
    return f"n = {plan.problem.n_records:,}, p = {plan.problem.layout.n_coordinates:,}, δ = {plan.problem.delta:.3g}"


def svg(plan: Plan, drawn: Sequence[Point]) -> str:
    """Return the drawings below one another, as an SVG file."""
    width, height, top = charts.WIDE, 230, 44
    parts = [
        element("g", _panel(width, plan, panel, drawn), transform=f"translate(20 {top + k * height})")
        for k, panel in enumerate(panels(plan, drawn).items())
    ]
    title = f"{plan.job.name}: {plan.solver.name}, {_size(plan)}"
    tall = top + len(parts) * height
    whole = element(
        "svg",
        element("title", title),
        style(),
        element("rect", width=width + 40, height=tall, fill="var(--ground)"),
        charts.label(20, 24, title, class_=None),
        join(*parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width + 40} {tall}",
        width=width + 40,
        height=tall,
    )
    return f"{whole}\n"


def _draw_png(plan: Plan, drawn: Sequence[Point], path: Path) -> None:
    Figure = package("matplotlib.figure", "plot", "a .png plot, unlike .html and .svg,").Figure
    shown = panels(plan, drawn)
    lines = -(-len(shown) // 2)
    figure: Any = Figure(figsize=(9, 0.5 + 2.7 * lines), layout="constrained")
    epsilon = plan.job.privacy.epsilon if plan.job.privacy is not None else None
    for k, panel in enumerate(shown.items()):
        axes = figure.add_subplot(lines, 2, k + 1)
        x, y, curve = _axes(*panel, drawn)
        axes.plot(*zip(*curve.points, strict=True), marker=".")
        axes.set(xscale="log", yscale="log" if y.log else "linear", ylim=(y.low, y.high), xlabel=x.name)
        for axis, ticks in ((axes.xaxis, x.ticks(9)), (axes.yaxis, y.ticks(5))):
            axis.set_ticks(ticks, labels=[charts.short(value) for value in ticks])
            axis.set_ticks([], minor=True)
        axes.set_title(y.name, loc="left", fontsize="medium")
        axes.axvline(epsilon, linestyle="--", color="grey")
        axes.annotate(
            "this job", (epsilon, 1), (4, -11), xycoords=axes.get_xaxis_transform(), textcoords="offset points"
        )
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(f"{plan.job.name}: {plan.solver.name}, {_size(plan)}", parse_math=False)
    try:
        figure.savefig(path, dpi=144)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from error


def expectation(plan: Plan, *, positives: float | None, signal: float | tuple[float, float] | None) -> Markup | None:
    """Return the section on the expected quality against ε and against n; None for a loss that has no forecast."""
    found = forecast(plan.job, plan.n_records, positives=positives, signal=signal)
    if not found.measures or plan.job.privacy is None:
        return None
    name = next(iter(found.measures))
    privacy, n = plan.job.privacy, plan.problem.n_records
    job = plan.job.on_all_records()

    def at_epsilon(epsilon: float) -> tuple[Job, int]:
        return replace(job, privacy=replace(privacy, epsilon=epsilon)), n

    def at_records(records: float) -> tuple[Job, int]:
        return job, round(records)

    by_epsilon = _ranges(found, name, [privacy.epsilon * k for k in EPSILONS], at_epsilon)
    by_records = _ranges(found, name, sorted({float(max(10, round(n * k))) for k in RECORDS}), at_records)
    return section(
        "Expected quality",
        *(element("p", line) for line in found.lines),
        _quality("ε", name, by_epsilon, (privacy.epsilon, "this job")),
        _quality("records of the training", name, by_records, (float(n), "this job")),
        charts.key(*(("f0", SIGNALS[0]), ("f1", SIGNALS[1]))[: len(_signals(found))], ("dashed", "best linear model")),
        remark(
            "Each pair of lines is the range of the measure: nine of ten simulated runs lay in it when the guesses were right. "
            "A guess is public knowledge; nothing was read from the data."
        ),
    )


def _signals(found: Forecast) -> Sequence[float]:
    return tuple(dict.fromkeys(found.signal or ()))


def _ranges(
    found: Forecast, name: str, values: Iterable[float], at: Callable[[float], tuple[Job, int]]
) -> list[charts.Curve]:
    """Return three curves per signal strength: low, high, and the best linear model. Points without plan are left out."""
    curves: list[charts.Curve] = []
    values = list(values)
    for colour, signal in enumerate(_signals(found)):
        drawn: list[tuple[float, Range]] = []
        for value in values:
            try:
                drawn.append((value, expected(*at(value), signal, found.positives)[name]))
            except VflError:
                continue
        title = f"{said(name)}, {SIGNALS[colour]}"
        curves.append(charts.Curve(f"{title}: low", [(x, r.low) for x, r in drawn], colour))
        curves.append(charts.Curve(f"{title}: high", [(x, r.high) for x, r in drawn], colour))
        curves.append(charts.Curve(f"{title}: best", [(x, r.best) for x, r in drawn], None))
    return curves


def _quality(axis: str, name: str, lines: Sequence[charts.Curve], mark: tuple[float, str]) -> Markup:
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    room = 0.05 * (max(ys) - min(ys) or 0.1)
    x = charts.Axis(axis, min(xs), max(xs), log=True)
    y = charts.Axis(f"expected {said(name)}", min(ys) - room, max(ys) + room)
    return charts.both(lambda width: charts.curves(width, x, y, lines, marks=(mark,)))
