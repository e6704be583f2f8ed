"""Checks of arguments. Each check raises an error with a remedy instead of Python's own error."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import numbers
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Check: TypeAlias = Callable[[str, Any], Any]
"""Check of one value: return the value, as the type that it has to have, or raise an error that begins with the argument."""


T = TypeVar("T")
MOVED = {
    "shares": "details (vfl.solvers.Details, [solver.details] of a job file)",
    "inference": "intervals of the job, above the tables of a job file",
    "cores": "num_cpus",
    "wait_seconds": "wait_timeout_s",
    "answer_seconds": "answer_timeout_s",
    "ready_seconds": "ready_timeout_s",
    "secure": "trust (vfl.federation.Secure, [trust] of a job file)",
    "id_kind": 'id = vfl.columns.Id("COLUMN", kind="integer"), { column = "COLUMN", kind = "integer" } in a job file',
    "sparse": "sparse of vfl.FeaturePartition ([partition] of a job file)",
    **dict.fromkeys(("storage", "margins"), 'precision of the job, "float32"'),
    "fill": "fill of the column in columns (vfl.Numeric(fill=VALUE), fill = VALUE under [columns.COLUMN] of a job file)",
}
"""Former options, for errors."""
_TAKERS: dict[str, tuple[str, ...]] = {}
"""Options of each class that `explained` has seen."""


def explained(specification: type[T]) -> type[T]:
    """Let a class refuse unknown and missing keywords by a SpecificationError that names the right place or option."""
    init: Any = specification.__init__
    parameters = [*inspect.signature(init).parameters.values()][1:]
    known = tuple(p.name for p in parameters)
    needed = [p.name for p in parameters if p.default is p.empty]
    _TAKERS[specification.__name__] = known

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        for key in given:
            if key not in known:
                homes = [taker for taker, takes in _TAKERS.items() if key in takes]
                where = f"; it is an option of {' or '.join(homes)}" if homes else moved(key)
                close = where or nearest(key, known)
                raise SpecificationError(
                    f"{specification.__name__} has no option {key!r}{close}; known: {', '.join(known)}"
                )
        missing = [name for name in needed if name not in given and name not in known[: len(args)]]
        if missing:
            raise SpecificationError(f"{specification.__name__} needs {' and '.join(missing)}")
        init(self, *args, **given)

    specification.__init__ = checked  # type: ignore[method-assign]
    return specification


def moved(key: str) -> str:
    """Return a clause with the present place of a former option; '' for any other name."""
    return f"; it is now {MOVED[key]}" if key in MOVED else ""


def named(
    argument: str,
    name: str,
    known: Mapping[str, T],
    where: str = "",
    error: type[SpecificationError] = SpecificationError,
) -> T:
    """Return the value of a name, in any case and with or without '_'. The error names the nearest known names."""
    plain = {other.casefold().replace("_", ""): value for other, value in known.items()}
    found = plain.get(name.casefold().replace("_", ""))
    if found is None:
        listed = ", ".join(sorted(known))
        raise error(f"unknown {argument} {name!r}{where}{nearest(name, known)}; known: {listed}")
    return found


def option(check: Check, default: Any = MISSING) -> Any:
    """Return a field of a frozen dataclass with the check that `check_options` runs on its value."""
    return field(default=default, metadata={"check": check})


def check_options(specification: Any, where: str = "") -> None:
    """Run the checks of all fields made by `option`. None passes where the annotation of the field allows it.

    Equal values then make equal specifications with equal digests, and compiled loops see one type: a check of real numbers
    returns floats, also for clip=1 and for NumPy's numbers.

    where : beginning of the argument's name in errors, such as "GD: ".
    """
    for f in fields(specification):
        value = getattr(specification, f.name)
        if "check" in f.metadata and not (value is None and "None" in str(f.type)):
            object.__setattr__(specification, f.name, f.metadata["check"](f"{where}{f.name}", value))


def package(name: str, extra: str, what: str) -> Any:
    """Import a module of an optional package. SpecificationError names the extra to install. what : feature that needs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        top = name.partition(".")[0]
        raise SpecificationError(f"{what} needs {top}, which is not installed: pip install 'vfl[{extra}]'") from None


