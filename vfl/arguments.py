"""Checks of arguments. Each check raises an error with a remedy instead of Python's own error."""

from __future__ import annotations

import importlib
import math
import numbers
import reprlib
from typing import TYPE_CHECKING, Any

from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterable


def package(name: str, extra: str, what: str) -> Any:
    """Import a module of an optional package. SpecificationError names the extra that installs it. what : what needs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        top = name.partition(".")[0]
        raise SpecificationError(f"{what} needs {top}, which is not installed: pip install 'vfl[{extra}]'") from None


def require(argument: str, value: Any, wanted: str, *, fits: bool) -> None:
    """Raise SpecificationError "ARGUMENT must be WANTED, not VALUE" unless `fits` is true. Long values are shortened."""
    if not fits:
        raise SpecificationError(f"{argument} must be {wanted}, not {reprlib.repr(value)}")


def require_number(argument: str, value: Any) -> None:
    """Refuse a value that is not a real number. Booleans are refused, too. For text like "1.5" the error names the number."""
    spelt = f", {value.strip()}" if isinstance(value, str) and _spells_number(value) else ""
    fits = isinstance(value, numbers.Real) and not isinstance(value, bool)
    require(argument, value, f"a number{spelt}", fits=fits)


def require_positive(
    argument: str,
    value: Any,
    *,
    optional: bool = False,
    infinite: bool = False,
    error: type[SpecificationError] = SpecificationError,
    remedy: str = "",
) -> None:
    """Refuse a value that is not a positive number. None is accepted only if `optional`, and inf only if `infinite`."""
    if optional and value is None:
        return
    require_number(argument, value)
    if not (value > 0 and (infinite or math.isfinite(value))):
        finite = "" if infinite else " and finite"
        raise error(f"{argument} must be positive{finite}, not {value!r}{remedy}")


def require_fraction(
    argument: str, value: Any, error: type[SpecificationError] = SpecificationError, remedy: str = ""
) -> None:
    """Refuse a value that is not a number strictly between 0 and 1."""
    require_number(argument, value)
    if not 0 < value < 1:
        raise error(f"{argument} must lie strictly between 0 and 1, not {value!r}{remedy}")


def as_floats(specification: Any, *options: str) -> None:
    """Check that the numeric options of a frozen specification are numbers, and replace them by floats.

    `clip=1`, `clip=1.0` and NumPy's numbers then give equal specifications with equal digests, and compiled loops see one type.
    """
    for option in options:
        value = getattr(specification, option)
        if not isinstance(value, bool) and isinstance(value, numbers.Real):
            object.__setattr__(specification, option, float(value))


def require_whole(argument: str, value: Any) -> None:
    """Refuse a value that is not an integer. For 1000.0 the error names 1000."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    spelt = ""
    if not whole and isinstance(value, str | numbers.Real) and _spells_number(value) and float(value).is_integer():
        spelt = f", {int(float(value))}"
    require(argument, value, f"a whole number{spelt}", fits=whole)


def require_count(argument: str, value: Any) -> None:
    """Refuse a value that is not a whole number of at least 1."""
    require_whole(argument, value)
    require(argument, value, "a whole number of at least 1", fits=value >= 1)


def provides(value: Any, names: Iterable[str]) -> bool:
    """Return True if an instance has all attributes that a protocol requires."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def _spells_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and abs(float(value)) < float("inf")
    except ValueError:
        return False
