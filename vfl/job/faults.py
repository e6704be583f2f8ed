"""Policy for lost parties. It belongs to the environment and is not part of the job."""

from __future__ import annotations

from dataclasses import dataclass

from vfl.arguments import require_positive
from vfl.errors import JobFileError

POLICIES = ("wait", "skip", "abort")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Policy for lost parties. Under every policy, a query that was charged and lost stays charged.

    on_party_lost : 'wait' waits for the party's restart, then repeats the query with a new charge. 'skip' waits as long, then
        continues without that party's blocks; the certificate says so. 'abort' ends the run at once; the run can be resumed.
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
