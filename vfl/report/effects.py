"""Section with one curve per column: the column's contribution to the margin, with a band for the noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.launch.run.effects import BAND_NOTE, DOT_NOTE, effects_of
from vfl.report import charts
from vfl.report.markup import Markup, element, join, remark, section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.launch.run.effects import Effect, Effects, Joint
    from vfl.report.facts import Facts

DRAWN = 24
"""Largest number of curves to draw, and largest number of pairs of multiplied columns to draw."""
ROWS = 9
"""Largest number of rows, evenly spaced, in the heat map of two multiplied columns."""
SAID = (
    "The part of the margin that each column adds, over its range or for each category, the largest first. The margin of a "
    "record is their sum and a constant. Each curve is 0 on average."
)
PAIRS = (
    "The part that both columns of a pair add together, on top of their curves; the mean along each column is 0. Cells in a "
    "stronger colour are higher, and each row ends with its lowest and highest value."
)


def effects(facts: Facts) -> Effects:
    """Return the curves of a run, with noise bands if the run's log can be read."""
    return effects_of(facts.result, facts.told)


def curves(facts: Facts) -> Markup | None:
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
        for k in range(len(pair.y) - 1, -1, -max(1, -(-len(pair.y) // ROWS)))
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
                colour,
                band=None if effect.band is None else [float(half) for half in effect.band[part]],
            )
            for effect, colour, name in zip(found, colours, names or ("",), strict=True)
            for part in effect.strokes
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
        y = charts.Axis("part of the margin", min(0.0, *reach), max(0.0, *reach))
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
    return join(head, charts.both(lambda width: charts.rows(width, rows, "part of the margin")))
