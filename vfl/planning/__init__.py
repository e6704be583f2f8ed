"""The plan of a run: everything that public facts decide, before any data is touched."""

from __future__ import annotations

from vfl.planning.run_plan import (
    MANY,
    Plan,
    check,
    inquiries_of,
    layout_of,
    plan,
    problem_of,
    recommend,
    unnoised,
    warnings_of,
)

__all__ = [
    "MANY",
    "Plan",
    "check",
    "inquiries_of",
    "layout_of",
    "plan",
    "problem_of",
    "recommend",
    "unnoised",
    "warnings_of",
]
