"""HTML tables and lines for notebooks. All text is escaped, since names of columns, parties and jobs are arbitrary."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


def line(text: str, *, strong: bool = False) -> str:
    """Return a paragraph of text."""
    inner = f"<strong>{escape(text)}</strong>" if strong else escape(text)
    return f'<p style="margin:0.3em 0">{inner}</p>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Return a table, with a heading row unless `head` is empty. numbers : positions of the columns to align right."""

    def row(tag: str, cells: Sequence[str]) -> str:
        sides = ("right" if k in numbers else "left" for k in range(len(cells)))
        styled = (f'<{tag} style="text-align:{side};vertical-align:top">' for side in sides)
        return "".join(f"{start}{escape(text)}</{tag}>" for start, text in zip(styled, cells, strict=True))

    lines = [row("th", head)] if head else []
    lines += [row("td", cells) for cells in rows]
    return "<table>" + "".join(f"<tr>{inner}</tr>" for inner in lines) + "</table>"


def whole(*parts: str) -> str:
    """Return one HTML element that contains the parts."""
    return "<div>" + "".join(parts) + "</div>"
