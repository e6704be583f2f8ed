"""Metrics over HTTP in Prometheus's text format, for runs and parties outside Ray. Metrics are numbers only, never data."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from vfl.base.arguments import package
from vfl.errors import OutputError
from vfl.network.federation.file import check_address

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

SECONDS, MOST_CONNECTIONS = 10.0, 32
"""Limits of a metrics port: seconds per connection in total, and open connections, each of which has a thread."""


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Server(ThreadingMixIn, WSGIServer):
    """Server of a registry's metrics, within SECONDS and MOST_CONNECTIONS, from its creation to `end`.

    Beyond MOST_CONNECTIONS, the oldest connection is closed. Raises OutputError for an address that cannot be served.
    """

    daemon_threads = True

    def __init__(self, address: str, registry: Any) -> None:
        from prometheus_client import make_wsgi_app

        host, _, port = address.rpartition(":")
        self._began: dict[Any, float] = {}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host.strip("[]"), int(port)), _Handler)
        except OSError as error:
            raise OutputError(f"cannot serve metrics at {address!r}: {error.strerror}; name a free address") from error
        self.set_app(make_wsgi_app(registry))
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self) -> None:
        """Close the port."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread of its own."""
        self._began[request] = time.monotonic()
        self._close(list(self._began)[:-MOST_CONNECTIONS])
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close late connections; the server calls this method twice per second."""
        now = time.monotonic()
        self._close([request for request, began in list(self._began.items()) if now - began > SECONDS])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the errors of clients that are gone."""

    @staticmethod
    def _close(requests: list[Any]) -> None:
        for request in requests:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # closing the socket ends the connection's thread


class NoMetrics:
    """Sink that discards all metrics."""

    def add(self, name: str, amount: float) -> None:
        """Do nothing."""

    def set(self, name: str, value: float) -> None:
        """Do nothing."""


_served: list[Metrics] = []


def meters() -> Metrics | NoMetrics:
    """Return the metrics that this process serves; else a sink that discards them."""
    return _served[-1] if _served else NoMetrics()


class Metrics:
    """Counters and gauges. Anybody who reaches the address can read them while this context is open.

    counters, gauges : {name: help text}. A counter is served as NAME_total, a gauge once it is set.
    labels : {label: value}, added to every metric.

    Implements coordinator.telemetry.Meters. Raises SpecificationError for a malformed address, and OutputError for an address
    that cannot be served.
    """

    def __init__(
        self,
        address: str,
        counters: Mapping[str, str],
        gauges: Mapping[str, str],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        prometheus = package("prometheus_client", "federation", "VFL_METRICS")
        check_address(address, "the address of the metrics")
        self._registry, self._labels, self._gauges = prometheus.CollectorRegistry(), dict(labels or {}), dict(gauges)
        self._made = {name: self._new(prometheus.Counter, name, said) for name, said in counters.items()}
        self._server = Server(address, self._registry)

    def _new(self, kind: Any, name: str, said: str) -> Any:
        made = kind(name, said, tuple(self._labels), registry=self._registry)
        return made.labels(**self._labels) if self._labels else made

    def add(self, name: str, amount: float) -> None:
        """Add to a counter."""
        self._made[name].inc(amount)

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        from prometheus_client import Gauge

        if name not in self._made:
            self._made[name] = self._new(Gauge, name, self._gauges[name])
        self._made[name].set(value)

    def __enter__(self) -> Self:
        _served.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _served.remove(self)
        self._server.end()
