"""Free ports on loopback for tests whose server starts later, or never.

A port of the system's own choice, bind(0), lies in the range from which it serves connections too, so that another
process can take it before the test's server does. These ports lie below that range and above those of Ray's workers,
each is given once, and the processes of one test session have disjoint ones.
"""

from __future__ import annotations

import itertools
import os
import socket

FIRST, LAST = 20_000, 32_000
_started = itertools.count(os.getpid() * 37)


def candidate(k: int, worker: int, workers: int) -> int:
    """Return candidate k of a worker process, of `workers`."""
    return FIRST + k % ((LAST - FIRST) // workers) * workers + worker


def free_port() -> int:
    """Return a port without a listener."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    for k in _started:
        port = candidate(k, worker, workers)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError


def free_address() -> str:
    """Return 127.0.0.1:PORT without a listener."""
    return f"127.0.0.1:{free_port()}"
