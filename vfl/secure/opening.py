"""The coordinator's part of an opening: add up the words of all parties and decode the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import FederationError
from vfl.secure.ring import decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.kernels.ring import Words
    from vfl.secure.roles import Roles
    from vfl.secure.version import Opening
    from vfl.types import Integers


def opened(roles: Roles, opening: Opening, words: Mapping[str, Words]) -> Integers:
    """Return the noised sum in steps, (s,) int64: a release. Without the words of any one party, the rest is uniform.

    The value of the sum is g_q times the result, with g_q = Bits.step(c_q). words : {party: `Member.contribution`}.
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
    return decoded(total)
