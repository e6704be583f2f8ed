"""Sections on the model: coefficients with their noise or intervals, curves, contributions, chosen coordinates, measures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.apps.report import charts
from vfl.apps.report.curves import NAMES as OWN_SECTION
from vfl.apps.report.markup import Markup, details, element, join, remark, section, table
from vfl.base.columns import Categorical
from vfl.base.features import own_of
from vfl.base.problem import INTERCEPT, coordinates_of
from vfl.errors import VflError
from vfl.launch.run.effects import BAND_NOTE, DOT_NOTE, GAP_NOTE, effects_of
from vfl.launch.run.intervals import estimates_of
from vfl.launch.run.wide_bounds import wide_bounds
from vfl.measures.inference import cells_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.apps.report.facts import Facts
    from vfl.launch.run.effects import Effect, Effects, Joint
    from vfl.measures import Findings
    from vfl.measures.inference import Row, Summary

HEAD = ("", "measure", "value", "95 % interval", "baseline", "")
BASELINE = (
    "Baseline: a model without features, computed from released values: the best constant prediction; for tpr and fpr, "
    "predictions at random that are positive as often."
)
IMPORTANCE_NOTE = (
    "The spread is released with noise and charged to the training. The interval is about the spread alone: it leaves out the "
    "noise in the coefficients{}. Features that rise and fall together share their importance arbitrarily."
)
LENGTH = (
    "‖w_k‖, the length of a party's coefficients on the scaled features, and its share in ‖w‖²; without the intercept."
)
NOISE_IN_LENGTH = " Noise adds to this length, so a party with many columns has a share even if no column helps."
MISSING_FROM_TRAINING = (
    "The held-out records are missing from the training. A model of all records would be slightly better."
)
ROWS, LISTED = 40, 1000
"""Largest number of bars in a chart, and of rows in the table of all coefficients."""


def choices(facts: Facts) -> Markup | None:
    """Return how often each coordinate was selected; None if the run made no selections."""
    told = facts.told
    if told is None or not told.chosen:
        return None
    names, owners = facts.result.coordinates, facts.owners
    rows = [
        charts.Row(names[j], float(count), f"{count:,}", colour=facts.parties.index(owners[j]))
        for j, count in told.chosen.most_common(ROWS)
    ]
    return section(
        "Coordinates chosen",
        element(
            "p",
            "How often a selection chose each coordinate, largest first. Scores and losing coordinates are not kept.",
        ),
        charts.both(lambda width: charts.rows(width, rows, "times chosen")),
    )


def _last_noise(facts: Facts) -> Mapping[int, float]:
    """Return {coordinate: σ of the noise in its last update}; for a sealed solver, σ of the noise of its only release."""
    plan, p = facts.plan, len(facts.result.coordinates)
    if facts.told is not None:
        return facts.told.noise
    releases = plan.solver.releases(plan.problem) if plan is not None and plan.solver.sealed else ()
    if [count for _, count in releases] == [1]:
        event = releases[0][0]
        if getattr(event, "dimension", 0) == p:
            return dict.fromkeys(range(p), float(getattr(event, "sigma", 0.0)))
    return {}


def coefficients(facts: Facts) -> Markup:
    """Return the section of coefficients, with the noise of their last update."""
    result, owners, noise = facts.result, facts.owners, _last_noise(facts)
    names, w = result.coordinates, result.w
    intercepts = coordinates_of(INTERCEPT, result.job.class_names)
    features = [j for j in range(len(names)) if names[j] not in intercepts]
    moved = [j for j in features if w[j] != 0.0]
    top = sorted(moved, key=lambda j: -abs(w[j]))[:ROWS]
    rows = [
        charts.Row(
            names[j],
            float(w[j]),
            f"{w[j]:.3g}".replace("-", "−"),
            band=charts.around(noise.get(j)),
            colour=facts.parties.index(owners[j]),
        )
        for j in top
    ]
    sealed = facts.plan is not None and facts.plan.solver.sealed
    if noise and sealed:
        said = (
            "Grey: plus and minus one standard deviation of the noise in the published coefficient. The band is no confidence "
            "interval: it leaves out the sampling error of the records."
        )
    elif noise:
        said = (
            "Grey: plus and minus one standard deviation of the noise in the coefficient's last update. The band is no "
            "confidence interval: averages of updates contain less noise, earlier updates added noise too, and the sampling "
            "error of the records is left out."
        )
    elif facts.certificate.basis == "none":
        said = "No noise was added."
    elif facts.told is None:
        said = f"The noise of the last update is not drawn. {facts.why_not_told}"
    else:
        said = "The noise of the last update is not drawn: this solver's log does not hold its steps."
    more = f" The {ROWS} largest of {len(moved):,} are drawn." if len(moved) > ROWS else ""
    if len(moved) < len(features):
        more += f" {len(features) - len(moved):,} of {len(features):,} are 0, and not drawn."
    if len(facts.parties) > charts.COLOURS:
        more += " Colours repeat; the list of all numbers names the party of each."
    what = "noise" if sealed else "noise of the last update"
    original = result.original
    listed = [
        (
            name,
            owners[j],
            f"{w[j]:.6g}",
            f"{original[name]:.6g}",
            *((f"{noise[j]:.3g}" if j in noise else "",) if noise else ()),
        )
        for j, name in enumerate(names[:LISTED])
    ]
    rest = "" if len(names) <= LISTED else f", the first {LISTED:,} of {len(names):,}; model.json holds all"
    return section(
        "Coefficients",
        element(
            "p",
            f"Coefficients on the scaled features, which are comparable; largest first, without the intercept.{more}",
        ),
        charts.both(lambda width: charts.rows(width, rows, "coefficient on the scaled feature")) if rows else None,
        charts.parties_key(facts.parties, *((("noisekey", f"± the {what}"),) if noise else ())),
        remark(said),
        details(
            f"All numbers{rest}",
            table(
                ("coordinate", "party", "on the scaled feature", "in original units", *((what,) if noise else ())),
                listed,
                numbers=(2, 3, 4),
            ),
        ),
    )


def importance(facts: Facts) -> Markup | None:
    """Return the importance of each feature with an interval; None if the run released no certified spread of the columns."""
    try:
        found = facts.result.importance()
    except VflError:
        return None
    rows = []
    for one in found[:ROWS]:
        said, colour = "too noisy" if one.too_noisy else f"{one.value:.3g}", facts.parties.index(one.party)
        ends = (one.low, one.high) if math.isfinite(one.high) else None
        rows.append(charts.Row(one.feature, one.value, said, (one.value, one.value), ends, colour))
    more = f" The {ROWS} largest of {len(found):,} are drawn." if len(found) > ROWS else ""
    return section(
        "Importance",
        element(
            "p",
            f"Change of the linear predictor when a feature changes by its standard deviation, largest first.{more}",
        ),
        charts.both(lambda width: charts.rows(width, rows, "change of the linear predictor")),
        charts.parties_key(facts.parties, ("noisekey", "95 % interval")),
        remark(importance_note(facts)),
    )


def importance_note(facts: Facts) -> str:
    """Return sentences on the errors that the intervals of importance include."""
    if facts.result.inference is None:
        return IMPORTANCE_NOTE.format("")
    covered = IMPORTANCE_NOTE.replace(
        "is about the spread alone: it leaves out", "covers the noise of the spread, and sampling and"
    )
    return covered.format(", except for levels of a full set, which have no error of their own")


def bounds(facts: Facts) -> Markup | None:
    """Return the columns whose declared bounds are far wider than their released spread; None if no column has such bounds."""
    said = wide_bounds(facts.result)
    if not said:
        return None
    return section(
        "Wide bounds",
        element("p", "Noise of the columns' means and spreads grows with their declared bounds."),
        element("ul", *(element("li", f"{sentence[0].upper()}{sentence[1:]}.") for sentence in said)),
    )


def contribution(facts: Facts) -> Markup:
    """Return the Euclidean norm of each party's part of the model."""
    owners, names = np.array(facts.owners), np.array(facts.result.coordinates)
    intercepts = coordinates_of(INTERCEPT, facts.result.job.class_names)
    w = np.where(np.isin(names, intercepts), 0.0, facts.result.w)
    squares = {party: float((w[owners == party] ** 2).sum()) for party in facts.parties}
    whole = sum(squares.values()) or 1.0
    rows = [
        charts.Row(party, math.sqrt(square), f"{math.sqrt(square):.3g} ({square / whole:.0%})", colour=k)
        for k, (party, square) in enumerate(squares.items())
    ]
    return section(
        "Contribution by party",
        element("p", LENGTH, "" if facts.certificate.basis == "none" else NOISE_IN_LENGTH),
        charts.both(lambda width: charts.rows(width, rows, "length of the party's coefficients")),
    )


