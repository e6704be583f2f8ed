"""Upper bounds on messages, bytes and time of a run whose participants reach the coordinator over a network link.

A run in which no message is lost waits for at most `rounds` answers one after another. At most `n_bytes` pass the
coordinator's link, both directions together. The time assumes that all bytes pass one after another. It also assumes that
each direction begins every round with TCP's initial window (RFC 6928) and doubles the window per round trip. Computing and
loading are left out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from vfl.errors import SpecificationError
from vfl.security.psi import SIZE

if TYPE_CHECKING:
    from vfl.planning.run_plan import Plan

WINDOW = 14_600
"""Bytes of TCP's initial window: ten segments."""
HEAD = 4096
"""Upper bound on the bytes of a message and its answer, without vectors and without numbers per coordinate."""
PER_COORDINATE = 128
"""Upper bound on the bytes per coordinate in a message and its answer: block, centre, scale, step, cap, noisy sum."""
JOINING = 12
"""Number of messages in sequence besides the rounds: keys, greeting, loading, ledgers, labels, and the notices at the end."""
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True)
class Link:
    """Network connection of each participant to the coordinator.

    bits_a_second : rate in bits per second. trip_seconds : time of a round trip.
    """

    bits_a_second: float
    trip_seconds: float

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the link that a text such as '100Mbit/20ms' describes. Raises SpecificationError for any other text."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMG])bit(?:/s)?\s*/\s*(\d+(?:\.\d+)?)\s*ms\s*", text)
        if found is None or not float(found[1]):
            raise SpecificationError(
                f"link must be a rate and the time of a round trip, such as 100Mbit/20ms, not {text!r}"
            )
        return cls(float(found[1]) * _UNITS[found[2]], float(found[3]) / 1e3)

    def __str__(self) -> str:
        return f"{self.bits_a_second / 1e6:g} Mbit/s, {self.trip_seconds * 1e3:g} ms"


@dataclass(frozen=True, slots=True)
class Transfer:
    """Upper bounds on one stage of a run: the number of messages in sequence, and the bytes over the coordinator's link."""

    rounds: int
    n_bytes: int

    def seconds(self, link: Link) -> float:
        """Return an upper bound on the time of the stage's messages and bytes, on a link that loses no message."""
        pipe = link.bits_a_second * link.trip_seconds / 8.0
        # The time per round is a concave function of its bytes (a logarithm), so equal rounds take longest.
        doublings = math.log2(1.0 + min(self.n_bytes / self.rounds, pipe) / WINDOW)
        return self.rounds * link.trip_seconds * (1.0 + 2.0 * doublings) + 8.0 * self.n_bytes / link.bits_a_second


def transfers(plan: Plan) -> dict[str, Transfer]:
    """Return the upper bounds of each stage: 'training', and 'alignment' for a job with ids.

    The bounds on alignment assume that no party holds ids beyond the n aligned ones.
    """
    found = {"training": _secure(plan) if plan.sharing is not None else _trusted(plan)}
    parties = len(plan.job.ids)
    if parties:
        # Each set of ids passes the coordinator on the way to every other party, and ends at the coordinator.
        sets, positions = SIZE * parties * (2 * parties - 1), 8 * parties
        messages = 8 * parties * parties
        found["alignment"] = Transfer(3 * parties + 6, plan.n_records * (sets + positions) + messages * HEAD)
    return found


def _trusted(plan: Plan) -> Transfer:
    rounds = plan.round_trips + JOINING
    labels = 8 * plan.n_records * plan.n_fits * (1 + plan.job.targets.weights)
    return Transfer(rounds, plan.n_bytes + labels + rounds * _message(plan, len(plan.job.partition.parties)))


def _secure(plan: Plan) -> Transfer:
    """Return the bounds of a run on shares, in which each sealed message passes the coordinator's link twice.

    Each model takes four requests: terms and angles, rows, the check of the rows, and residuals. Opening sums also takes four
    requests: columns in two steps, contributions to the noise, and the dealer's words. All products of columns together take
    one opening.
    """
    parties, models = len(plan.job.partition.parties), getattr(plan.sharing, "versions", 0)
    openings = (
        plan.round_trips if models else 1 + plan.round_trips - plan.n_fits * plan.solver.round_trips(plan.problem)
    )
    requests = (models + openings) * (2 + 2 * parties + parties * parties)
    rounds = JOINING + 4 * models + 4 * openings
    return Transfer(rounds, 2 * plan.n_bytes + _message(plan, requests + JOINING * parties))


def _message(plan: Plan, count: int) -> int:
    return count * HEAD + count * PER_COORDINATE * plan.problem.layout.n_coordinates
