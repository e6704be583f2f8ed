"""What the rounds of a run took: by the processor's clock, which others on the machine disturb less, and by the wall's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.charging.budget import Reserved
from coordinator.rounds import Round

if TYPE_CHECKING:
    from collections.abc import Iterable


class Followed(NamedTuple):
    """How a run ended, and the seconds of its rounds. processor : of this process, from the reservation to the last round."""

    result: Any
    processor: float
    wall: float


def follow(events: Iterable[Any]) -> Followed:
    """Follow the events of `vfl.launch.train.stream` to the end. Loading, planning and certifying are not counted."""
    begun = ended = wall = 0.0
    event = None
    for event in events:
        if isinstance(event, Reserved):
            begun = time.process_time()
        elif isinstance(event, Round):
            ended, wall = time.process_time(), wall + event.seconds
    return Followed(event, ended - begun, wall)
