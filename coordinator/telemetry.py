"""Metrics and log lines of a run, for its operators. They contain job and round, never data, residuals, ids or scores.

Times may depend on records. No guarantee covers times, so they are not part of a run's results.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.charging.budget import Reserved
from coordinator.rounds import Lost, ReleasesComplete, Round
from vfl.planning import Plan
from vfl.privacy.accountants import choose_accountant

if TYPE_CHECKING:
    from coordinator.transport import Traffic
    from vfl.privacy.events import ReleaseKey

EVERY_SECONDS = 1.0
"""Seconds between two reports of rounds, and the longest delay of a report. Rare events are reported at once."""

COUNTERS = {
    "vfl_rounds": "queries answered",
    "vfl_bytes": "bytes of per-record vectors between coordinator and parties",
    "vfl_message_seconds": "seconds from the charge of a query to its last reply, summed",
    "vfl_party_seconds": "seconds of these that parties spent on their answers, summed",
    "vfl_retries": "attempts at a query that were lost with a party; each stays charged",
}
GAUGES = {"vfl_epsilon_spent": "epsilon of what this process of the run has charged"}

log = logging.getLogger("vfl.run")


class Meters(Protocol):
    """Sink for metrics, named as in COUNTERS and GAUGES."""

    def add(self, name: str, amount: float) -> None:
        """Add to a counter."""
        ...

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        ...


class Telemetry:
    """Reports a run's events as metrics and log lines.

    A timer also reports the latest rounds while the caller pauses, or while a query takes long.

    job, run : tags of every log line. traffic : counts of bytes and seconds of the run so far.
    """

    def __init__(self, job: str, run: str, meters: Meters, traffic: Traffic) -> None:
        self._tags = {"job": job, "run": run}
        self._meters = meters
        self._traffic = traffic
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._reported = 0.0
        self._before = (0, 0.0)
        self._latest = 0
        self._rounds = 0
        self._seconds = 0.0
        self._lost: set[ReleaseKey] = set()

    def __call__(self, event: object) -> None:
        """Report an event."""
        with self._lock:
            self._note(event)

    def _note(self, event: object) -> None:
        if isinstance(event, Plan):
            self._delta = event.problem.delta
            self._accountant = choose_accountant(event.releases, committed=event.committed)
            self._line("plan", rounds=event.messages, epsilon=event.problem.epsilon, delta=self._delta)
        elif isinstance(event, Reserved):
            self._line("reserved", records=event.n_records)
        elif isinstance(event, Round):
            self._charged(event)
            self._latest = event.number
            self._rounds += 1
            self._seconds += event.seconds
            if time.monotonic() - self._reported > EVERY_SECONDS:
                self._report(event.number)
            elif self._timer is None:
                self._timer = threading.Timer(EVERY_SECONDS, self._report_latest)
                self._timer.daemon = True
                self._timer.start()
        elif isinstance(event, Lost):
            self._charged(event)
            self._lost.update(key for key, _ in event.charges)
            self._meters.add("vfl_retries", 1.0)
            self._line("lost", round=event.number, party=event.party, charged=len(event.charges))
        elif isinstance(event, ReleasesComplete):
            self._report(None)
            self._line("made")

    def _charged(self, event: Round | Lost) -> None:
        # Seeded noise repeats a lost release to the bit, under the key that was charged.
        events = [charged for key, charged in event.charges if key not in self._lost]
        for charged in dict.fromkeys(events):
            self._accountant.compose(charged, events.count(charged))

    def _report_latest(self) -> None:
        with self._lock:
            if self._rounds:  # 0 if they were reported while this thread waited for the lock
                self._report(self._latest)

    def _report(self, number: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reported = time.monotonic()
        n_bytes, party_seconds = self._traffic.n_bytes, self._traffic.party_seconds
        for name, amount in (
            ("vfl_rounds", self._rounds),
            ("vfl_bytes", n_bytes - self._before[0]),
            ("vfl_party_seconds", party_seconds - self._before[1]),
            ("vfl_message_seconds", self._seconds),
        ):
            self._meters.add(name, float(amount))
        epsilon = self._accountant.epsilon(self._delta) if self._delta is not None else None
        if epsilon is not None:
            self._meters.set("vfl_epsilon_spent", epsilon)
        self._line("rounds", round=number, made=self._rounds, seconds=round(self._seconds, 6), epsilon=epsilon)
        self._before, self._rounds, self._seconds = (n_bytes, party_seconds), 0, 0.0

    def _line(self, what: str, **values: Any) -> None:
        log.info(json.dumps({"time": round(time.time(), 3), "event": what, **self._tags, **values}))
