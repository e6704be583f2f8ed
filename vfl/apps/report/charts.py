"""SVG charts. Each chart is drawn once for wide and once for narrow screens; the style sheet shows the one that fits."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from vfl.apps.report.markup import Child, Markup, element, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WIDE, NARROW = 760, 350
COLOURS = 8
"""Number of party colours in the style sheet. With more parties the colours repeat."""
DOTTED = 20
"""A curve of at most this many points gets a mark at each point. Without a mark a curve of one point would be invisible."""
DIGIT = 6.7
"""Approximate width of a small letter in the charts' font."""
WIDER = dict.fromkeys("mMW@%", 1.8) | dict.fromkeys("wGOQ", 1.5)
"""Widths of wide characters in units of DIGIT. Other capitals count 1.35, East Asian wide characters 2."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Line through points (x, y).

    colour : number of the line's colour; None draws a dashed reference line. step : True draws steps between the points.
    band : half-height of a grey band at each point; None draws no band.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int | None = 0
    step: bool = False
    band: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis of a chart. low, high : its ends. log : True for a logarithmic axis, with positive ends. whole : True for counts."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value along the axis: 0 at the low end, 1 at the high end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return 0.5 if high == low else (value - low) / (high - low)

    def ticks(self, most: int) -> list[float]:
        """Return at most about `most` round values between the ends."""
        found = _decades(self.low, self.high, most) if self.log else _round(self.low, self.high, most)
        return [value for value in found if value % 1 == 0] if self.whole else found


def _round(low: float, high: float, most: int) -> list[float]:
    if not high > low:
        return [low]
    raw = (high - low) / max(1, most)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**k for k in powers for m in steps if low * (1 - 1e-9) <= m * 10.0**k <= high * (1 + 1e-9)]
        if len(found) <= most:
            break
    else:
        found = found[:: -(-len(found) // most)]
    return found or [low]


def short(value: float) -> str:
    """Return the text of a number in a label."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 and value == round(value) else f"{value:.4g}"


def fitted(name: str, width: float) -> str:
    """Return a name with its middle cut to fit a width. The ends are kept since names of columns often differ there."""
    room = width / DIGIT
    if _columns(name) <= room + 1e-6:  # rounding must not shorten a name whose own width was given
        return name
    head, tail = _taken(name, 0.55 * (room - 1)), _taken(name[::-1], 0.45 * (room - 1))[::-1]
    return f"{head}…{tail}"


def told_apart(names: Sequence[str], width: float) -> list[str]:
    """Return names cut to fit a width. Names that would look equal after the cut begin where they differ instead."""
    cut = [fitted(name, width) for name in names]
    alike: dict[str, set[str]] = {}
    for name, short_name in zip(names, cut, strict=True):
        alike.setdefault(short_name, set()).add(name)
    return [
        short_name if len(alike[short_name]) == 1 else _from(name, alike[short_name], width)
        for name, short_name in zip(names, cut, strict=True)
    ]


def _from(name: str, alike: set[str], width: float) -> str:
    """Return a name from the point where similar names differ, or from the start of the word there if that start is near."""
    first, last = min(alike), max(alike)
    differ = next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    word = name.rfind(" ", 0, differ) + 1
    start = word if word and differ - word < width / DIGIT / 2 else differ
    kept = _taken(name[start:], width / DIGIT - 2)
    return f"…{kept}" if start + len(kept) == len(name) else f"…{kept}…"


def _columns(name: str) -> float:
    return sum(map(_columns_of, name))


