"""Checks of solver options, and access to options by name."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from vfl.errors import WITHOUT_PRIVACY, PrivacyError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.problem import Problem


def require_whole(solver: str, option: str, value: int | None) -> None:
    """Raise SpecificationError unless value is None or a whole number of at least 1."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise SpecificationError(f"{solver}: {option} must be a whole number of at least 1, not {value!r}")


def require_one_of(solver: str, option: str, value: str | None, known: Sequence[str]) -> None:
    """Raise SpecificationError unless value is None or one of `known`."""
    if value is not None and value not in known:
        raise SpecificationError(
            f"{solver}: {option} must be one of {', '.join(known)}, not {value!r}{nearest(str(value), known)}"
        )


def require_clip(solver: str, problem: Problem, clip: float | str | None) -> None:
    """Raise PrivacyError for a private run without a finite clip."""
    if problem.private and clip == math.inf:
        raise PrivacyError(f"{solver}: clip=inf bounds no record's influence: give a finite clip, or {WITHOUT_PRIVACY}")


def require_groups(problem: Problem) -> None:
    """Raise SpecificationError for a group penalty without named blocks."""
    if problem.penalty.grouped and problem.layout.explicit is None:
        raise SpecificationError(
            f"the {problem.penalty.name} penalty groups columns by the partition's blocks: name them, "
            "FeaturePartition(..., blocks=...)"
        )


def options_of(solver: Any) -> dict[str, Any]:
    """Return {name: value} of all options; nested options are named like 'shares.early_share'."""
    found: dict[str, Any] = {}
    for f in fields(solver):
        value = getattr(solver, f.name)
        nested = is_dataclass(value) and not isinstance(value, type)
        found |= {f"{f.name}.{name}": one for name, one in options_of(value).items()} if nested else {f.name: value}
    return found
