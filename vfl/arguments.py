"""What an argument may be: a sentence with the remedy for one of another type, in place of Python's own error."""

from __future__ import annotations

import numbers
import reprlib
from typing import TYPE_CHECKING, Any

from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterable


def require(argument: str, value: Any, wanted: str, *, fits: bool) -> None:
    """Raise SpecificationError "ARGUMENT must be WANTED, not VALUE" unless it fits; values that are long are cut."""
    if not fits:
        raise SpecificationError(f"{argument} must be {wanted}, not {reprlib.repr(value)}")


def require_number(argument: str, value: Any) -> None:
    """Refuse what is no real number; a truth value is none, and text that spells a number is named with the number."""
    spelt = f", {value.strip()}" if isinstance(value, str) and _spells_number(value) else ""
    fits = isinstance(value, numbers.Real) and not isinstance(value, bool)
    require(argument, value, f"a number{spelt}", fits=fits)


def require_whole(argument: str, value: Any) -> None:
    """Refuse what is no whole number of an integer type; 1000.0 is named with 1000."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    spelt = ""
    if not whole and isinstance(value, str | numbers.Real) and _spells_number(value) and float(value).is_integer():
        spelt = f", {int(float(value))}"
    require(argument, value, f"a whole number{spelt}", fits=whole)


def provides(value: Any, names: Iterable[str]) -> bool:
    """Return whether a value, no class, has all of these attributes: what a protocol asks of it."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def _spells_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and abs(float(value)) < float("inf")
    except ValueError:
        return False
