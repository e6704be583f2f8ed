"""Page of a finished run for `vfl report`, computed from the contents of its folder that match the certificate.

The sections on the course of the run, and on the size of releases relative to their noise, are here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vfl.apps.report import charts
from vfl.apps.report.curves import curves, fairness
from vfl.apps.report.facts import Facts, gathered
from vfl.apps.report.guarantee import checks, particulars, promise, spent, tiles, verdict, who
from vfl.apps.report.markup import Child, Markup, element, join, page, remark, section, table
from vfl.apps.report.model import (
    bounds,
    choices,
    coefficients,
    columns_drawn,
    contribution,
    findings,
    forest,
    importance,
)
from vfl.base.writing import write_whole
from vfl.launch.run.folder import TIMING, Timing, check_finished
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.launch.run.history import Gradient
    from vfl.planning.certificate import Report

    Placed = tuple[float, Gradient]  # (share of the run's releases that precede the gradient, gradient)


NAME = "report.html"
TIMED = element("span", "This page shows how long rounds took, which depends slightly on the data.")


def write_run(
    run: str | Path,
    output: str | Path | None = None,
    *,
    ledger: str | Path | None = None,
    key: str | Path | None = None,
    with_timing: bool = False,
) -> tuple[Path, Report]:
    """Write the page of the run in a folder. Return its path and the report of `verify_run`, whose checks may fail.

    The page is post-processing of released values and public facts, so everybody who may see the model may see the page. With
    `with_timing` the page also shows the durations of rounds. Durations depend slightly on the data, so the page then states
    that it is not for release.

    output : file to write; None writes report.html into the folder. ledger, key : as for `verify_run`.

    Raises OutputError if the run is not finished or a file cannot be read or written.
    """
    run = Path(run)
    check_finished(run)
    facts = gathered(run, ledger=ledger, key=key, with_timing=with_timing)
    path = run / NAME if output is None else Path(output)
    write_whole(path, html(facts))
    return path, facts.report


def html(facts: Facts) -> str:
    """Return the page as HTML."""
    certificate = facts.certificate
    signed = "" if certificate.signature is None else f", signed {certificate.signature.signed}"
    return page(
        f"{certificate.job}: report of a vfl run",
        element("h1", certificate.job),
        element("p", f"Report of a training run by vfl {certificate.code_version}{signed}", class_="soft"),
        element("div", element("b", "Not for release"), TIMED, class_="verdict warn")
        if facts.timing is not None
        else None,
        verdict(facts),
        findings(facts),
        curves(facts),
        columns_drawn(facts),
        fairness(facts),
        tiles(facts),
        promise(facts),
        who(facts),
        spent(facts),
        signal(facts),
        choices(facts),
        forest(facts) or coefficients(facts),
        importance(facts),
        bounds(facts),
        contribution(facts),
        course(facts),
        checks(facts.report),
        particulars(facts),
        _footer(facts),
    )


def course(facts: Facts) -> Markup:
    """Return the section on the course of the run: resumed processes, lost parties and, on request, timing."""
    certificate, told = facts.certificate, facts.told
    rows: list[tuple[Child, ...]] = []
    if facts.processes:
        resumed = facts.processes - 1
        times = {0: "never", 1: "once"}.get(resumed, f"{resumed} times")
        rows.append(("resumed", times))
    if told is not None:
        lost = certificate.releases - sum(map(len, told.charged))
        rows.append(("rounds", f"{len(told.charged):,}"))
        rows.append(("rounds repeated after the loss of a process or a party", f"{told.repeated:,}"))
        rows += [("given up", f"party {party}, in round {number + 1:,}") for number, party in told.left.items()]
        if certificate.basis != "none":
            rows.append(("releases charged and not used", f"{max(0, lost):,}"))
    if certificate.basis != "none":
        reserved = sum(count for _, count in certificate.reserved)
        rows.append(("releases reserved", f"{reserved:,}"))
        rows.append(("releases charged", f"{certificate.releases:,}"))
    if facts.plan is not None and facts.plan.sharing is None:
        rows.append(("expected time of the rounds", f"about {facts.plan.seconds:.2g} s, by the plan"))
    if facts.timing is None:
        said = (
            "The measured time of rounds is not shown: it depends slightly on the data, and is not released. The operator of "
            f"the job finds it in {TIMING}, and can draw it with vfl report --timing."
        )
        return section("Course of the run", table((), rows, numbers=()), remark(said))
    return section("Course of the run", table((), rows), element("h3", "Timing"), _timing(facts.timing))


def _timing(lines: Sequence[Timing]) -> Markup:
    if not lines:
        return remark(f"There is no {TIMING} in this folder.")
    groups: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        groups.setdefault((line.kind, line.parties), []).append(line.seconds)
    rows = [
        (kind, who or "coordinator", f"{len(s):,}", *(f"{x:.3g}" for x in (sum(s), 1e3 * np.median(s), 1e3 * max(s))))
        for (kind, who), s in groups.items()
    ]
    total = sum(line.seconds for line in lines)
    return join(
        element("p", f"{total:.3g} s in {len(lines):,} rounds, from charge to last reply."),
        table(("query", "answered by", "rounds", "seconds", "median, ms", "longest, ms"), rows, numbers=(2, 3, 4, 5)),
    )


def _footer(facts: Facts) -> Markup:
    if facts.timing is not None:
        said = "Apart from the timing, this page is computed from released values and public facts."
    elif facts.certificate.private and facts.report.ok:
        said = (
            "This page is computed from public facts and from values that were released with noise and charged. "
            "Post-processing adds nothing to the stated ε: everyone who may see the model may see this page."
        )
    else:
        said = (
            "This page is computed from public facts and from the run's releases. The releases carry no verified guarantee, so "
            "neither does this page: show it only to those who may see the data."
        )
    return element("footer", element("p", said), element("p", f"Drawn by vfl {__version__}. The page loads nothing."))


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
        names = facts.result.coordinates[first:last]
        name = ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]} ({len(names)})"
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
