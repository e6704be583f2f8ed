"""Section on the course of the run: resumed processes, lost parties and, on request, timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.launch.run import timing
from vfl.report.markup import Child, Markup, element, join, section, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.report.facts import Facts


def course(facts: Facts) -> Markup:
    """Return the section."""
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
            f"the job finds it in {timing.NAME}, and can draw it with vfl report --timing."
        )
        return section("Course of the run", table((), rows, numbers=()), element("p", said, class_="note"))
    return section("Course of the run", table((), rows), element("h3", "Timing"), _timing(facts.timing))


def _timing(lines: Sequence[timing.Line]) -> Markup:
    if not lines:
        return element("p", f"There is no {timing.NAME} in this folder.", class_="note")
    groups: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        groups.setdefault((line.kind, line.parties), []).append(line.seconds)
    rows: list[tuple[Child, ...]] = [
        (kind, who or "coordinator", f"{len(s):,}", *(f"{x:.3g}" for x in (sum(s), 1e3 * np.median(s), 1e3 * max(s))))
        for (kind, who), s in groups.items()
    ]
    total = sum(line.seconds for line in lines)
    return join(
        element("p", f"{total:.3g} s in {len(lines):,} rounds, from charge to last reply."),
        table(("query", "answered by", "rounds", "seconds", "median, ms", "longest, ms"), rows, numbers=(2, 3, 4, 5)),
    )
