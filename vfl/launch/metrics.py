"""Metrics over HTTP in Prometheus's text format, for runs and parties outside Ray. They are numbers only, never data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from vfl.errors import OutputError
from vfl.federation.file import check_address

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType


class Unmetered:
    """Sink that discards all metrics."""

    def add(self, name: str, amount: float) -> None:
        """Do nothing."""

    def set(self, name: str, value: float) -> None:
        """Do nothing."""


_served: list[Metrics] = []


def meters() -> Metrics | Unmetered:
    """Return the metrics that this process serves; else a sink that discards them."""
    return _served[-1] if _served else Unmetered()


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
        from prometheus_client import CollectorRegistry, Counter, start_http_server

        check_address(address, "the address of the metrics")
        self._registry, self._labels, self._gauges = CollectorRegistry(), dict(labels or {}), dict(gauges)
        self._made = {name: self._new(Counter, name, said) for name, said in counters.items()}
        host, _, port = address.rpartition(":")
        try:
            self._server, _ = start_http_server(int(port), host.strip("[]"), self._registry)
        except OSError as error:
            raise OutputError(f"cannot serve metrics at {address!r}: {error.strerror}; name a free address") from error

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
        self._server.shutdown()
        self._server.server_close()
