"""The coordinator's part in opening a sum: check all parties' words, add them up, decode the sum and check its range.

Guarantee. Every party has committed to its words before any party discloses words, so no party can choose its words after
seeing those of others. A sum that is too large for the data and the noise is not released.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import FederationError, PrivacyError
from vfl.secure.requests import Commitment, Contribution
from vfl.secure.ring import decoded, within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.kernels.ring import Words
    from vfl.secure.roles import Roles
    from vfl.secure.version import Opening
    from vfl.types import Integers


def committed(party: str, session: str, contribution: Contribution) -> Commitment:
    """Return a party's commitment to its words: SHA-256 of its name, the session, 32 fresh random bytes and the words.

    The commitment hides the words, since nobody guesses the random bytes. The party cannot disclose other words later, since
    SHA-256 resists collisions.
    """
    hashed = hashlib.sha256(b"vfl words on shares, version 1")
    for part in (party.encode(), session.encode(), contribution.nonce, contribution.words):
        hashed.update(b"%d|" % len(part) + part)
    return Commitment(hashed.digest())


def disclosed(party: str, session: str, commitment: object, contribution: object) -> Words:
    """Return the words that a party disclosed. Raises PrivacyError if the party had committed to different words."""
    if not isinstance(contribution, Contribution) or not isinstance(commitment, Commitment):
        raise FederationError(f"{party!r} sent an unexpected reply while a sum on shares was being opened")
    if committed(party, session, contribution) != commitment:
        raise PrivacyError(
            f"party {party!r} disclosed words different from those that it had committed to: nothing is released, and the "
            "charge stays. Ask its owner which software it runs"
        )
    if len(contribution.words) % 8:
        raise FederationError(f"party {party!r} disclosed an opening that does not consist of whole words")
    return np.frombuffer(contribution.words, dtype="<u8").astype(np.uint64, copy=False)


def opened(roles: Roles, opening: Opening, words: Mapping[str, Words], largest: int) -> Integers:
    """Return the noised sum in steps, (s,) int64: a release.

    One step is worth g_q = Bits.step(c_q). Any m − 1 of the m parties' words are uniform together.

    words : {party: its words, from `Member.contribution`}.
    largest : `largest_sum` of the opening; PrivacyError if a sum is larger in magnitude.
    """
    if set(words) != set(roles.parties):
        missing = sorted(set(roles.parties) - set(words))
        raise FederationError(
            f"the messages of {missing} for a sum are missing: nothing is released, and the charge stays"
        )
    total = np.zeros(opening.size, dtype=np.uint64)
    for own in words.values():
        if own.shape != total.shape or own.dtype != np.uint64:
            raise FederationError("a party's message for a sum has a different length from its block")
        total += own
    return within(decoded(total), largest)
