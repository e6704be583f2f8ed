"""Section on the signal in the releases: their size relative to the noise, by party and by block."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.report import charts
from vfl.report.markup import Markup, element, join, remark, section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.launch.run.history import Gradient
    from vfl.report.facts import Facts

    Placed = tuple[float, Gradient]  # (share of the run's releases that precede the gradient, gradient)

ROWS, CELLS, POINTS = 40, 24, 16
"""Largest numbers of blocks drawn, of cells per block, and of points per party's curve."""
TOGETHER = 4
"""Smallest number of releases that a cell averages, in blocks with enough releases: a single release is mostly noise."""
STRONG = 4.0
"""Size of a release, in units of the noise, from which a cell is darkest."""
CHANCE = 0.05
"""Probability that a cell is visible though the releases are noise alone."""


def signal(facts: Facts) -> Markup | None:
    """Return the section; None for a run without noise and for a run that releases no gradients."""
    told = facts.told
    if facts.certificate.basis == "none" or (told is not None and not told.gradients):
        return None
    heading = "Releases against their noise"
    if told is None:
        return section(heading, remark(f"Not drawn. {facts.why_not_told}"))
    by_block: dict[tuple[int, int], list[Placed]] = {}
    placed = [(k / len(told.gradients), gradient) for k, gradient in enumerate(told.gradients)]
    for entry in placed:
        S = entry[1].block.coordinates
        by_block.setdefault((S.start, S.stop), []).append(entry)
    owners = list(facts.parties)
    most = max(map(len, by_block.values()))
    n_cells = min(CELLS, max(most // TOGETHER, min(most, 2 * TOGETHER)))
    strips = []
    for (first, last), own in sorted(by_block.items()):
        block = own[0][1].block
        name = _block_name(facts.result.coordinates[first:last])
        overall = size([gradient for _, gradient in own])
        shades = [_shade(part) for part in _cut(own, n_cells)]
        strips.append((overall, charts.Strip(name, shades, f"{overall:.2f}", owners.index(block.party))))
    kept = {id(strip) for _, strip in sorted(strips, key=lambda entry: -entry[0])[:ROWS]}
    shown = [strip for _, strip in strips if id(strip) in kept]
    more = ""
    if len(strips) > ROWS:
        chance = noise_reach(sum(len(gradient.values) for _, gradient in placed) // len(strips), 1.0 / len(strips))
        more = (
            f" The {ROWS} largest of {len(strips):,} are shown. Some of them are large by chance: under noise alone the "
            f"largest would be about {chance:.2g}."
        )
    return section(
        heading,
        element(
            "p",
            "Each release is a sum of clipped gradients or products over the records, plus noise of known deviation σ. "
            "The chart shows its size in units of σ (root mean square): 1 is noise alone, more is signal.",
        ),
        *(() if n_cells == 1 else (_by_party(placed, owners, n_cells), element("h3", "By block"))),
        charts.both(lambda width: charts.heat(width, shown, "releases of the block")),
        remark(
            ("" if n_cells == 1 else f"Left to right: the run in {n_cells} parts. ")
            + f"Blank: in the range that noise alone gives in {1 - CHANCE:.0%} of cells. Darkest: {STRONG:g} σ or more. "
            f"No strip: nothing was released. The number is the block's size over the whole run.{more}"
        ),
    )


def _by_party(placed: Sequence[Placed], owners: Sequence[str], n_cells: int) -> Markup:
    n = min(POINTS, n_cells)
    parts = {owner: _cut([entry for entry in placed if entry[1].block.party == owner], n) for owner in owners}
    if len(owners) > charts.COLOURS:  # too many lines for one chart
        return join(element("h3", "By party"), _strips(parts))
    lines = []
    for k, owner in enumerate(owners):
        points = [(100.0 * (j + 0.5) / n, size(part)) for j, part in enumerate(parts[owner]) if part]
        if points:
            lines.append(charts.Curve(owner, points, k))
    top = max(value for line in lines for _, value in line.points)
    x, y = charts.Axis("share of the run, %", 0, 100), charts.Axis("size in units of σ", 0.0, max(1.5, top * 1.06))
    noise = charts.Curve("noise alone", [(0, 1.0), (100, 1.0)], None)
    entries = sum(len(g.values) for _, g in placed) / (n * max(1, len(lines)))
    note = f"Dashed: noise alone, which varies by about ±{2.0 / math.sqrt(2.0 * max(1.0, entries)):.2g} at this length."
    drawn = charts.both(lambda width: charts.curves(width, x, y, [noise, *lines], height=220))
    return join(drawn, charts.parties_key(owners), remark(note))


def _strips(parts: Mapping[str, Sequence[Sequence[Gradient]]]) -> Markup:
    rows = []
    for k, (owner, own) in enumerate(parts.items()):
        overall = size([gradient for part in own for gradient in part])
        rows.append(charts.Strip(owner, [_shade(part) for part in own], f"{overall:.2f}", k))
    return charts.both(lambda width: charts.heat(width, rows, "releases of the party"))


def size(gradients: Sequence[Gradient]) -> float:
    """Return the root mean square of released entries, each in units of its σ. Noise alone gives 1 on average."""
    squares = sum(float(g.values @ g.values) / g.sigma**2 for g in gradients)
    return math.sqrt(squares / max(1, sum(len(g.values) for g in gradients)))


def noise_reach(entries: int, chance: float = CHANCE) -> float:
    """Return the size that noise alone, in this number of entries, exceeds with probability `chance` (χ² distribution)."""
    from scipy.special import chdtri

    return math.sqrt(float(chdtri(entries, chance)) / entries)


def _shade(gradients: Sequence[Gradient]) -> float | None:
    """Return the shade of a cell: 0 if noise alone may explain the cell's releases, 1 from STRONG on; None without releases."""
    if not gradients:
        return None
    found, floor = size(gradients), noise_reach(sum(len(g.values) for g in gradients))
    return 0.0 if found <= floor else 0.12 + 0.88 * min(1.0, (found - 1.0) / (STRONG - 1.0))


def _cut(placed: Sequence[Placed], n: int) -> list[list[Gradient]]:
    parts: list[list[Gradient]] = [[] for _ in range(n)]
    for place, gradient in placed:
        parts[min(n - 1, int(place * n + 1e-9))].append(gradient)
    return parts


def _block_name(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]} ({len(names)})"
