"""An owner's permission to apply one part of a model to one source."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parties.allowed import name_of
from parties.consent import Policy, policy_of, require_source
from parties.daily_count import DailyCount

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from parties.prediction import ModelPart


def count_of(policy: Policy) -> Path:
    """Return the path of the file with an owner's counts of predicted records, next to the owner's release log (book)."""
    return policy.book.with_suffix(".predictions")


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission of one party's owner. policy : None if the owner has none; then nobody is asked and nothing is counted."""

    party: str
    policy: Policy | None

    def count(self, records: int) -> None:
        """Count records before their margins are sent. Raises ConsentRefused above the policy's daily limit."""
        allowed = None if self.policy is None else self.policy.prediction
        if self.policy is None or allowed is None or allowed.records is None:
            return
        with contextlib.closing(DailyCount(count_of(self.policy))) as count:
            taken = count.take(self.party, records, allowed.records)
        if not taken:
            self.policy.refuse_prediction(
                self.party, "records", f"these are more records than are left today of the {allowed.records} per day"
            )


def permitted(
    part: ModelPart,
    source: Any,
    policy: str | None = None,
    *,
    receiver: str | None = None,
    labels: bool = False,
    owners: bool = False,
) -> Permission:
    """Return the owner's permission, if the policy allows the prediction; else raise ConsentRefused, which names the rule.

    policy : path of the owner's policy; a policy that the owner set for this process (parties.consent.VARIABLE) overrides it.
    receiver : the party that adds up the margins, and so sees this party's part of each margin; None for this party itself.
    labels : True if labels are read too, to measure the model without noise. owners : True if the owner named `policy`.
    """
    agreed = policy_of(policy)
    named = name_of(source)
    if agreed is not None:
        agreed.check_prediction(part.party, part.digest, named, receiver=receiver or part.party, labels=labels)
    require_source(agreed, part.party, named, "a prediction", owners=owners)
    return Permission(part.party, agreed)


def all_permitted(
    parts: Mapping[str, ModelPart],
    given: Mapping[str, Any],
    policies: Mapping[str, str] | None,
    *,
    receiver: str,
    measured: bool = False,
) -> dict[str, Permission]:
    """Return the permissions of all parties' owners, as `permitted` does for one party.

    given : {party: source as the user named it, which may be one table for all parties}. measured : True if the receiver's
        labels are read.
    """
    return {
        party: permitted(
            parts[party],
            source,
            (policies or {}).get(party),
            receiver=receiver,
            labels=measured and party == receiver,
        )
        for party, source in given.items()
    }
