"""Forest plot of the coefficients of a run with standard errors, and their table for the model card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.columns import Categorical
from vfl.features import own_of
from vfl.inference.summary import cells_of
from vfl.launch.run.intervals import estimates_of
from vfl.problem import INTERCEPT
from vfl.report import charts
from vfl.report.markup import Markup, details, element, remark, section, table

if TYPE_CHECKING:
    from vfl.inference.summary import Row, Summary
    from vfl.report.facts import Facts

ROWS, LISTED = 40, 1000
"""Largest numbers of coefficients in the plot and in the table."""


def ranked(facts: Facts) -> tuple[Summary, list[tuple[Row, float, str]]]:
    """Return the summary, and (row, unit, party) per feature, the largest product of coefficient and unit first.

    The unit is the width of the feature's bounds, so that products are coefficients on the scaled features. It is 1 for the
    levels of a category.
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
    """Return the coefficients with their intervals; None for a run without standard errors."""
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
    ]
    more = f" The {ROWS} largest of {len(found):,} are drawn." if len(found) > ROWS else ""
    party = {row.name: party for row, _, party in found}
    listed = [(row.name, party.get(row.name, ""), *cells_of(row)) for row in summary.rows[:LISTED]]
    heading = head(summary)
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
        details("All numbers, in original units", table(heading, listed, numbers=tuple(range(2, len(heading))))),
    )


def head(summary: Summary) -> tuple[str, ...]:
    """Return the heading of the table of coefficients."""
    z = summary.statistic
    return ("coefficient", "party", "in original units", "std err", z, f"P>|{z}|", "from", "to", "due to privacy")
