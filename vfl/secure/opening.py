"""The coordinator's part in opening (revealing) a sum: check all parties' shares, add them up, decode, check the range.

Guarantee. Every party has committed to its share before any party discloses a share, so no party can choose its share after
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
    """Return a party's commitment to its share: SHA-256 of its name, the session, 32 fresh random bytes and the share.

    The commitment hides the share, since nobody guesses the random bytes. The party cannot disclose a different share later,
    since SHA-256 resists collisions.
    """
    hashed = hashlib.sha256(b"vfl words on shares, version 1")
    for part in (party.encode(), session.encode(), contribution.nonce, contribution.words):
        hashed.update(b"%d|" % len(part) + part)
    return Commitment(hashed.digest())


def disclosed(party: str, session: str, commitment: object, contribution: object) -> Words:
    """Return the share that a party disclosed. Raises PrivacyError if the party had committed to a different share."""
    if not isinstance(contribution, Contribution) or not isinstance(commitment, Commitment):
        raise FederationError(f"{party!r} sent an unexpected reply while a sum on shares was being opened")
    if committed(party, session, contribution) != commitment:
        raise PrivacyError(
            f"party {party!r} disclosed a share different from the one that it had committed to. The sum was not released; "
            "its privacy cost remains charged. Ask the party's owner which software it runs"
        )
    if len(contribution.words) % 8:
        raise FederationError(f"party {party!r} disclosed a share that does not consist of whole 64-bit integers")
    return np.frombuffer(contribution.words, dtype="<u8").astype(np.uint64, copy=False)


def opened(roles: Roles, opening: Opening, words: Mapping[str, Words], largest: int) -> Integers:
    """Return the noised sum in steps, (s,) int64: a release.

    One step is worth g_q = Bits.step(c_q). Any m − 1 of the m parties' shares are jointly uniform.

    words : {party: its share, from `Member.contribution`}.
    largest : bound on honest sums (`largest_sum`); PrivacyError if a sum is larger in magnitude.
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
