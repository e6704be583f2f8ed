"""Parts of dates as features."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vfl.base.arguments import flag, option
from vfl.base.columns import repeated
from vfl.base.features.base import UNDECLARED, OfCells
from vfl.base.features.formula import NO_DATE, UNKNOWN, Case, Condition, apply, clipped
from vfl.base.features.numbers import circle, on_circle
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vfl.base.columns import Bounds
    from vfl.base.features.formula import Cell, Formula
    from vfl.base.types import Vector

PARTS: Mapping[str, tuple[float, float]] = {
    "year": (1.0, 9999.0),
    "quarter": (1.0, 4.0),
    "month": (1.0, 12.0),
    "day": (1.0, 31.0),
    "weekday": (0.0, 6.0),
    "yearday": (1.0, 366.0),
    "hour": (0.0, 23.0),
    "minute": (0.0, 59.0),
    "days": (0.0, math.inf),
}
"""Parts of a date, with their ranges. The ranges of 'year' and 'days' follow from the declared bounds instead."""
PERIODIC = ("quarter", "month", "day", "weekday", "yearday", "hour", "minute")


@dataclass(frozen=True, slots=True)
class DateParts(OfCells):
    """Parts of a date, one coordinate per part. Range: the range of the part, for instance [1, 12] for the month.

    The year is within the years of the bounds. 'days' counts days from the first date, so it is at most the length of the
    bounds. Times are used as written, without conversion between time zones.

    parts : any of 'year', 'quarter', 'month', 'day', 'weekday' (Monday is 0), 'yearday', 'hour', 'minute', 'days'.
    bounds : (first, last) date, as ISO text or dates. Earlier and later dates are clamped.
    cyclic : True to replace each periodic part by two coordinates within [−1, 1]: sin and cos of its position in the cycle.
    unknown : treatment of text that is not a date, such as '2020-02-30': 'refuse' (an error at the owner) or 'missing'.
    fill : date that replaces missing cells. of, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "date"
    content: ClassVar[str] = "date"
    parts: tuple[str, ...] = ()
    bounds: tuple[str, str] = ("1900-01-01", "2100-01-01")
    cyclic: bool = option(flag, False)
    unknown: str = option(UNDECLARED, "refuse")

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple | list) or not self.parts:
            raise SpecificationError(f"parts are a list of at least one of {', '.join(PARTS)}, not {self.parts!r}")
        for part in self.parts:
            if part not in PARTS:
                raise SpecificationError(
                    f"unknown part {part!r} of a date{nearest(str(part), PARTS)}; known: {', '.join(PARTS)}"
                )
        if twice := repeated(self.parts):
            raise SpecificationError(f"part {twice!r} is named twice")
        object.__setattr__(self, "parts", tuple(self.parts))
        if not isinstance(self.bounds, tuple | list) or len(self.bounds) != 2:
            raise SpecificationError(f"bounds of a date are two dates, the first and the last, not {self.bounds!r}")
        object.__setattr__(self, "bounds", tuple(_date_text(date) for date in self.bounds))
        first, last = self._ends
        if first >= last:
            raise SpecificationError(f"bounds of a date are two dates, the earlier one first, not {self.bounds!r}")
        if "year" in self.parts and first.astype("M8[Y]") == last.astype("M8[Y]"):
            raise SpecificationError(
                "both bounds lie in one year, so the part 'year' would be constant: leave 'year' out of parts"
            )
        if self.fill is not None:
            object.__setattr__(self, "fill", _date_text(self.fill))
        OfCells.__post_init__(self)

    def _turns(self, part: str) -> bool:
        return self.cyclic and part in PERIODIC

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column.part' for each part; for a periodic part with `cyclic`, 'column.part.sin' and 'column.part.cos'."""
        names = [on_circle(f"{column}.{p}") if self._turns(p) else (f"{column}.{p}",) for p in self.parts]
        return tuple(name for pair in names for name in pair)

    @property
    def _ends(self) -> tuple[np.datetime64, np.datetime64]:
        first, last = (np.datetime64(text, "s") for text in self.bounds)
        return first, last

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return the range of each coordinate."""
        first, last = self._ends
        years = tuple(float(end.astype("M8[Y]").astype(int) + 1970) for end in (first, last))
        own: dict[str, Bounds] = {
            **PARTS,
            "year": (years[0], years[1]),
            "days": (0.0, float((last - first) / np.timedelta64(1, "D"))),
        }
        found = [((-1.0, 1.0),) * 2 if self._turns(part) else (own[part],) for part in self.parts]
        return tuple(limits for pair in found for limits in pair)

    def filled_cell(self) -> Any:
        """Return the date, (1,), that replaces a missing cell."""
        return np.array(["NaT" if self.fill is None else self.fill], dtype="M8[s]")

    def undeclared(self, cell: Cell) -> Formula:
        """Return a formula that is 1 for a cell that is not a date, and 0 for a date."""
        return Case(((Condition("less", cell, NO_DATE / 2), 0.0),), 1.0)

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return the formula of each coordinate, from days since 1 March of year 0 (Hinnant, days_from_civil)."""
        first, last = (float(end.astype(int)) for end in self._ends)
        none = (Condition("less", NO_DATE / 2, cell), Condition("less", cell, -NO_DATE / 2))
        seconds = Case(tuple((one, UNKNOWN) for one in none), clipped(cell, first, last))
        found: list[Formula] = []
        for part in self.parts:
            x = _formula(seconds, part, first)
            if self._turns(part):
                low, high = PARTS[part]
                angle = apply("multiply", apply("subtract", x, low), 2 * math.pi / (high - low + 1))
                found += [apply("sin", angle), apply("cos", angle)]
            else:
                found.append(x)
        return found

    def _made(self, values: Any) -> Iterator[Vector]:
        first, last = self._ends
        missing = np.isnat(values)
        dates = np.clip(np.where(missing, first, values), first, last)
        for part in self.parts:
            vector = _part(dates, part, first)
            vector[missing] = np.nan
            if self._turns(part):
                low, high = PARTS[part]
                yield from circle((vector - low) * (2 * math.pi / (high - low + 1)))
            else:
                yield vector