def rows_of(found: Mapping[str, Findings]) -> list[tuple[str, ...]]:
    """Return one table row per measure, with the columns of `HEAD`."""
    return [
        (
            name,
            measure,
            e.said,
            e.spread,
            "" if e.baseline is None else f"{e.baseline:.2g}",
            "too noisy to tell" if e.too_noisy else "",
        )
        for name, findings in found.items()
        for measure, e in findings.named.items()
    ]


def findings(facts: Facts) -> Markup | None:
    """Return the section of measures, from the log if the run has one; None if the run measured nothing."""
    found = {name: what for name, what in facts.findings.items() if name not in OWN_SECTION}
    if not found:
        return None
    rows = rows_of(found)
    notes = (remark(f"{name}: of {what.n_records:,} records, {what.note}") for name, what in found.items())
    with_baseline = any(estimate.baseline is not None for what in found.values() for estimate in what.measures.values())
    return section(
        "Measures",
        table(HEAD, rows, numbers=(2, 3, 4)) if rows else None,
        remark(BASELINE) if with_baseline else None,
        remark(MISSING_FROM_TRAINING) if "held out" in found else None,
        *notes,
        remark("Read from findings.json.") if facts.told is None else None,
    )


def ranked(facts: Facts) -> tuple[Summary, list[tuple[Row, float, str]]]:
    """Return the summary, and (row, unit, party) per feature. The feature with the largest coefficient times unit comes first.

    The unit is the width of the feature's bounds, so that the product is the coefficient on the scaled feature. The unit is 1
    for the levels of a category.
    """
    result = facts.result
    summary, estimates, owners = result.summary(), estimates_of(result), result.owners
    scaling = result.job.scaling_of(result.job.partition.features)
    width = dict(zip(scaling.features, map(float, scaling.width), strict=True))
    schema = result.job.schema
    for column in result.job.partition.features:
        if isinstance(schema[column], Categorical):
            width |= dict.fromkeys(own_of(schema[column], column), 1.0)
    found = []
    for row, weights in zip(summary.rows, estimates.weights, strict=True):
        names = [estimates.inference.names[j] for j in np.flatnonzero(weights)]
        if INTERCEPT not in names:
            found.append((row, width[names[0]], owners[names[0]]))
    return summary, sorted(found, key=lambda one: -abs(one[0].coefficient) * one[1])


