"""The coordinator's side of an alignment: it passes sets of blinded ids from party to party and compares the final sets.

The coordinator never learns the salt, so it cannot test guesses against the hash of the aligned ids. Across organisations, the
parties encrypt the sets for one another. The coordinator then reads only sets that all parties have blinded, and
learns the lengths of all other sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.transport import expected, given, require_version
from vfl.crypto.alignment import MOST_IDS, Aligned, AlignmentProgress, IdsGreeting, Indexed
from vfl.crypto.identifiers import check_kinds, check_rules
from vfl.crypto.psi import SIZE, bucketed, intersect, is_large, joined, ring
from vfl.errors import DataError, FederationError
from vfl.network.messages import BeginAligning, Conclude, Done, Multiply, ReadIds, SendSet

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from coordinator.transport import MessageTransport, PendingCall
    from vfl.base.types import Integers
    from vfl.crypto.psi import Points

READ_SECONDS = 3600.0


def align(
    transport: MessageTransport, *, required: bool = False, base: str | None = None
) -> Generator[AlignmentProgress, None, Aligned]:
    """Align the records of all parties by their ids. Yield progress, and return the outcome.

    If all parties have the index of one earlier alignment, this index is used again.

    required : True if a run has begun with the current index. A new index would reorder the records, so the need for one raises
        DataError or FederationError.
    base : party all of whose ids are taken, in a left join (vfl.crypto.psi); None takes the ids that all parties have.

    Raises DataError if ids are of different kinds or no id is common, and FederationError if the parties normalise ids
    differently or if their hashes differ.
    """
    greetings = transport.call(dict.fromkeys(transport.parties, ReadIds()), IdsGreeting, READ_SECONDS)
    for party, greeting in greetings.items():
        require_version(party, greeting.version)
        if not 0 < greeting.n_ids <= MOST_IDS:
            raise FederationError(f"party {party!r} reported an impossible number of ids")
    check_rules({party: greeting.rule for party, greeting in greetings.items()})
    sizes = {party: greeting.n_ids for party, greeting in greetings.items()}
    transport.check_sizes(sizes)
    kept = {party: greeting.kept for party, greeting in greetings.items()}
    if required and None in kept.values():
        gone = next(party for party, index in kept.items() if index is None)
        raise DataError(
            f"party {gone!r} no longer holds the index that this run was aligned with, and another would put the records "
            "in another order: restore it, or start a new run"
        )
    first, *others = kept.values()
    shown = sizes if base is None else {}
    if first is not None and all(index == first for index in others):
        if base is not None and first.n_records != sizes[base]:
            raise FederationError(f"party {base!r} holds an index of another number of records than it has ids")
        return Aligned(first.alignment, first.n_records, shown, reused=True)
    if required:
        raise FederationError("the parties hold indexes of different alignments: start a new run")
    check_kinds({party: greeting.kind for party, greeting in greetings.items()})
    offered = {greeting.pending for greeting in greetings.values()}
    begin = BeginAligning(offered.pop() if len(offered) == 1 else None, sizes)
    transport.call(dict.fromkeys(sizes, begin), Done)
    positions = yield from _positions(transport, sizes, base)
    posted = [transport.post(party, Conclude(), {"positions": own}) for party, own in positions.items()]
    said = {expected(reply, Indexed, own.to) for own, (reply, _) in zip(posted, transport.collect(posted), strict=True)}
    if len(said) > 1:
        raise FederationError(
            "the parties' aligned ids differ, though their blinded sets agreed: a participant is faulty; align again"
        )
    found = said.pop()
    if any(len(own) != found.n_records for own in positions.values()):
        raise FederationError("the parties hold another number of records than their sets have in common; align again")
    return Aligned(found.alignment, found.n_records, shown)


def _positions(
    transport: MessageTransport, sizes: Mapping[str, int], base: str | None
) -> Generator[AlignmentProgress, None, Mapping[str, Integers]]:
    parties = tuple(sizes)
    total, done = len(parties) * sum(sizes.values()), 0
    steps = ({party: party for party in parties}, *ring(parties))
    holders: dict[str, str] = {}
    for number, step in enumerate(steps):
        stage = "own ids" if number == 0 else f"others' ids, {number} of {len(steps) - 1}"
        yield AlignmentProgress(done, total, stage)
        made = dict.fromkeys(parties, 0)
        # Request all sets before any multiplication: a party answers messages in order, so later requests would wait.
        sets = {
            owner: _set_of(transport, owner, holders[owner], party, sizes)
            for party, owner in step.items()
            if owner != party
        }
        posted = [
            transport.post(
                party,
                Multiply(owner, holders.get(owner, party)),
                sets[owner].vectors if owner in sets else {},
                steps=sizes[owner],
            )
            for party, owner in step.items()
        ]
        following = transport.follow(posted)
        while True:
            try:
                party, count = next(following)
            except StopIteration as end:
                answers = end.value
                break
            made[party] = count
            yield AlignmentProgress(done + sum(made.values()), total, stage)
        for own, (reply, _) in zip(posted, answers, strict=True):
            expected(reply, Done, own.to)
        holders |= {owner: party for party, owner in step.items()}
        done += sum(sizes.values())
    yield AlignmentProgress(done, total, "comparing")
    if not is_large(list(sizes.values())):
        return intersect({owner: _points(transport, owner, holder, sizes) for owner, holder in holders.items()}, base)
    # Hold only one of the large sets in memory at a time.
    return joined({q: bucketed(_points(transport, q, holder, sizes), q) for q, holder in holders.items()}, base)


def _set_of(transport: MessageTransport, owner: str, holder: str, to: str, sizes: Mapping[str, int]) -> PendingCall:
    """Ask `holder` for `owner`'s blinded set of ids, to pass it on to party `to`. If `to` is '', the set is read here."""
    return transport.post(holder, SendSet(owner, to), due={"points": SIZE * sizes[owner]}, passed=bool(to))


def _points(transport: MessageTransport, owner: str, holder: str, sizes: Mapping[str, int]) -> Points:
    ((reply, vectors),) = transport.collect([_set_of(transport, owner, holder, "", sizes)])
    expected(reply, Done, holder)
    raw = given(vectors, "points", holder, SIZE * sizes[owner])
    points: Points = np.asarray(raw).view(np.uint8).reshape(-1, SIZE)
    return points
