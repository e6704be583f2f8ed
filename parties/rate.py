"""Rate limits of a service."""

from __future__ import annotations

import time


class Rate:
    """Token bucket: at most `per_second` records per second in the long run, and at most as many at once.

    A single request for more records than `per_second` is never admitted. A restart fills the bucket. That is acceptable,
    since this limit shapes load; only the daily count must survive restarts.
    """

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._left, self._at = max(per_second, 1.0), time.monotonic()

    def take(self, records: int) -> bool:
        """Return True, and take the records from the bucket, if the bucket allows them now; else return False."""
        now = time.monotonic()
        most = max(self.per_second, 1.0)
        self._left = min(most, self._left + (now - self._at) * self.per_second)
        self._at = now
        if records > self._left:
            return False
        self._left -= records
        return True
