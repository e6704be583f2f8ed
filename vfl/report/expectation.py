"""Section of a plan's page on the expected quality of the model, against ε and against the number of records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfl.errors import VflError
from vfl.planning.forecast import Forecast, expected, forecast, said
from vfl.report import charts
from vfl.report.markup import Markup, element, remark, section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.planning.quality import Range

EPSILONS = [10.0 ** (k / 8) for k in range(-8, 9)]
RECORDS = [10.0 ** (k / 4) for k in range(-8, 9)]
"""Factors on n, as EPSILONS are factors on ε, at which the curves are computed."""
SIGNALS = ("weak signal", "strong signal")


def expectation(plan: Plan, *, positives: float | None, signal: float | tuple[float, float] | None) -> Markup | None:
    """Return the section; None for losses without a forecast."""
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

    by_epsilon = _lines(found, name, [privacy.epsilon * k for k in EPSILONS], at_epsilon)
    by_records = _lines(found, name, sorted({float(max(10, round(n * k))) for k in RECORDS}), at_records)
    return section(
        "Expected quality",
        *(element("p", line) for line in found.lines),
        _chart("ε", name, by_epsilon, (privacy.epsilon, "this job")),
        _chart("records of the training", name, by_records, (float(n), "this job")),
        charts.key(*(("f0", SIGNALS[0]), ("f1", SIGNALS[1]))[: len(_signals(found))], ("dashed", "best linear model")),
        remark(
            "Each pair of lines is the range of the measure: nine of ten simulated runs lay in it when the guesses were right. "
            "A guess is public knowledge; nothing was read from the data."
        ),
    )


def _signals(found: Forecast) -> Sequence[float]:
    return tuple(dict.fromkeys(found.signal or ()))


def _lines(
    found: Forecast, name: str, values: Iterable[float], at: Callable[[float], tuple[Job, int]]
) -> list[charts.Curve]:
    """Return a lower curve, an upper curve and a best one for each signal, without values at which planning fails."""
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


def _chart(axis: str, name: str, lines: Sequence[charts.Curve], mark: tuple[float, str]) -> Markup:
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    room = 0.05 * (max(ys) - min(ys) or 0.1)
    x = charts.Axis(axis, min(xs), max(xs), log=True)
    y = charts.Axis(f"expected {said(name)}", min(ys) - room, max(ys) + room)
    return charts.both(lambda width: charts.curves(width, x, y, lines, marks=(mark,)))
