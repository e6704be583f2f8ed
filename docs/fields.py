"""An extension of griffe: lines `name : what it is` in a docstring become a list, and fields show their defaults."""

from __future__ import annotations

import re
from typing import Any

import griffe

FIELD = re.compile(r"^(?P<names>[^\s:`][^:`]{0,80}?) : (?P<said>.*)$")


class Fields(griffe.Extension):
    """Rewrites docstrings as they are read; the sources stay as they are."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Show the default of a field with a check (vfl.base.arguments.option)."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "option":
            attr.value = value.arguments[1] if len(value.arguments) > 1 else None


def listed(text: str) -> str:
    """Return the text with its fields as items, and underlined sections as bold lines."""
    lines: list[str] = []
    for line in text.splitlines():
        field = FIELD.match(line)
        if set(line) == {"-"} and lines:
            lines[-1] = f"**{lines[-1]}**"
            lines.append("")
        elif field:
            if lines and lines[-1] and not lines[-1].startswith(("- ", "    ")):
                lines.append("")
            lines.append(f"- `{field['names']}` : {field['said']}")
        else:
            lines.append(line)
    return "\n".join(lines)
