"""Losses with options, as `loss=` of a job takes them."""

from __future__ import annotations

from vfl.base.losses import ClassWeighted as ClassWeighted
from vfl.base.losses import Gamma as Gamma
from vfl.base.losses import Hinge as Hinge
from vfl.base.losses import Huber as Huber
from vfl.base.losses import Logistic as Logistic
from vfl.base.losses import Loss as Loss
from vfl.base.losses import Multinomial as Multinomial
from vfl.base.losses import Poisson as Poisson
from vfl.base.losses import SmoothedHinge as SmoothedHinge
from vfl.base.losses import Squared as Squared
from vfl.base.losses import Tweedie as Tweedie
