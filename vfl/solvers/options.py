"""Checks of solver options, and reading of options by name."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from vfl.arguments import require_number
from vfl.errors import WITHOUT_PRIVACY, PrivacyError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.problem import Problem


def require_whole(solver: str, option: str, value: int | None, least: int = 1, *, optional: bool = True) -> None:
    """Raise SpecificationError unless value is a whole number of at least `least`. None is allowed if `optional`."""
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecificationError(f"{solver}: {option} must be a whole number of at least {least}, not {value!r}")


def require_one_of(solver: str, option: str, value: str | None, known: Sequence[str], *, optional: bool = True) -> None:
    """Raise SpecificationError unless value is one of `known`. None is allowed if `optional`."""
    if value not in known and not (optional and value is None):
        raise SpecificationError(
            f"{solver}: {option} must be one of {', '.join(known)}, not {value!r}{nearest(str(value), known)}"
        )


def require_share(solver: str, option: str, share: float | None) -> None:
    """Raise SpecificationError unless the share is None or a number in [0, 1)."""
    if share is None:
        return
    require_number(f"{solver}: {option}", share)
    if not 0.0 <= share < 1.0:
        raise SpecificationError(f"{solver}: {option} must lie between 0 and 1, without 1, not {share!r}")


def require_clip(solver: str, problem: Problem, clip: float | str | None) -> None:
    """Raise PrivacyError if a private run has no finite clip."""
    if problem.private and clip == math.inf:
        raise PrivacyError(f"{solver}: clip=inf bounds no record's influence: give a finite clip, or {WITHOUT_PRIVACY}")


def require_groups(problem: Problem) -> None:
    """Raise SpecificationError for a group penalty if the partition names no blocks."""
    if problem.penalty.grouped and problem.layout.explicit is None:
        raise SpecificationError(
            f"the {problem.penalty.name} penalty groups columns by the partition's blocks: name them, "
            "FeaturePartition(..., blocks=...)"
        )


def options_of(solver: Any) -> dict[str, Any]:
    """Return {name: value} of all options. Nested options have names such as 'shares.early_share'."""
    found: dict[str, Any] = {}
    for f in fields(solver):
        value = getattr(solver, f.name)
        nested = is_dataclass(value) and not isinstance(value, type)
        found |= {f"{f.name}.{name}": one for name, one in options_of(value).items()} if nested else {f.name: value}
    return found
