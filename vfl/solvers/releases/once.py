"""Releases that a run makes once, outside its passes: when, with which share of μ², events and messages.

To add a release, build a `OneTime` in a module of its own, and list it in `vfl.solvers.blocks.shares.table`. The division of
μ², the charges, and the plan's sentences, messages and vectors all follow from the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange
    from vfl.solvers.blocks.messages import Walk
    from vfl.solvers.blocks.presence import Presence
    from vfl.solvers.releases.curvature import Curvature


class Phase(Enum):
    """Points of a run at which releases outside the passes, such as label statistics, are made."""

    START = "before the record norms"
    FIRST = "between the record norms and the first pass"
    BETWEEN = "between the early passes and the others"
    END = "after the last pass"


@dataclass(eq=False, slots=True)
class Run:
    """State of a run. Releases outside the passes (`OneTime`) read and change this state.

    known : centres of the columns, M, and unit of residuals. start : margin at which the intercept starts, (p,) with classes.
    loss : training loss. walk, present : block updates and present parties, set once the passes begin.
    w : (p,) the current model, to which Xw belongs; change w in place. settled : {pass: model before this pass} in the second
        half of the early passes, for averages. passed : True after the releases that are made between passes.
    joint : (p, p) released curvature of the scaled columns, for joint steps; None without joint steps.
    """

    problem: Problem
    known: Curvature
    start: float | Vector
    loss: Loss
    walk: Walk = field(init=False)
    present: Presence = field(init=False)
    w: Vector = field(init=False)
    settled: dict[int, Vector] = field(default_factory=dict)
    passed: bool = False
    joint: Vector | None = None


@dataclass(frozen=True, slots=True)
class OneTime:
    """Release that a run makes once, in addition to its passes.

    share : share of the μ² that earlier releases leave; 0 for a message that charges nothing.
    events : function from a budget μ to the events, which together are μ-GDP under replace-one.
    make : generator of the queries for these events. It updates the run with the queries' releases.
    said : sentence in the plan. messages : number of messages. out, back : number of vectors sent to and by each party.
    """

    phase: Phase
    share: float
    events: Callable[[float], tuple[Gaussian, ...]]
    make: Callable[[Run, tuple[Gaussian, ...]], Exchange[None]]
    said: str = ""
    messages: int = 1
    out: int = 0
    back: int = 0
