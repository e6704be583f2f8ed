"""Declarations of columns and ids, and features that an owner computes from its columns."""

from __future__ import annotations

from vfl.base.columns import Boolean as Boolean
from vfl.base.columns import Categorical as Categorical
from vfl.base.columns import Dropped as Dropped
from vfl.base.columns import Numeric as Numeric
from vfl.base.features import Aggregate as Aggregate
from vfl.base.features import Binned as Binned
from vfl.base.features import Curve as Curve
from vfl.base.features import Cyclic as Cyclic
from vfl.base.features import DateParts as DateParts
from vfl.base.features import Hashed as Hashed
from vfl.base.features import Log as Log
from vfl.base.features import Ordinal as Ordinal
from vfl.base.features import Pair as Pair
from vfl.base.features import Power as Power
from vfl.base.features import Scaled as Scaled
from vfl.base.features import Spline as Spline
from vfl.crypto.identifiers import Id as Id
