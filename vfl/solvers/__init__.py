"""Solvers as schedules of queries, one module each; `SOLVERS` names those that a job may ask for."""

from __future__ import annotations

from vfl.solvers.gcd import GCD as GCD
from vfl.solvers.skgd import SkGD as SkGD

SOLVERS = {solver.name: solver for solver in (SkGD, GCD)}
