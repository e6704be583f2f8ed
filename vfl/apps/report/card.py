"""Model card of a finished run, in Markdown or HTML: description, quality, guarantee and limits of the model.

Like the report of a run, the card is computed from released values and public facts. The owner of the model fills in the
intended use.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vfl.apps.report.curves import above
from vfl.apps.report.facts import gathered
from vfl.apps.report.markup import Markup, element, page, section, table
from vfl.apps.report.model import BASELINE, HEAD, SAID, effects, heading_of, importance_note, ranked, rows_of
from vfl.base.losses import loss_of
from vfl.base.problem import INTERCEPT, coordinates_of
from vfl.base.writing import write_whole
from vfl.errors import SpecificationError, VflError
from vfl.launch.run.effects import BAND_NOTE
from vfl.launch.run.folder import check_finished
from vfl.measures.confusion import calibration
from vfl.measures.inference import cells_of
from vfl.planning.run_plan import model_of

if TYPE_CHECKING:
    from vfl.apps.report.facts import Facts
    from vfl.launch.run.effects import Effect, Joint
    from vfl.planning.certificate import Report

NAME = "card.md"
TOP = 10
"""Largest number of coefficients shown on a card."""
UNFOUNDED = "Nothing: the certificate does not hold. Do not rely on the certificate or the model."
TO_FILL = "To be completed by the owner of the model: purpose, users, and uses that are out of scope."


@dataclass(frozen=True, slots=True)
class Table:
    """Table on a card. head : cells of the heading row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Block = str | Table
Card = tuple[tuple[str, tuple[Block, ...]], ...]
"""Each section of a card: (heading, paragraphs and tables)."""


def write_card(
    run: str | Path,
    output: str | Path | None = None,
    *,
    ledger: str | Path | None = None,
    key: str | Path | None = None,
) -> tuple[Path, Report]:
    """Write the model card of the run in a folder. Return its path and the report of `verify_run`, whose checks may fail.

    output : file name that ends in .md or .html; None writes card.md into the folder. ledger, key : as for `verify_run`.

    Raises OutputError if the run is not finished or a file cannot be read or written; SpecificationError for another
    file ending.
    """
    run = Path(run)
    check_finished(run)
    path = run / NAME if output is None else Path(output)
    if path.suffix not in (".md", ".html"):
        raise SpecificationError(f"a card is written to a file that ends in .md or .html, not {path.suffix!r}")
    facts = gathered(run, ledger=ledger, key=key, with_timing=False)
    title = f"Model card: {facts.certificate.job}"
    parts = card(facts)
    write_whole(path, markdown(title, parts) if path.suffix == ".md" else html(title, parts))
    return path, facts.report


def card(facts: Facts) -> Card:
    """Return the content of the card."""
    promised: tuple[Block, ...] = (UNFOUNDED,)
    if facts.report.ok:
        promised = (*facts.report.guarantee, f"Scope: {facts.certificate.scope}.")
    return (
        ("Model", (_model(facts),)),
        ("Intended use", (TO_FILL,)),
        ("How good it is", _quality(facts)),
        ("What is promised", promised),
        ("Data", _data(facts)),
        ("Coefficients", _coefficients(facts)),
        ("Curves", _curves(facts)),
        *((("Importance", found),) if (found := _importance(facts)) else ()),
        ("Limits", _limits(facts)),
        ("Provenance", (_provenance(facts),)),
    )


def _model(facts: Facts) -> Table:
    result, certificate = facts.result, facts.certificate
    n = certificate.n_records
    held = 0 if result.job.split is None else result.job.split.sizes(n)[1]
    return Table(
        ("", ""),
        (
            ("model", model_of(loss_of(result.job.loss))),
            ("features", f"{len(result.feature_names):,}, of {len(facts.parties)} parties"),
            ("trained on", f"{n - held:,} records" + (f"; {held:,} were held out" if held else "")),
            ("trained with", f"vfl {certificate.code_version}, {result.job.solver.name}"),
            ("signed", "no" if certificate.signature is None else certificate.signature.signed),
        ),
    )


def _quality(facts: Facts) -> tuple[Block, ...]:
    found = facts.result.findings
    rows = tuple(rows_of(found))
    if not rows:
        return ("Nothing was measured: the job held no records out.",)
    blocks: list[Block] = [Table(HEAD, rows), BASELINE]
    histogram = found["held out"].histogram if "held out" in found else None
    if histogram is not None and (bins := calibration(histogram, found["held out"].n_records)):
        agree = sum(b.agrees for b in bins)
        blocks.append(f"Calibration: the intervals of {agree} of {len(bins)} bins meet the stated probabilities.")
    if facts.result.threshold is not None:
        blocks.append(f"Decisions: records {above(facts.result)} are predicted positive.")
    blocks += [f"{name}: of {findings.n_records:,} records, {findings.note}." for name, findings in found.items()]
    return tuple(blocks)


