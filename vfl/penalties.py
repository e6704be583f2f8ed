"""Penalties of a job."""

from __future__ import annotations

from vfl.base.penalties import L1 as L1
from vfl.base.penalties import L2 as L2
from vfl.base.penalties import Box as Box
from vfl.base.penalties import ElasticNet as ElasticNet
from vfl.base.penalties import GroupLasso as GroupLasso
from vfl.base.penalties import NoPenalty as NoPenalty
from vfl.base.penalties import Penalty as Penalty
