"""The list of kinds, docs/kinds.tsv. To write it anew after a change of a kind: python -m tests.messages.listing."""

from __future__ import annotations

from pathlib import Path

import vfl.network.kinds  # noqa: F401  # registers all kinds
from vfl.queries.kinds import registered

PATH = Path(__file__).parents[2] / "docs" / "kinds.tsv"
FAMILIES = ("message", "rule", "weighting", "score", "clip", "penalty", "loss", "statistic", "event", "batch")


def listed() -> list[str]:
    """Return the lines of the list, one for each parameter of each kind."""
    lines = ["family\tname\tparameter\tplain form"]
    for family in FAMILIES:
        for name, fields in registered()[family].items():
            lines += [f"{family}\t{name}\t{field}\t{text}" for field, text in fields or (("", "none"),)]
    return lines


if __name__ == "__main__":
    PATH.write_text("\n".join(listed()) + "\n", encoding="utf-8")
