"""Samplers choose the order in which blocks are updated. The draws are public: no privacy is claimed from their randomness.

A sampler turns the list of blocks into the draws of one pass. A draw is a set of blocks, updated from the same margins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vfl.base.arguments import check_options, option, whole
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from vfl.base.problem import Block
    from vfl.base.types import Vector

Draw = tuple[int, ...]


class Sampler(ABC):
    """Rule by which blocks are drawn: one block per draw, unless a subclass draws several."""

    __slots__ = ()
    name: ClassVar[str]

    def width(self, n_blocks: int) -> int:
        """Return the largest number of blocks in one draw."""
        return min(1, n_blocks)

    @abstractmethod
    def draws(self, blocks: Sequence[Block], smoothness: Vector, rng: np.random.Generator) -> list[Draw]:
        """Return the draws of one pass, as indices into `blocks`. smoothness : (p,) M."""


@dataclass(frozen=True, slots=True)
class Shuffled(Sampler):
    """Every block once per pass, in a new random order per pass."""

    name: ClassVar[str] = "shuffled"

    def draws(self, blocks: Sequence[Block], smoothness: Vector, rng: np.random.Generator) -> list[Draw]:
        """Return a random order of the blocks."""
        return [(int(b),) for b in rng.permutation(len(blocks))]


@dataclass(frozen=True, slots=True)
class Cyclic(Sampler):
    """Every block once per pass, in the order of the partition."""

    name: ClassVar[str] = "cyclic"

    def draws(self, blocks: Sequence[Block], smoothness: Vector, rng: np.random.Generator) -> list[Draw]:
        """Return the blocks in order."""
        return [(b,) for b in range(len(blocks))]


@dataclass(frozen=True, slots=True)
class Uniform(Sampler):
    """Independent draws of one block, with equal probabilities."""

    name: ClassVar[str] = "uniform"

    def draws(self, blocks: Sequence[Block], smoothness: Vector, rng: np.random.Generator) -> list[Draw]:
        """Return as many draws as there are blocks."""
        return [(int(b),) for b in rng.integers(len(blocks), size=len(blocks))]


@dataclass(frozen=True, slots=True)
class Importance(Sampler):
    """Independent draws of one block with probabilities q_i = max_{j∈A_i} M_j / Σ_i max M_j (Maranjyan et al. 2024)."""

    name: ClassVar[str] = "importance"

    def draws(self, blocks: Sequence[Block], smoothness: Vector, rng: np.random.Generator) -> list[Draw]:
        """Return as many draws as there are blocks."""
        largest = [float(smoothness[block.coordinates].max()) for block in blocks]
        total = sum(largest)
        return [(int(b),) for b in rng.choice(len(blocks), size=len(blocks), p=[m / total for m in largest])]


@dataclass(frozen=True, slots=True)
class Nice(Sampler):
    """Independent uniform subsets of τ blocks (τ-nice), all updated from the same margins."""

    tau: int = option(whole(wanted="must be a whole number of at least 1, the number of blocks per draw"))
    name: ClassVar[str] = "nice"

    def __post_init__(self) -> None:
        check_options(self, "τ-nice sampling: ")

    def width(self, n_blocks: int) -> int:
        """Return τ blocks per draw."""
        return min(self.tau, n_blocks)

    def draws(self, blocks: Sequence[Block], smoothness: Vector, rng: np.random.Generator) -> list[Draw]:
        """Return ⌈b/τ⌉ subsets."""
        width = self.width(len(blocks))
        rounds = -(-len(blocks) // width)
        return [tuple(sorted(int(b) for b in rng.choice(len(blocks), width, replace=False))) for _ in range(rounds)]


@dataclass(frozen=True, slots=True)
class Full(Sampler):
    """All blocks in one draw, updated from the same margins."""

    name: ClassVar[str] = "full"

    def width(self, n_blocks: int) -> int:
        """Return the number of blocks."""
        return n_blocks

    def draws(self, blocks: Sequence[Block], smoothness: Vector, rng: np.random.Generator) -> list[Draw]:
        """Return one draw of all blocks."""
        return [tuple(range(len(blocks)))]


SAMPLERS: dict[str, type[Sampler]] = {s.name: s for s in (Shuffled, Cyclic, Uniform, Importance, Nice, Full)}


def sampler_of(name: str, tau: int | None) -> Sampler:
    """Return the sampler of that name. Only 'nice' takes the option `tau`."""
    if name not in SAMPLERS:
        raise SpecificationError(f"unknown sampling {name!r}{nearest(name, SAMPLERS)}; known: {', '.join(SAMPLERS)}")
    if (name == "nice") != (tau is not None):
        raise SpecificationError("sampling='nice' needs tau, and no other sampling takes it")
    return Nice(tau) if tau is not None else SAMPLERS[name]()


def grouped_by_owner(draws: list[Draw], blocks: Sequence[Block]) -> list[Draw]:
    """Sort the draws of a pass by owner: owners in the order of their blocks, each owner's draws in their order.

    The order of the owners is equal in all passes. Otherwise a party could move last in one pass and first in the next, and
    its second moves would start from the result of its first ones.
    """
    owners = list(dict.fromkeys(block.party for block in blocks))
    return sorted(draws, key=lambda draw: owners.index(blocks[draw[0]].party))


def in_parallel(draws: list[Draw], blocks: Sequence[Block], parties: int) -> list[Draw]:
    """Join the draws of a pass into rounds. A round has one block each from up to `parties` parties, in the order drawn."""
    waiting: dict[str, list[int]] = {}
    for draw in draws:
        for b in draw:
            waiting.setdefault(blocks[b].party, []).append(b)
    rounds: list[Draw] = []
    while waiting:
        # Take the longest queues first, so that a pass takes as few rounds as possible.
        owners = sorted(waiting, key=lambda party: -len(waiting[party]))[:parties]
        rounds.append(tuple(sorted(waiting[owner].pop(0) for owner in owners)))
        waiting = {party: queue for party, queue in waiting.items() if queue}
    return rounds
