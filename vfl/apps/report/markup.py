"""HTML and SVG that are safe to show: `element` escapes every child that is not `Markup`."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

STYLE = Path(__file__).with_name("style.css")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: the page loads and runs nothing, even if foreign markup gets into the page."""

_VOID = {"br", "meta", "input", "rect", "line", "path", "circle"}
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Characters that XML forbids, and characters that change the direction of text."""


class Markup(str):
    """Text that is markup already and is not escaped again. Every other `str` is plain text."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | None"


def text(plain: str) -> Markup:
    """Return plain text as markup."""
    if isinstance(plain, Markup):
        return plain
    return Markup(html.escape(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", plain)))


def element(tag: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """Return an element. Plain children and all attributes are escaped; attributes and children that are None are left out.

    attributes : `class_` becomes class, and `stroke_width` stroke-width. Numbers get four decimals.
    """
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{text(value if isinstance(value, str) else number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    start = f"<{tag}{''.join(pairs)}"
    if tag in _VOID and not children:
        return Markup(start + "/>")
    return Markup(f"{start}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Return the children joined as one markup."""
    return Markup("".join(text(child) for child in children if child is not None))


def number(value: float) -> str:
    """Return the text of a coordinate with at most four decimals, finer than the pixels of a screen."""
    return f"{value:.4f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def style() -> Markup:
    """Return the style sheet as an element; the sheet is constant and needs no escaping."""
    return Markup(f"<style>{STYLE.read_text(encoding='utf-8')}</style>")


def page(title: str, *body: Child, policy: str | None = POLICY, more: Child = None) -> str:
    """Return a whole HTML file. policy : content security policy; None if HTTP headers set it. more : last part of <head>."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        None if policy is None else element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        style(),
        more,
    )
    return f"<!doctype html>\n{element('html', head, element('body', element('main', *body)), lang='en')}\n"


def section(heading: str, *children: Child) -> Markup:
    """Return a section under its heading."""
    return element("section", element("h2", heading), *children)


def remark(*said: Child) -> Markup:
    """Return a paragraph in small print."""
    return element("p", *said, class_="note")


def details(summary: str, content: Markup) -> Markup:
    """Return content that is folded under a summary until a reader opens it."""
    return element("details", element("summary", summary), content)


def table(head: tuple[str, ...], rows: Sequence[tuple[Child, ...]], *, numbers: tuple[int, ...] = ()) -> Markup:
    """Return a table that scrolls if it is wider than the screen.

    numbers : columns to align right.
    """

    def cell(kind: str, column: int, child: Child) -> Markup:
        return element(kind, child, class_="number" if column in numbers else None)

    lines = [element("tr", *(cell("td", k, child) for k, child in enumerate(row))) for row in rows]
    header = element("thead", element("tr", *(cell("th", k, name) for k, name in enumerate(head)))) if head else None
    return element("div", element("table", header, element("tbody", *lines)), class_="scroll")
