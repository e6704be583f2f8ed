"""Features that an owner makes of its columns, declared in the public job, independently of the records.

A feature is a column of the partition that its party computes from another column, record by record. Each kind states the range
of its coordinates, which follows from the declaration alone and holds for every cell. Scaling and sensitivities use this range
like the bounds of a number, so a feature changes no guarantee.

    partition = FeaturePartition({"bank": ["income", "age", "age_group"]}, label=("bank", "default"))
    columns = {"age_group": Binned((25, 40, 60), of="age")}
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from vfl.features.base import Feature, OfCells
from vfl.features.curve import Curve
from vfl.features.curves import Binned, Cyclic, Spline
from vfl.features.dates import PARTS, PERIODIC, DateParts
from vfl.features.products import Crossed, Pair, Side, content_of, contents_of, curves_in, own_of, placed, ranges_of
from vfl.features.scalings import Log, Power, Scaled
from vfl.features.text import FEWEST_BUCKETS, MOST_BUCKETS, Hashed, Ordinal, murmur

FeatureKind: TypeAlias = Binned | Curve | Spline | Log | Power | Scaled | Cyclic | Ordinal | Hashed | DateParts | Pair
FEATURES: tuple[type[FeatureKind], ...] = get_args(FeatureKind)

__all__ = [
    "FEATURES",
    "FEWEST_BUCKETS",
    "MOST_BUCKETS",
    "PARTS",
    "PERIODIC",
    "Binned",
    "Crossed",
    "Curve",
    "Cyclic",
    "DateParts",
    "Feature",
    "FeatureKind",
    "Hashed",
    "Log",
    "OfCells",
    "Ordinal",
    "Pair",
    "Power",
    "Scaled",
    "Side",
    "Spline",
    "content_of",
    "contents_of",
    "curves_in",
    "murmur",
    "own_of",
    "placed",
    "ranges_of",
]
