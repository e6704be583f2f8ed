"""Metrics over HTTP: their text, what else is served, and addresses that are none."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from tests.ports import free_port
from vfl.errors import OutputError, SpecificationError
from vfl.launch.metrics import Metrics

COUNTERS = {"vfl_rounds": "queries answered"}
GAUGES = {"vfl_epsilon_spent": "epsilon charged", "vfl_other": "never set"}


def test_prometheus_reads_numbers_with_labels() -> None:
    port = free_port()
    with Metrics(f"127.0.0.1:{port}", COUNTERS, GAUGES, {"party": 'a "b"\\\n'}) as metrics:
        metrics.add("vfl_rounds", 2.0)
        metrics.add("vfl_rounds", 1.0)
        metrics.set("vfl_epsilon_spent", 0.25)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            said = answer.read().decode()
        assert '# TYPE vfl_rounds_total counter\nvfl_rounds_total{party="a \\"b\\"\\\\\\n"} 3.0\n' in said
        assert 'vfl_epsilon_spent{party="a \\"b\\"\\\\\\n"} 0.25\n' in said
        assert "vfl_other" not in said
        with pytest.raises(OutputError, match=r"metrics at .*in use; name a free"):
            Metrics(f"127.0.0.1:{port}", COUNTERS, GAUGES)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


def test_a_client_that_sends_nothing_does_not_hold_up_others() -> None:
    port = free_port()
    with (
        Metrics(f"127.0.0.1:{port}", COUNTERS, GAUGES),
        socket.create_connection(("127.0.0.1", port)),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer,
    ):
        assert b"vfl_rounds_total 0.0" in answer.read()


def test_silent_connections_are_closed_and_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfl.launch.metrics.SECONDS", 1.0)
    monkeypatch.setattr("vfl.launch.metrics.MOST_CONNECTIONS", 8)
    before, port = threading.active_count(), free_port()
    with Metrics(f"127.0.0.1:{port}", COUNTERS, GAUGES), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(20)]
        for made in silent[12:]:
            made.sendall(b"GET /metrics HTTP/1.0\r\nA: ")  # never ends
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b"vfl_rounds_total 0.0" in answer.read()
        for made in silent:
            made.settimeout(30.0)
            while made.recv(1 << 16):
                pass
        end = time.monotonic() + 30.0
        while threading.active_count() > before + 1:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_addresses() -> None:
    with pytest.raises(SpecificationError, match="write HOST:PORT"):
        Metrics("9464", COUNTERS, GAUGES)
