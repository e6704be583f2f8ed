"""Losses ℓ(v, y) of a generalised linear model: value, derivative, and facts for solvers, reports and exports.

A loss is one frozen object, convex in v. Conventions match scikit-learn, so that results can be compared: squared is
½(v − y)², logistic is log(1 + exp(−y v)) with y = ±1, hinge is max(0, 1 − y v). Fields are public options that the job
declares; no field is ever computed from data.

| loss | labels | ℓ' | curvature L | slope R |
|---|---|---|---|---|
| squared | real | v − y | 1 | ∞ |
| huber | real | v − y, capped at ±width | 1 | width |
| poisson | counts | exp(min(v, margin)) − y | exp(margin) | ∞ |
| gamma | > 0 | 1 − y exp(−v') | largest·exp(−low) | see `Power` |
| tweedie | ≥ 0 | exp((2 − p)v') − y exp((1 − p)v') | see `Power` | see `Power` |
| logistic | ±1 | −y/(1 + exp(yv)) | ¼ | 1 |
| hinge | ±1 | −y where yv < 1 | ∞ | 1 |
| smoothed_hinge | ±1 | −y·(1 − yv)/width, between 0 and −y | 1/width | 1 |
| class_weighted | ±1 | c_y ℓ' of another loss | max(c) times its L | max(c) times its R |
| multinomial | 0 to K − 1 | softmax(v) − e_y, a vector | ½ | √2 |
"""

from __future__ import annotations

from vfl.arguments import require
from vfl.errors import SpecificationError, nearest
from vfl.losses.base import Loss as Loss
from vfl.losses.classes import ClassWeighted as ClassWeighted
from vfl.losses.classes import Hinge as Hinge
from vfl.losses.classes import Logistic as Logistic
from vfl.losses.classes import Multinomial as Multinomial
from vfl.losses.classes import SmoothedHinge as SmoothedHinge
from vfl.losses.counts import Gamma as Gamma
from vfl.losses.counts import Poisson as Poisson
from vfl.losses.counts import Power as Power
from vfl.losses.counts import Tweedie as Tweedie
from vfl.losses.numbers import Huber as Huber
from vfl.losses.numbers import Squared as Squared

LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (Squared, Logistic, Huber, Poisson, Gamma, Tweedie, Hinge, SmoothedHinge, ClassWeighted, Multinomial)
}


def loss_of(name: str | Loss) -> Loss:
    """Return the loss of this name. For an unknown name, SpecificationError names the nearest known losses."""
    if not isinstance(name, str):
        wanted = "the name of a loss such as 'logistic', or a loss such as vfl.losses.Huber(width=2.0)"
        require("loss", name, wanted, fits=isinstance(name, Loss))
        return name
    if name not in LOSSES:
        raise SpecificationError(f"unknown loss {name!r}{nearest(name, LOSSES)}; known: {', '.join(sorted(LOSSES))}")
    return LOSSES[name]()