def _part(dates: Any, part: str, first: np.datetime64) -> Vector:
    years, months, days = (dates.astype(f"M8[{unit}]") for unit in "YMD")
    seconds = (dates - days).astype(np.int64)
    numbers: dict[str, Any] = {
        "year": lambda: years.astype(int) + 1970,
        "month": lambda: months.astype(int) % 12 + 1,
        "quarter": lambda: months.astype(int) % 12 // 3 + 1,
        "day": lambda: (days - months.astype("M8[D]")).astype(int) + 1,
        "weekday": lambda: (days.astype(int) + 3) % 7,
        "yearday": lambda: (days - years.astype("M8[D]")).astype(int) + 1,
        "hour": lambda: seconds // 3600,
        "minute": lambda: seconds // 60 % 60,
        "days": lambda: (dates - first) / np.timedelta64(1, "D"),
    }
    return np.asarray(numbers[part](), dtype=np.float64)


def _formula(seconds: Formula, part: str, first: float) -> Formula:
    """Return the formula of one part of a date. seconds : formula of the seconds since 1970."""
    if part == "days":
        return apply("divide", apply("subtract", seconds, first), 86400.0)
    days = _floor(seconds, 86400.0)
    if part in ("hour", "minute"):
        within = apply("subtract", seconds, apply("multiply", days, 86400.0))
        return _floor(within, 3600.0) if part == "hour" else _floor(apply("remainder", within, 3600.0), 60.0)
    since = apply("add", days, 719468.0)
    if part == "weekday":
        return apply("remainder", apply("add", since, 2.0), 7.0)
    of_era = apply("remainder", since, 146097.0)
    century = _floor(apply("add", apply("multiply", of_era, 4.0), 3.0), 146097.0)
    of_century = apply("subtract", of_era, _floor(apply("multiply", century, 146097.0), 4.0))
    year = _floor(apply("add", apply("multiply", of_century, 4.0), 3.0), 1461.0)
    of_year = apply("subtract", of_century, _floor(apply("multiply", year, 1461.0), 4.0))
    month = _floor(apply("add", apply("multiply", of_year, 5.0), 2.0), 153.0)  # 0 is March
    in_march_to_december = Condition("less", of_year, 306.0)
    if part == "day":
        before = _floor(apply("add", apply("multiply", month, 153.0), 2.0), 5.0)
        return apply("add", apply("subtract", of_year, before), 1.0)
    if part in ("month", "quarter"):
        number = apply("add", apply("remainder", apply("add", month, 2.0), 12.0), 1.0)
        return number if part == "month" else _floor(apply("add", number, 2.0), 3.0)
    if part == "year":
        centuries = apply("add", apply("multiply", _floor(since, 146097.0), 4.0), century)
        began = apply("add", apply("multiply", centuries, 100.0), year)
        return apply("add", began, Case(((in_march_to_december, 0.0),), 1.0))
    common = Case(((Condition("less", century, 1.0), 0.0),), 1.0)
    leap = (Condition("less", apply("remainder", year, 4.0), 1.0), 1.0)
    more = Case(((Condition("less", year, 1.0), apply("subtract", 1.0, common)), leap), 0.0)
    in_year = apply("add", apply("add", of_year, 60.0), more)
    return Case(((in_march_to_december, in_year),), apply("subtract", of_year, 305.0))


def _floor(x: Formula, by: float) -> Formula:
    return apply("floor", apply("divide", x, by))


def _date_text(date: Any) -> str:
    try:
        found = dt.datetime.fromisoformat(date) if isinstance(date, str) else date
        if not isinstance(found, dt.date):
            raise ValueError  # noqa: TRY301, TRY004 - one error for all that is no date
        return (
            found.replace(tzinfo=None, microsecond=0).isoformat()
            if isinstance(found, dt.datetime)
            else found.isoformat()
        )
    except ValueError:
        raise SpecificationError(f"a date is ISO text such as '2026-01-31', not {date!r}") from None