def require(argument: str, value: Any, wanted: str, *, fits: bool) -> None:
    """Raise SpecificationError "ARGUMENT must be WANTED, not VALUE" unless `fits` is true. Long values are shortened."""
    if not fits:
        raise SpecificationError(f"{argument} must be {wanted}, not {reprlib.repr(value)}")


def require_number(argument: str, value: Any) -> float:
    """Return a real number as float. Booleans are refused, too. For text like "1.5" the error names the number."""
    spelt = f", {value.strip()}" if isinstance(value, str) and _spells_number(value) else ""
    fits = isinstance(value, numbers.Real) and not isinstance(value, bool)
    require(argument, value, f"a number{spelt}", fits=fits)
    return float(value)


def require_positive(
    argument: str,
    value: Any,
    *,
    infinite: bool = False,
    error: type[SpecificationError] = SpecificationError,
    remedy: str = "",
) -> float:
    """Return a positive number as float; inf is accepted only if `infinite`. Refuse any other value."""
    require_number(argument, value)
    if not (value > 0 and (infinite or math.isfinite(value))):
        finite = "" if infinite else " and finite"
        raise error(f"{argument} must be positive{finite}, not {value!r}{remedy}")
    return float(value)


def require_fraction(
    argument: str, value: Any, error: type[SpecificationError] = SpecificationError, remedy: str = ""
) -> float:
    """Return a number strictly between 0 and 1 as float. Refuse any other value."""
    require_number(argument, value)
    if not 0 < value < 1:
        raise error(f"{argument} must lie strictly between 0 and 1, not {value!r}{remedy}")
    return float(value)


def that(
    fits: Callable[[Any], bool],
    wanted: str,
    error: type[SpecificationError] = SpecificationError,
    known: Iterable[str] = (),
) -> Check:
    """Return the check of a value for which `fits` holds. The error is "ARGUMENT WANTED, not VALUE (NEAREST KNOWN)"."""

    def check(argument: str, value: Any) -> Any:
        if not fits(value):
            raise error(f"{argument} {wanted}, not {reprlib.repr(value)}{nearest(str(value), known)}")
        return value

    return check


def number(fits: Callable[[float], bool], wanted: str, error: type[SpecificationError] = SpecificationError) -> Check:
    """Return the check of a number for which `fits` holds. It returns a float; see `that`."""

    def check(argument: str, value: Any) -> float:
        require_number(argument, value)
        return float(that(fits, wanted, error)(argument, value))

    return check


def whole(least: int = 1, most: float = math.inf, wanted: str = "") -> Check:
    """Return the check of an int from `least` to `most`. wanted : as for `that`, unless the default fits."""
    return that(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
        wanted or f"must be a whole number of at least {least}",
    )


def one_of(known: Sequence[Any], wanted: str = "", error: type[SpecificationError] = SpecificationError) -> Check:
    """Return the check of one of the known values. wanted : as for `that`; '' lists the values, which are texts."""
    listed = () if wanted else known
    return that(lambda value: value in known, wanted or f"must be one of {', '.join(listed)}", error, listed)


flag = that(lambda value: isinstance(value, bool), "must be True or False")
CLIP = partial(require_positive, infinite=True)
SHARE = number(lambda share: 0.0 <= share < 1.0, "must lie between 0 and 1, without 1")


def require_whole(argument: str, value: Any) -> int:
    """Return an integer. Refuse a value that is none. For 1000.0 the error names 1000."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    spelt = ""
    if not whole and isinstance(value, str | numbers.Real) and _spells_number(value) and float(value).is_integer():
        spelt = f", {int(float(value))}"
    require(argument, value, f"a whole number{spelt}", fits=whole)
    return int(value)


def require_count(argument: str, value: Any) -> int:
    """Return a whole number of at least 1. Refuse any other value."""
    require(argument, value, "a whole number of at least 1", fits=require_whole(argument, value) >= 1)
    return int(value)


def provides(value: Any, names: Iterable[str]) -> bool:
    """Return True if an instance has all attributes that a protocol requires."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def _spells_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and abs(float(value)) < float("inf")
    except ValueError:
        return False
