"""Checks of solver options, each with an error message in one sentence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.arguments import require_number
from vfl.errors import WITHOUT_PRIVACY, PrivacyError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.problem import Problem


def require_whole(solver: str, option: str, value: int | None) -> None:
    """Raise SpecificationError unless value is None or a whole number of at least 1."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise SpecificationError(f"{solver}: {option} must be a whole number of at least 1, not {value!r}")


def require_positive(solver: str, option: str, value: float | None, *, infinite: bool = False) -> None:
    """Raise SpecificationError unless value is None or positive, and finite unless `infinite` allows inf."""
    if value is not None:
        require_number(f"{solver}: {option}", value)
    if value is not None and not (value > 0 and (infinite or math.isfinite(value))):
        finite = "" if infinite else " and finite"
        raise SpecificationError(f"{solver}: {option} must be positive{finite}, not {value!r}")


def require_one_of(solver: str, option: str, value: str | None, known: Sequence[str]) -> None:
    """Raise SpecificationError unless value is None or a known word."""
    if value is not None and value not in known:
        raise SpecificationError(
            f"{solver}: {option} must be one of {', '.join(known)}, not {value!r}{nearest(str(value), known)}"
        )


def require_clip(solver: str, problem: Problem, clip: float | None) -> None:
    """Raise PrivacyError for a private run without a finite clip."""
    if problem.private and clip == math.inf:
        raise PrivacyError(f"{solver}: clip=inf bounds no record's influence: give a finite clip, or {WITHOUT_PRIVACY}")
