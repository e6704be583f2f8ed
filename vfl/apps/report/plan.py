"""Page of `vfl plan --plot`: expected quality, noise and cost against ε, computed from public facts alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.apps.report import charts
from vfl.apps.report.markup import Markup, element, page, remark, section, table
from vfl.base.writing import write_whole
from vfl.errors import SpecificationError, VflError
from vfl.planning import plan as make_plan
from vfl.planning.certificate.issue import planned
from vfl.planning.forecast import Forecast, expected, forecast, said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.planning.quality import Range

DECADE = 8
"""Points per decade of ε, from a tenth of the job's ε to ten times that ε."""
EPSILONS = [10.0 ** (k / 8) for k in range(-8, 9)]
RECORDS = [10.0 ** (k / 4) for k in range(-8, 9)]
"""Factors on n at which curves are computed; EPSILONS holds the factors on ε."""
SIGNALS = ("weak signal", "strong signal")


@dataclass(frozen=True, slots=True)
class Point:
    """Noise and cost of the planned job at one ε.

    noise_multiplier : σ/Δ of the most frequent release.
    sigma : σ/n, the noise in a coordinate of the mean gradient. For solvers that add noise to the model, σ of that noise.
    releases, messages, seconds : cost.
    """

    epsilon: float
    noise_multiplier: float
    sigma: float
    releases: int
    messages: int
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
        found.append(Point(epsilon, noise, deviation, count, other.messages, other.seconds))
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
    """Draw expected quality, noise and cost against ε and n into an .html file; return its path. No data are read.

    positives, signal : guesses, as for `Plan.forecast`.

    Raises SpecificationError for another file ending and for a job without privacy; OutputError if the file cannot be written.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise SpecificationError(f"a plot is a page, written to a file that ends in .html, not {path.suffix!r}")
    drawn = points(plan)
    write_whole(path, html(plan, drawn, expectation(plan, positives=positives, signal=signal)))
    return path


def _chart(plan: Plan, field: str, name: str, drawn: Sequence[Point]) -> Markup:
    values = [(p.epsilon, float(getattr(p, field))) for p in drawn]
    low, high = min(v for _, v in values), max(v for _, v in values)
    log = low > 0 and high / low > 5
    x = charts.Axis("ε", drawn[0].epsilon, drawn[-1].epsilon, log=True)
    y = charts.Axis(name, low * 0.8, high * 1.25, log=True) if log else charts.Axis(name, 0.0, high * 1.15)
    marks = ((plan.job.privacy.epsilon, "this job"),) if plan.job.privacy is not None else ()
    curve = charts.Curve(name, values)
    return charts.both(lambda width: charts.curves(width, x, y, [curve], marks=marks, height=220))


def html(plan: Plan, drawn: Sequence[Point], quality: Markup | None = None) -> str:
    """Return the page. quality : section on the expected quality."""

    def cells(point: Point) -> tuple[str, ...]:
        noise = (f"{point.epsilon:.3g}", f"{point.noise_multiplier:.4g}", f"{point.sigma:.3g}")
        return (*noise, f"{point.releases:,}", f"{point.messages:,}", f"{point.seconds:.2g}")

    own = plan.job.privacy.epsilon if plan.job.privacy is not None else None
    rows = [tuple(element("b", cell) if p.epsilon == own else cell for cell in cells(p)) for p in drawn]
    deviation = "noise of a coefficient, σ" if plan.solver.sealed else "noise of a coordinate's mean gradient, σ/n"
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
            _chart(plan, "noise_multiplier", "noise multiplier, σ/Δ", drawn),
            _chart(plan, "sigma", deviation, drawn),
            remark(unit(plan)),
        ),
        section(
            "Numbers",
            element("p", "Open options of the job are resolved at every ε, so the cost changes with it."),
            table(
                ("ε", "σ/Δ", "σ" if plan.solver.sealed else "σ/n", "releases", "messages", "s"),
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


def _size(plan: Plan) -> str:
    return f"n = {plan.problem.n_records:,}, p = {plan.problem.layout.n_coordinates:,}, δ = {plan.problem.delta:.3g}"


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
        charts.key(*(("f0", SIGNALS[0]), ("f1", SIGNALS[1]))[: len(found.by_signal)], ("dashed", "best linear model")),
        remark(
            "Each pair of lines is the range of the measure: nine of ten simulated runs lay in it when the guesses were right. "
            "A guess is public knowledge; nothing was read from the data."
        ),
    )


def _ranges(
    found: Forecast, name: str, values: Iterable[float], at: Callable[[float], tuple[Job, int]]
) -> list[charts.Curve]:
    """Return three curves per signal strength: low, high, and the best linear model. Points without plan are left out."""
    curves: list[charts.Curve] = []
    values = list(values)
    for colour, signal in enumerate(sorted(found.by_signal)):
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
