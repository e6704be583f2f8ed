"""Features that an owner computes from its columns. They are declared in the public job, independently of the records.

A feature is a column of the partition that the column's party computes from another column, record by record. Each kind of
feature states the range of its coordinates. This range follows only from the declaration and holds for every cell. Scaling and
sensitivities use it like the declared bounds of a number, so a feature changes no guarantee.

    partition = FeaturePartition({"bank": ["income", "age", "age_group"]}, label=("bank", "default"))
    columns = {"age_group": Binned((25, 40, 60), of="age")}
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from vfl.features.base import Feature as Feature
from vfl.features.base import OfCells as OfCells
from vfl.features.curve import Curve as Curve
from vfl.features.dates import PARTS as PARTS
from vfl.features.dates import DateParts as DateParts
from vfl.features.numbers import Binned as Binned
from vfl.features.numbers import Cyclic as Cyclic
from vfl.features.numbers import Log as Log
from vfl.features.numbers import Power as Power
from vfl.features.numbers import Scaled as Scaled
from vfl.features.numbers import Spline as Spline
from vfl.features.products import Crossed as Crossed
from vfl.features.products import Pair as Pair
from vfl.features.products import Side as Side
from vfl.features.products import contents_of as contents_of
from vfl.features.products import curves_in as curves_in
from vfl.features.products import own_of as own_of
from vfl.features.products import placed as placed
from vfl.features.products import ranges_of as ranges_of
from vfl.features.text import Hashed as Hashed
from vfl.features.text import Ordinal as Ordinal
from vfl.features.text import murmur as murmur

FeatureKind: TypeAlias = Binned | Curve | Spline | Log | Power | Scaled | Cyclic | Ordinal | Hashed | DateParts | Pair
FEATURES: tuple[type[FeatureKind], ...] = get_args(FeatureKind)
