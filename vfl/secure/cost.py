"""Bytes and seconds of each step of a run on shares, computed from public numbers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfl.secure.spares import SPARES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.secure.roles import Roles

WORD, ANGLE = 8, 2


@dataclass(frozen=True, slots=True)
class Speeds:
    """Rates that turn bytes into seconds.

    generator : bytes per second of AES-256-CTR in one thread. memory : bytes per second of a pass over an array.
    link : bytes per second between two participants. hop : seconds that an empty message takes.
    """

    generator: float = 3e9
    memory: float = 1e10
    link: float = 1.25e9
    hop: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes sent in a run, by kind of message, without the few bytes of envelope per message."""

    setup: int
    angles: int
    waves: int
    checks: int
    residuals: int
    openings: int

    @property
    def total(self) -> int:
        """Return the bytes of all messages."""
        return self.setup + self.angles + self.waves + self.checks + self.residuals + self.openings


def logistic(
    roles: Roles, n_records: int, widths: Mapping[str, int], terms: int, versions: Mapping[str, int], openings: int
) -> Cost:
    """Return the bytes of a logistic run.

    widths : {party: columns that are masked}. terms : K. openings : coordinates over all openings, Σ s.
    versions : {party: number of versions at which its columns are opened}. The number of all versions T is the entry "" if
        there is one, and the largest entry otherwise.
    """
    m, h, n = len(roles.parties), len(roles.holders), n_records
    count = versions.get("", max(versions.values()))
    return Cost(
        setup=WORD * n * sum(width * len(roles.receivers(party)) for party, width in widths.items()),
        angles=ANGLE * n * h * (m - 1) * count,
        waves=2 * WORD * terms * (n + SPARES) * count,
        checks=SPARES * (ANGLE * (m - 1) + 2 * WORD * terms * (h - 1)) * count,
        residuals=WORD * n * sum(len(roles.receivers(party)) * times for party, times in versions.items() if party),
        openings=WORD * openings * (m + 1),
    )


def gram(roles: Roles, n_records: int, widths: Mapping[str, int]) -> Cost:
    """Return the bytes of the products of all columns, the label's among them."""
    m, parties = len(roles.parties), roles.parties
    pairs = sum(widths[a] * widths[b] for i, a in enumerate(parties) for b in parties[i + 1 :])
    return Cost(
        setup=WORD * n_records * sum(widths.values()) * (m - 1),
        angles=0,
        waves=0,
        checks=0,
        residuals=0,
        openings=WORD * (3 * pairs + sum(width * width for width in widths.values())),
    )


def seconds(cost: Cost, speeds: Speeds, n_records: int, terms: int, versions: int, openings: int) -> float:
    """Return the seconds of a logistic run: T(16Kn/generator + 3 hops) + bytes/link + 10n·Σs/memory.

    A holder's column takes 8 bytes of masked words and 2 bytes of integers, per record and opening. The dealer may deal waves
    ahead of time; this bound does not assume it.
    """
    waves = versions * (2 * WORD * terms * n_records / speeds.generator + 3.0 * speeds.hop)
    return waves + cost.total / speeds.link + 10.0 * n_records * openings / speeds.memory