def forest(facts: Facts) -> Markup | None:
    """Return the chart of the coefficients with their intervals; None for a run without standard errors."""
    if facts.result.inference is None:
        return None
    summary, found = ranked(facts)
    spans = [
        charts.Row(
            row.name,
            row.coefficient * unit,
            f"{row.coefficient * unit:.3g}".replace("-", "−"),
            (row.low * unit, row.high * unit),
            colour=facts.parties.index(party),
        )
        for row, unit, party in found[:ROWS]
        if row.low is not None and row.high is not None
    ]
    more = f" The {ROWS} largest of {len(found):,} are drawn." if len(found) > ROWS else ""
    party = {row.name: party for row, _, party in found}
    listed = [(row.name, party.get(row.name, ""), *cells_of(row)) for row in summary.rows[:LISTED]]
    heading = heading_of(summary)
    return section(
        "Coefficients",
        element(
            "p",
            f"Coefficients on the scaled features, which are comparable, and of levels, with intervals of {summary.level:.0%} "
            f"for sampling and the noise of privacy; largest first, without the intercept.{more} An interval that includes 0 "
            "leaves the sign open.",
        ),
        charts.both(lambda width: charts.rows(width, spans, "coefficient")) if spans else None,
        charts.parties_key(facts.parties),
        *map(remark, summary.notes),
        table((), list(summary.facts.items())),
        details("All numbers, in original units", table(heading, listed, numbers=tuple(range(2, len(heading))))),
    )


def heading_of(summary: Summary) -> tuple[str, ...]:
    """Return the heading of the table of coefficients."""
    z = summary.statistic
    return ("coefficient", "party", "in original units", "std err", z, f"P>|{z}|", "from", "to", "due to privacy")


