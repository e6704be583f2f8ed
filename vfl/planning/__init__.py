"""Plan of a run: everything that follows from public facts, decided before any data are read.

`run_plan` decides, `cost` and `forecast` say what to expect, and `certificate` states and verifies what a run has released.
Begin with `run_plan`.
"""

from __future__ import annotations

from vfl.planning.forecast import Forecast, forecast
from vfl.planning.public_problem import layout_of, problem_of
from vfl.planning.quality import Range
from vfl.planning.run_plan import Plan, cheapest, check, evaluations_of, plan, warnings_of

__all__ = [
    "Forecast",
    "Plan",
    "Range",
    "cheapest",
    "check",
    "evaluations_of",
    "forecast",
    "layout_of",
    "plan",
    "problem_of",
    "warnings_of",
]
