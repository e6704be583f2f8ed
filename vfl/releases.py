"""Releases about columns, each a run with an ε of its own."""

from __future__ import annotations

from vfl.launch.paid_releases.paid_release import private_bounds as private_bounds
from vfl.launch.paid_releases.paid_release import private_quantiles as private_quantiles
from vfl.launch.paid_releases.woe import woe as woe