DRAWN = 24
"""Largest number of curves to draw, and largest number of pairs of multiplied columns to draw."""
STRIPS = 9
"""Largest number of rows, evenly spaced, in the heat map of two multiplied columns."""
SAID = (
    "The part of the linear predictor that each column adds, over its range or for each category, the largest first. The "
    "linear predictor of a record is the sum of these parts and a constant. Each curve is 0 on average, and constant outside "
    "the drawn range."
)
PAIRS = (
    "The part that both columns of a pair add together, on top of their curves; the mean along each column is 0. Cells in a "
    "stronger colour are higher, and each row ends with its lowest and highest value."
)


def effects(facts: Facts) -> Effects:
    """Return the curves of a run, with noise bands if the run's log can be read."""
    return effects_of(facts.result, facts.told)


def columns_drawn(facts: Facts) -> Markup | None:
    """Return the section; None for a model without columns."""
    both = effects(facts)
    found, pairs = tuple(both), both.pairs[:DRAWN]
    if not found:
        return None
    more = f" The {DRAWN} largest of {len(found):,} are drawn." if len(found) > DRAWN else ""
    banded = any(effect.band is not None for effect in found)
    return section(
        "Curves of the columns",
        element("p", SAID + more),
        *(overlay([effect], [facts.parties.index(effect.party)]) for effect in found[:DRAWN]),
        remark(DOT_NOTE) if any(effect.dotted for effect in found) else None,
        remark(GAP_NOTE) if any(effect.numeric and effect.gaps for effect in found) else None,
        remark(BAND_NOTE) if banded else None,
        element("p", PAIRS) if pairs else None,
        *(_heat(pair, facts.parties.index(pair.party)) for pair in pairs),
    )


def _heat(pair: Joint, colour: int) -> Markup:
    low, high = float(pair.value.min()), float(pair.value.max())
    shades = (pair.value - low) / max(high - low, 1e-300)
    rows = [
        charts.Strip(
            f"{pair.b} {_named(pair.y[k])}",
            [float(shade) for shade in shades[:, k]],
            f"{pair.value[:, k].min():.2g} to {pair.value[:, k].max():.2g}".replace("-", "−"),
            colour,
        )
        for k in range(len(pair.y) - 1, -1, -max(1, -(-len(pair.y) // STRIPS)))
    ]
    ends = (_named(pair.x[0]), _named(pair.x[-1]))
    head = element("h3", f"{pair.column} ({pair.party})")
    return join(head, charts.both(lambda width: charts.heat(width, rows, pair.a, ends)))


def _named(point: object) -> str:
    return point if isinstance(point, str) else f"{point:.3g}"


def overlay(found: Sequence[Effect], colours: Sequence[int], names: Sequence[str] = ()) -> Markup:
    """Return the chart of one column: the curve of one model, or the curves of several models in one drawing.

    colours : number of the colour of each curve. names : names of the models; () for one model.
    """
    first = found[0]
    head = element("h3", f"{first.column} ({first.party})")
    if first.numeric:
        lines = [
            charts.Curve(
                f"{first.column} {name}".strip(),
                [(float(x), float(y)) for x, y in zip(effect.x[part], effect.value[part], strict=True)],
                drawn,
                band=None if effect.band is None or drawn is None else [float(half) for half in effect.band[part]],
            )
            for effect, colour, name in zip(found, colours, names or ("",), strict=True)
            for drawn, part in (*((None, gap) for gap in effect.gaps), *((colour, part) for part in effect.strokes))
        ]
        reach = [
            y + side * half
            for line in lines
            for (_, y), half in zip(line.points, line.band or [0.0] * len(line.points), strict=True)
            for side in (-1.0, 1.0)
        ]
        x = charts.Axis(
            first.column, min(line.points[0][0] for line in lines), max(line.points[-1][0] for line in lines)
        )
        y = charts.Axis("part of the score", min(0.0, *reach), max(0.0, *reach))
        zero = charts.Curve("0", [(x.low, 0.0), (x.high, 0.0)], None)
        return join(head, charts.both(lambda width: charts.curves(width, x, y, [zero, *lines], height=200)))
    rows = [
        charts.Row(
            f"{category} {name}".strip(),
            float(effect.value[k]),
            f"{effect.value[k]:.3g}".replace("-", "−"),
            band=None if effect.band is None else charts.around(float(effect.band[k])),
            colour=colour,
        )
        for k, category in enumerate(first.x)
        for effect, colour, name in zip(found, colours, names or ("",), strict=True)
    ]
    return join(head, charts.both(lambda width: charts.rows(width, rows, "part of the score")))
