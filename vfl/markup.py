"""HTML tables and lines for notebooks. All text is escaped, since names of columns, parties and jobs are arbitrary."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a table; numbers are right-aligned."""

    text: str
    number: bool = False


def line(text: str, *, strong: bool = False) -> str:
    """Return a paragraph of text."""
    inner = f"<strong>{escape(text)}</strong>" if strong else escape(text)
    return f'<p style="margin:0.3em 0">{inner}</p>'


def table(head: Sequence[str | Cell], rows: Iterable[Sequence[str | Cell]]) -> str:
    """Return a table, with a heading unless `head` is empty; every cell is text."""
    lines = [_row("th", head)] if head else []
    lines += [_row("td", row) for row in rows]
    return "<table>" + "".join(f"<tr>{inner}</tr>" for inner in lines) + "</table>"


def whole(*parts: str) -> str:
    """Return one HTML element that contains the parts."""
    return "<div>" + "".join(parts) + "</div>"


def _row(tag: str, cells: Sequence[str | Cell]) -> str:
    return "".join(_cell(tag, cell if isinstance(cell, Cell) else Cell(cell)) for cell in cells)


def _cell(tag: str, cell: Cell) -> str:
    align = "right" if cell.number else "left"
    return f'<{tag} style="text-align:{align};vertical-align:top">{escape(cell.text)}</{tag}>'
