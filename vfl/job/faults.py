"""Policy for parties that are lost during a run. The policy belongs to the environment and is not part of the job."""

from __future__ import annotations

from dataclasses import dataclass

from vfl.arguments import require_positive
from vfl.errors import JobFileError

POLICIES = ("wait", "skip", "abort")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Policy for lost parties. Under every policy, a charge stays if its query was lost.

    on_party_lost : 'wait' waits until the party restarts, then repeats the query with a new charge. 'skip' waits equally
    long, then continues without the lost party's blocks, as the certificate says. 'abort' ends the run at once; the run can
    be resumed.
    wait_seconds : time that a lost party has to come back with its data loaded.
    answer_seconds : time that a party has for one answer; a party that takes longer counts as lost.
    """

    on_party_lost: str = "wait"
    wait_seconds: float = 120.0
    answer_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.on_party_lost not in POLICIES:
            raise JobFileError(
                f"[faults] on_party_lost must be one of {', '.join(POLICIES)}, not {self.on_party_lost!r}"
            )
        for name in ("wait_seconds", "answer_seconds"):
            require_positive(f"[faults] {name}", getattr(self, name), error=JobFileError)
