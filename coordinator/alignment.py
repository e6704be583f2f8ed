"""The coordinator's side of an alignment: it passes blinded sets round the ring and compares fully blinded ones.

It never learns the salt, so it cannot test guesses against the hash of the aligned ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from vfl.alignment import Aligned, Aligning
from vfl.errors import DataError, FederationError, VersionMismatch
from vfl.security.identifiers import IdKind, check_kinds
from vfl.security.psi import bucketed, intersect, is_large, joined, ring
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from vfl.alignment import IdsGreeting, Indexed
    from vfl.security.psi import Points
    from vfl.types import Integers


class AlignmentTransport(Protocol):
    """Transport of blinded sets between the parties; `multiply` returns sets, or references that only `fetch` reads."""

    def greet(self) -> Mapping[str, IdsGreeting]:
        """Return every party's greeting about its ids."""
        ...

    def begin(self, pending: str | None) -> None:
        """Have all parties continue the alignment of that name, or begin the new one."""
        ...

    def multiply(
        self, step: Mapping[str, str], sets: Mapping[str, Any]
    ) -> Generator[tuple[str, int], None, dict[str, Any]]:
        """Have all parties multiply at the same time; yields (party, points done), returns {owner: its set after it}.

        step : {party: owner of the set}; its own is made from its ids. sets : {owner: set}, as returned before.
        """
        ...

    def fetch(self, sets: Mapping[str, Any]) -> dict[str, Points]:
        """Return the sets' points."""
        ...

    def conclude(self, positions: Mapping[str, Integers]) -> Mapping[str, Indexed]:
        """Tell every party the positions of its common records; return the greetings about the new indexes."""
        ...


def align(transport: AlignmentTransport, *, required: bool = False) -> Generator[Aligning, None, Aligned]:
    """Align the records of all parties; yield progress. An index that all parties still hold is reused.

    required : the index of a run that has begun. A new index would put the records in another order.

    Raises DataError for ids of different kinds or without a common one, and FederationError when the hashes differ.
    """
    greetings = transport.greet()
    for party, greeting in greetings.items():
        if greeting.version != __version__:
            raise VersionMismatch(
                f"party {party!r} runs vfl {greeting.version}, the coordinator {__version__}: install one version everywhere"
            )
    sizes = {party: greeting.n_ids for party, greeting in greetings.items()}
    kept = {party: greeting.kept for party, greeting in greetings.items()}
    if required and None in kept.values():
        gone = next(party for party, index in kept.items() if index is None)
        raise DataError(
            f"party {gone!r} no longer holds the index that this run was aligned with, and another would put the records "
            "in another order: restore it, or start a new run"
        )
    first, *others = kept.values()
    if first is not None and all(index == first for index in others):
        return Aligned(first.alignment, first.n_records, sizes, reused=True)
    if required:
        raise FederationError("the parties hold indexes of different alignments: start a new run")
    check_kinds({party: IdKind(greeting.kind) for party, greeting in greetings.items()})
    offered = {greeting.pending for greeting in greetings.values()}
    transport.begin(offered.pop() if len(offered) == 1 else None)
    positions = yield from _positions(transport, sizes)
    indexed = transport.conclude(positions)
    said = set(indexed.values())
    if len(said) > 1:
        raise FederationError(
            "the parties' aligned ids differ, though their blinded sets agreed: a participant is faulty; align again"
        )
    found = said.pop()
    return Aligned(found.alignment, found.n_records, sizes)


def _positions(
    transport: AlignmentTransport, sizes: Mapping[str, int]
) -> Generator[Aligning, None, Mapping[str, Integers]]:
    parties = tuple(sizes)
    total, done = len(parties) * sum(sizes.values()), 0
    steps = ({party: party for party in parties}, *ring(parties))
    sets: dict[str, Any] = {}
    for number, step in enumerate(steps):
        stage = "own ids" if number == 0 else f"others' ids, {number} of {len(steps) - 1}"
        yield Aligning(done, total, stage)
        made = dict.fromkeys(parties, 0)
        work = transport.multiply(step, sets)
        while True:
            try:
                party, count = next(work)
            except StopIteration as end:
                sets = sets | end.value
                break
            made[party] = count
            yield Aligning(done + sum(made.values()), total, stage)
        done += sum(sizes.values())
    yield Aligning(done, total, "comparing")
    if not is_large(list(sizes.values())):
        return intersect(transport.fetch(sets))
    # One set at a time is in this process.
    return joined({owner: bucketed(transport.fetch({owner: points})[owner], owner) for owner, points in sets.items()})