def _columns_of(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 2.0
    return WIDER.get(character, 1.35 if character.isupper() else 1.0)


def _taken(name: str, room: float) -> str:
    ends = accumulate(map(_columns_of, name))
    return "".join(character for character, end in zip(name, ends, strict=True) if end <= room)


def both(draw: Callable[[int], Markup]) -> Markup:
    """Return a chart in two drawings, wide and narrow."""
    return join(element("div", draw(WIDE), class_="wide"), element("div", draw(NARROW), class_="narrow"))


def svg(width: float, height: float, label: str, *children: Child) -> Markup:
    """Return an SVG drawing of the given size, with a description for screen readers."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", element("title", label), *children, viewBox=box, role="img", aria_label=label)


def label(x: float, y: float, said: str, *, anchor: str = "start", class_: str | None = "soft") -> Markup:
    """Return a text element."""
    return element("text", said, x=x, y=y, text_anchor=anchor, class_=class_)


def curves(
    width: int, x: Axis, y: Axis, lines: Sequence[Curve], *, marks: Sequence[tuple[float, str]] = (), height: int = 250
) -> Markup:
    """Return a line chart. marks : (x, name) of vertical dashed lines."""
    ticks = y.ticks(5)
    left = 14 + DIGIT * max(len(short(value)) for value in ticks)
    right, top, bottom = width - 14.0, 26.0, height - 44.0

    def across(value: float) -> float:
        return left + (right - left) * x.at(value)

    def up(value: float) -> float:
        return bottom - (bottom - top) * y.at(value)

    drawn: list[Child] = [label(0, 14, y.name)]
    for value in ticks:
        drawn.append(element("line", x1=left, x2=right, y1=up(value), y2=up(value), class_="grid"))
        drawn.append(label(left - 8, up(value) + 4, short(value), anchor="end"))
    for value in x.ticks(9 if width > NARROW else 5):
        drawn.append(element("line", x1=across(value), x2=across(value), y1=bottom, y2=bottom + 4, class_="axis"))
        drawn.append(label(across(value), bottom + 18, short(value), anchor="middle"))
    drawn.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    drawn.append(label((left + right) / 2, height - 6.0, x.name, anchor="middle"))
    for value, name in marks:
        at = across(value)
        drawn.append(element("line", x1=at, x2=at, y1=top, y2=bottom, class_="dashed"))
        late = at > left + 0.8 * (right - left)
        drawn.append(label(at + (-6 if late else 6), top + 10, name, anchor="end" if late else "start"))
    for line in lines:
        if line.band is not None:
            over = [(a, b + half) for (a, b), half in zip(line.points, line.band, strict=True)]
            under = [(a, b - half) for (a, b), half in zip(line.points, line.band, strict=True)]
            around = _path([(across(a), up(b)) for a, b in (*over, *reversed(under))], step=False)
            drawn.append(element("path", d=f"{around}Z", class_="noise"))
            if len(over) == 1:
                x0, ends = across(over[0][0]), (up(under[0][1]), up(over[0][1]))
                drawn.append(element("line", x1=x0, x2=x0, y1=ends[0], y2=ends[1], class_="grid"))
        shape = "dashed" if line.colour is None else f"curve s{line.colour % COLOURS}"
        steps = _path([(across(a), up(b)) for a, b in line.points], step=line.step)
        drawn.append(element("path", element("title", line.name), d=steps, class_=shape))
        if line.colour is not None and not line.step and len(line.points) <= DOTTED:
            dot = f"f{line.colour % COLOURS}"
            drawn += [element("circle", cx=across(a), cy=up(b), r=2.5, class_=dot) for a, b in line.points]
    return svg(width, height, f"{y.name} against {x.name}", *drawn)


def _path(points: Sequence[tuple[float, float]], *, step: bool) -> str:
    if not points:
        return ""
    (x, y), *others = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for x, y in others:
        parts.append(f"H{x:.1f}V{y:.1f}" if step else f"L{x:.1f} {y:.1f}")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Strip:
    """Row of a heat map. shades : shade of each cell, from 0 to 1; None for a cell without data. said : text after the row."""

    name: str
    shades: Sequence[float | None]
    said: str
    colour: int = 0


def heat(width: int, rows: Sequence[Strip], x: str, ends: tuple[str, str] = ("first", "last")) -> Markup:
    """Return a heat map with one strip per row; darker cells are higher. ends : names of the first and the last cell."""
    names = min(0.32 * width, 16 + DIGIT * max(_columns(row.name) for row in rows))
    left, right, line = names, width - 8 - DIGIT * max(len(row.said) for row in rows), 19.0
    drawn: list[Child] = []
    shown = told_apart([row.name for row in rows], names - 16)
    for k, row in enumerate(rows):
        top = k * line
        whole = element("title", f"{row.name}: {row.said}")
        cell = (right - left) / max(1, len(row.shades))
        for first, last in _runs(row.shades):
            ground = {"x": left + first * cell, "y": top + 1, "width": (last - first) * cell, "height": line - 3}
            drawn.append(element("rect", whole, **ground, class_="empty"))
        drawn.append(element("rect", x=0, y=top + 4, width=4, height=line - 9, class_=f"f{row.colour % COLOURS}"))
        drawn.append(label(10, top + 13, shown[k], class_=None))
        for j, shade in enumerate(row.shades):
            if shade is not None and shade > 0.005:
                place = {"x": left + j * cell, "y": top + 1, "width": max(cell - 0.6, 0.6), "height": line - 3}
                drawn.append(element("rect", **place, class_="cell", fill_opacity=min(shade, 1.0)))
        drawn.append(label(width, top + 13, row.said, anchor="end"))
    height = len(rows) * line + 24
    drawn += [label(left, height - 8, ends[0]), label(right, height - 8, ends[1], anchor="end")]
    drawn.append(label((left + right) / 2, height - 8, x, anchor="middle"))
    return svg(width, height, x, *drawn)


def _runs(shades: Sequence[float | None]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each run of neighbouring cells with data."""
    for there, run in groupby(range(len(shades)), key=lambda j: shades[j] is not None):
        cells = list(run)
        if there:
            yield cells[0], cells[-1] + 1


@dataclass(frozen=True, slots=True)
class Row:
    """Value in a chart. interval : ends of a line through the point; None draws a bar from 0. band : ends of a grey band."""

    name: str
    value: float
    said: str
    interval: tuple[float, float] | None = None
    band: tuple[float, float] | None = None
    colour: int = 0


def around(half: float | None) -> tuple[float, float] | None:
    """Return the ends of a band around 0, given the half-width of the band; None without a band."""
    return None if half is None else (-half, half)


def rows(width: int, given: Sequence[Row], x: str) -> Markup:
    """Return a chart with one row per value and a common zero. A value is a bar, or a point with a line for the interval."""
    names = min(0.42 * width, 10 + DIGIT * max(_columns(row.name) for row in given))
    left, right, line = names, width - 10 - DIGIT * max(len(row.said) for row in given), 21.0
    reach = [end for row in given for end in (row.value, *(row.interval or ()), *(row.band or ()))]
    axis = Axis(x, min(0.0, *reach), max(0.0, *reach) or (0.0 if min(reach) < 0 else 1.0))

    def across(value: float) -> float:
        return left + (right - left) * axis.at(value)

    drawn: list[Child] = []
    shown = told_apart([row.name for row in given], names - 8)
    height, zero = len(given) * line + 40, across(0.0)
    for value in axis.ticks(7 if width > NARROW else 3):
        drawn.append(element("line", x1=across(value), x2=across(value), y1=0, y2=height - 38, class_="grid"))
        drawn.append(label(across(value), height - 24, short(value), anchor="middle"))
    for k, row in enumerate(given):
        middle, colour, said = k * line + line / 2, row.colour % COLOURS, f"{row.name}: {row.said}"
        drawn.append(label(0, middle + 4, shown[k], class_=None))
        if row.band is not None:
            low, high = map(across, row.band)
            drawn.append(element("rect", x=low, y=middle - 7, width=high - low, height=14, class_="noise"))
        if row.interval is not None:
            said += f" [{short(row.interval[0])}, {short(row.interval[1])}]"
        if row.band is not None:
            said += f", grey from {short(row.band[0])} to {short(row.band[1])}"
        if row.interval is None:
            ends = sorted((zero, across(row.value)))
            bar = {"x": ends[0], "y": middle - 4.5, "width": max(ends[1] - ends[0], 1.0), "height": 9, "rx": 1.5}
            drawn.append(element("rect", element("title", said), **bar, class_=f"f{colour}"))
        else:
            x1, x2 = map(across, row.interval)
            drawn.append(element("line", x1=x1, x2=x2, y1=middle, y2=middle, class_=f"curve s{colour}"))
            point = {"cx": across(row.value), "cy": middle, "r": 3.5}
            drawn.append(element("circle", element("title", said), **point, class_=f"f{colour}"))
        drawn.append(label(width, middle + 4, row.said, anchor="end"))
    drawn.append(element("line", x1=zero, x2=zero, y1=0, y2=height - 38, class_="axis"))
    drawn.append(label((left + right) / 2, height - 6, x, anchor="middle"))
    return svg(width, height, x, *drawn)


def key(*entries: tuple[str, str]) -> Markup:
    """Return a legend. entries : pairs (class of the style sheet, name)."""
    items = (element("li", element("i", Markup(""), class_=shape), name) for shape, name in entries)
    return element("ul", *items, class_="key")


def parties_key(parties: Sequence[str], *more: tuple[str, str]) -> Markup:
    """Return the legend of the parties' colours. more : further entries, as for `key`."""
    return key(*((f"f{k % COLOURS}", party) for k, party in enumerate(parties)), *more)
