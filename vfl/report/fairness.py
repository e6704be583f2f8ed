"""Section on fairness: the gap of each group with its error, and an interval for the gap of the model without noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.evaluation.distance import MEASURE, Distance
from vfl.evaluation.fairness import OF, GroupFairness
from vfl.report import charts
from vfl.report.markup import Markup, details, element, remark, section, table

if TYPE_CHECKING:
    from vfl.evaluation import Findings
    from vfl.report.facts import Facts

NAMES = (Distance.name, GroupFairness.name)
"""Names of the findings that only this section shows."""


def fairness(facts: Facts) -> Markup | None:
    """Return the section; None for a run that measured no fairness."""
    found = facts.findings
    told = found.get(GroupFairness.name)
    if told is None:
        return None
    spans = [
        charts.Row(name, e.value, _signed(e.value), e.interval, e.noiseless, k)
        for k, names in enumerate(_by_notion(told).values())
        for name in names
        for e in (told.measures[name],)
    ]
    bounded = any(span.band is not None for span in spans)
    rows = [
        (
            name,
            _signed(e.value) if OF in name else f"{e.value:.4g}",
            e.spread,
            *((_interval(e.noiseless), _interval(e.shift)) if bounded else ()),
        )
        for name, e in told.measures.items()
    ]
    thresholds = [(group, f"{at:.4g}") for group, at in (told.thresholds or {}).items()]
    head = ("measure", "value", "95 % interval", *(("model without noise", "its difference") if bounded else ()))
    key = [("f0", "gap of this model, with an interval of 95 %")]
    if bounded:
        key.append(("noisekey", "where the gap of the model without noise lies"))
    return section(
        "Fairness",
        element(
            "p",
            "The gap of a group is its share of records, for instance of positive records that are predicted positive, minus "
            "the same share of all records. At 0 the group is treated like all; above 0 it is favoured.",
        ),
        charts.both(lambda width: charts.rows(width, spans, "gap")) if spans else None,
        charts.key(*key) if spans else None,
        remark(f"{told.n_records:,} held-out records, {told.note}"),
        _distance(found.get(Distance.name)),
        table(("group", "threshold on the margin"), thresholds, numbers=(1,)) if thresholds else None,
        details("All numbers", table(head, rows, numbers=(1, 2, 3, 4))) if rows else None,
    )


def _by_notion(told: Findings) -> dict[str, list[str]]:
    """Return {notion of fairness: names of its gaps}; each notion has one colour."""
    by: dict[str, list[str]] = {}
    for name in told.measures:
        notion, separator, _ = name.partition(OF)
        if separator:
            by.setdefault(notion, []).append(name)
    return by


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{_signed(ends[0])} to {_signed(ends[1])}"


def _distance(told: Findings | None) -> Markup | None:
    if told is None:
        return None
    if MEASURE not in told.measures:
        return remark(f"The distance to the model without noise is {told.note}.")
    d = told.measures[MEASURE].value
    said = (
        f"The coefficients are at most {d:.3g} from those of the model without noise, in Euclidean norm: {told.note}."
    )
    return remark(said)
