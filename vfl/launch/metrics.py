"""Metrics over HTTP in Prometheus's text format, for runs and parties outside Ray. Numbers only, never data."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from vfl.errors import OutputError
from vfl.federation.file import check_address

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

PATH = "/metrics"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_SECONDS = 5.0
"""Time for a client to send its request; then its connection is closed."""


class Unmetered:
    """Sink that discards all metrics."""

    def add(self, name: str, amount: float) -> None:
        """Do nothing."""

    def set(self, name: str, value: float) -> None:
        """Do nothing."""


_served: list[Metrics] = []


def meters() -> Metrics | Unmetered:
    """Return the metrics that this process serves, or a sink that discards them."""
    return _served[-1] if _served else Unmetered()


class Metrics:
    """Counters and gauges, which anybody who reaches the address can read while this context is open.

    counters, gauges : {name: help text}. A counter is served as NAME_total. labels : {label: value}, added to every number.

    Implements coordinator.telemetry.Meters. Raises SpecificationError for a malformed address, OutputError for one that
    cannot be served.
    """

    def __init__(
        self,
        address: str,
        counters: Mapping[str, str],
        gauges: Mapping[str, str],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        check_address(address, "the address of the metrics")
        self._served = {name: ("counter", f"{name}_total", said) for name, said in counters.items()}
        self._served |= {name: ("gauge", name, said) for name, said in gauges.items()}
        self._labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in (labels or {}).items())
        self._values: dict[str, float] = dict.fromkeys(counters, 0.0)
        self._lock = threading.Lock()
        host, _, port = address.rpartition(":")
        try:
            self._server = _Server((host.strip("[]"), int(port)), self)
        except OSError as error:
            raise OutputError(f"cannot serve metrics at {address!r}: {error.strerror}; name a free address") from error

    def add(self, name: str, amount: float) -> None:
        """Add to a counter."""
        with self._lock:
            self._values[name] += amount

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._values[name] = value

    def text(self) -> str:
        """Return all numbers in Prometheus's text format; a gauge that was never set is left out."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, (kind, served, said) in self._served.items():
            if name in values:
                lines += [f"# HELP {served} {said}", f"# TYPE {served} {kind}"]
                lines.append(
                    f"{served}{{{self._labels}}} {values[name]!r}" if self._labels else f"{served} {values[name]!r}"
                )
        return "\n".join(lines) + "\n"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="vfl metrics", daemon=True).start()
        _served.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _served.remove(self)
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], metrics: Metrics) -> None:
        import socket

        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.metrics = metrics
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        """Serve the metrics."""
        if self.path != PATH:
            self.send_error(404)
            return
        content = self.server.metrics.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's name
        """Print nothing per request."""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