def _data(facts: Facts) -> tuple[Block, ...]:
    job = facts.result.job
    rows = tuple((party, f"{len(job.partition.columns(party)):,}") for party in facts.parties)
    label_party, label = job.partition.label
    return (
        Table(("party", "columns"), rows),
        f"{label_party} holds the label, {label}. Values outside the declared ranges are clamped.",
        "The records are not described: their descriptions would be releases of their own.",
    )


def _coefficients(facts: Facts) -> tuple[Block, ...]:
    result = facts.result
    if result.inference is not None:
        summary, ordered = ranked(facts)
        cells = tuple((row.name, party, *cells_of(row)) for row, _, party in ordered[:TOP])
        return (Table(("", ""), tuple(summary.facts.items())), Table(heading_of(summary), cells), *summary.notes)
    original, intercepts = result.original, coordinates_of(INTERCEPT, result.job.class_names)
    found = zip(result.coordinates, facts.owners, map(float, result.w), strict=True)
    largest = sorted((one for one in found if one[0] not in intercepts), key=lambda one: -abs(one[2]))[:TOP]
    rows = tuple((name, owner, f"{w:.3g}", f"{original[name]:.4g}") for name, owner, w in largest)
    return (Table(("largest coefficients", "party", "on the scaled feature", "in original units"), rows),)


def _curves(facts: Facts) -> tuple[Block, ...]:
    """Return lowest value, highest value and widest noise band of the largest curves, and of the largest pairs of columns."""

    def at(effect: Effect | Joint, k: int) -> str:
        where = np.unravel_index(k, effect.value.shape)
        points = [own[j] for own, j in zip((effect.x, getattr(effect, "y", ())), where, strict=False)]
        return f"{effect.value[where]:.3g} at {', '.join(x if isinstance(x, str) else f'{x:.4g}' for x in points)}"

    found = effects(facts)
    shown: tuple[Effect | Joint, ...] = (*found.effects[:TOP], *found.pairs[:TOP])
    rows = tuple(
        (e.column, e.party, at(e, int(np.nanargmin(e.shown))), at(e, int(np.nanargmax(e.shown))), _widest(e))
        for e in shown
    )
    return (Table(("largest curves", "party", "lowest", "highest", "noise, at most"), rows), SAID, BAND_NOTE)


def _widest(effect: Effect | Joint) -> str:
    return "not known" if effect.band is None else f"± {np.nanmax(effect.band):.2g}"


def _importance(facts: Facts) -> tuple[Block, ...]:
    """Return the importance of each feature; () if the run released no certified spread of the columns."""
    try:
        found = facts.result.importance()[:TOP]
    except VflError:
        return ()
    head = ("largest", "party", "linear predictor per standard deviation", "95 % interval", "")
    rows = tuple(
        (
            i.feature,
            i.party,
            "" if i.too_noisy else f"{i.value:.3g}",
            f"{i.low:.3g} to {i.high:.3g}" if math.isfinite(i.high) else "withheld",
            "too noisy to tell" * i.too_noisy,
        )
        for i in found
    )
    return (Table(head, rows), importance_note(facts))


def _limits(facts: Facts) -> tuple[Block, ...]:
    said = [f"The certificate warns: {flag}." for flag in facts.certificate.flags]
    noisy = "contain noise and " * (facts.certificate.basis != "none")
    said.append(f"The model is linear in its features. Its coefficients {noisy}are not causal effects.")
    if facts.result.job.split is None:
        said.append("No records were held out, so its quality on new records is not known.")
    else:
        said.append("Held-out records are missing from the training: a model of all records would be slightly better.")
    return tuple(said)


def _provenance(facts: Facts) -> Table:
    certificate = facts.certificate
    rows = [("model digest", certificate.model_digest), ("job digest", certificate.job_digest)]
    if certificate.signature is not None:
        rows.append(("signed with key", certificate.signature.public_key))
    failed = [check.name for check in facts.report.failed]
    rows.append(("checks", "hold" if not failed else f"FAILED: {', '.join(failed)}"))
    return Table(("", ""), tuple(rows))


def markdown(title: str, parts: Card) -> str:
    """Return the card in Markdown. All text is escaped: names of columns and parties are arbitrary."""
    lines = [f"# {_plain(title)}", ""]
    for heading, blocks in parts:
        lines += [f"## {_plain(heading)}", ""]
        for block in blocks:
            if isinstance(block, str):
                lines += [_plain(block), ""]
                continue
            lines.append(_row(block.head))
            lines.append("|" + "---|" * len(block.head))
            lines += [*map(_row, block.rows), ""]
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """Return text without control characters, with the special characters of Markdown and HTML escaped."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return re.sub(r"([\\`*_{}\[\]#|!~])", r"\\\1", escape(shown, quote=False))


def html(title: str, parts: Card) -> str:
    """Return the card as one HTML page that loads no other file."""
    return page(
        title,
        element("h1", title),
        *(section(heading, *map(_block, blocks)) for heading, blocks in parts),
        element("footer", element("p", "Computed from released values and public facts; the page loads nothing.")),
    )


def _block(block: Block) -> Markup:
    if isinstance(block, str):
        return element("p", block)
    return table(block.head if any(block.head) else (), list(block.rows))
