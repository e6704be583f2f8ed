"""Features that an owner computes from its columns. Features are declared in the public job, independently of the records.

A feature is a column of the partition that the column's party computes from another column, record by record. Each kind of
feature states the range of its coordinates. This range follows only from the declaration and holds for every cell. Scaling and
sensitivities use it like the declared bounds of a number, so a feature changes no guarantee.

    partition = FeaturePartition({"bank": ["income", "age", "age_group"]}, label=("bank", "default"))
    columns = {"age_group": Binned((25, 40, 60), of="age")}
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from vfl.base.features.aggregate import Aggregate as Aggregate
from vfl.base.features.base import Feature as Feature
from vfl.base.features.base import OfCells as OfCells
from vfl.base.features.curve import Curve as Curve
from vfl.base.features.dates import PARTS as PARTS
from vfl.base.features.dates import DateParts as DateParts
from vfl.base.features.numbers import Binned as Binned
from vfl.base.features.numbers import Cyclic as Cyclic
from vfl.base.features.numbers import Log as Log
from vfl.base.features.numbers import Power as Power
from vfl.base.features.numbers import Scaled as Scaled
from vfl.base.features.numbers import Spline as Spline
from vfl.base.features.products import Crossed as Crossed
from vfl.base.features.products import Pair as Pair
from vfl.base.features.products import Side as Side
from vfl.base.features.products import contents_of as contents_of
from vfl.base.features.products import curves_in as curves_in
from vfl.base.features.products import own_of as own_of
from vfl.base.features.products import placed as placed
from vfl.base.features.products import ranges_of as ranges_of
from vfl.base.features.text import Hashed as Hashed
from vfl.base.features.text import Ordinal as Ordinal
from vfl.base.features.text import murmur as murmur

FeatureKind: TypeAlias = (
    Binned | Curve | Spline | Log | Power | Scaled | Cyclic | Ordinal | Hashed | DateParts | Aggregate | Pair
)
FEATURES: tuple[type[FeatureKind], ...] = get_args(FeatureKind)
