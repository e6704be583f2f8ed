"""Running a scoring service: the server, reloading on SIGHUP, and the end."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import ssl
import sys
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.federation.gathering import ConnectedMembers
from vfl.apps.serving.application import LARGEST_BODY, Application
from vfl.apps.serving.callers import Callers
from vfl.apps.serving.file import read_service
from vfl.apps.serving.scoring import ServedModels
from vfl.errors import PlacementError, SpecificationError, VflError
from vfl.launch.metrics import Server
from vfl.network.federation.file import identity_for, read_federation
from vfl.network.wire.gate import raise_descriptors

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from vfl.apps.serving.file import Caller


STOPPING_SECONDS = 5
MESSAGE_SECONDS = ANSWER_SECONDS = 20.0
MOST_PIPELINED = 8
MOST_HEAD, MOST_BYTES = 1 << 16, 2 * LARGEST_BODY
MOST_CONNECTIONS = 1000
SWITCH_SECONDS = 5e-4
"""Time after which a busy thread lets another run. A request passes five threads, so Python's default, 5 ms, would add up."""


class _Protocol(HttpToolsProtocol):
    """HTTP protocol with limits on requests and on unread answers.

    A connection is closed

    - if a request is not complete MESSAGE_SECONDS after its first byte (the first request: after the connection began),
    - if a request's head has more than MOST_HEAD bytes, or the whole request more than MOST_BYTES,
    - if more than MOST_PIPELINED requests wait for the answer to an earlier one,
    - if its answers are not read within ANSWER_SECONDS.

    Beyond MOST_CONNECTIONS, one connection is closed that waits for a request or whose answer is unread: first one that has
    not shown a token or certificate of a caller, then the one that has waited longest.

    certificate : fingerprint of the client certificate, or ''. known : True once a request has named a caller.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        der = None if connection is None else connection.getpeercert(binary_form=True)
        self.certificate, self.known = hashlib.sha256(der).hexdigest() if der else "", False
        self.app_state = {**self.app_state, "connection": self}
        self._late: asyncio.TimerHandle | None = None
        self._unread_since: float | None = None
        self._await()
        self._watch()
        if len(self.connections) > MOST_CONNECTIONS:
            idle = [each for each in self.connections if isinstance(each, _Protocol) and each.idle]
            min(idle, key=lambda each: (each.known, each.since), default=self).transport.abort()

    @property
    def idle(self) -> bool:
        """True unless a complete request is being answered to a client that reads."""
        waits = self._late is not None or self.cycle is None or self.cycle.response_complete
        return waits or self.transport.get_write_buffer_size() > 0

    def _watch(self) -> None:
        """Close the connection if bytes of answers stay unread for ANSWER_SECONDS; look again later."""
        now = self.loop.time()
        unread = self.transport.get_write_buffer_size() > 0
        if unread and self._unread_since is not None and now - self._unread_since >= ANSWER_SECONDS:
            self.transport.abort()
            return
        self._unread_since = (self._unread_since or now) if unread else None
        self._watching = self.loop.call_later(ANSWER_SECONDS / 4, self._watch)

    def _await(self) -> None:
        self.since, self._received, self._in_head = self.loop.time(), 0, True
        self._late = self._late or self.loop.call_later(MESSAGE_SECONDS, self.transport.abort)

    def _complete(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._complete()
        self._watching.cancel()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._late is not None:
            self._received += len(data)
            if self._received > (MOST_HEAD if self._in_head else MOST_BYTES):
                self.transport.abort()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            self.transport.abort()
            raise ValueError("too many requests wait for an answer")  # ends the parsing of these bytes
        self._await()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._complete()
        super().on_message_complete()


class Service:
    """Scoring service, built from a service file. Raises SpecificationError before the service accepts requests."""

    def __init__(self, path: str | Path) -> None:
        self.file = read_service(path)
        self._callers = Callers(self.file.callers)
        self._tls: ssl.SSLContext | None = None
        self._stack = contextlib.ExitStack()
        gathering = self._stack.enter_context(self._gathering()) if self.file.federation is not None else None
        try:
            self.scoring = ServedModels(self.file, self._callers, gathering)
        except BaseException:
            self._stack.close()
            raise
        self.application = Application(self.scoring, self._callers)
        host, _, port = self.file.listen.rpartition(":")
        secure: dict[str, Any] = {}
        if self.file.certificate is not None:
            secure = {"ssl_certfile": self.file.certificate, "ssl_context_factory": self._context}
        config = uvicorn.Config(
            self.application.app,
            host.strip("[]"),
            int(port),
            http=_Protocol,
            log_config=None,
            log_level="error",  # a stranger can cause warnings without end
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=STOPPING_SECONDS,
            **secure,
        )
        self._server = uvicorn.Server(config)

    def run(self, watch: Callable[[dict[str, Any]], None]) -> None:
        """Serve until SIGTERM or Ctrl-C. SIGHUP reads the service file and the data again. watch : called with each event."""
        raise_descriptors()
        self.scoring.watch = watch
        if self.file.metrics is not None:
            self._stack.callback(Server(self.file.metrics, self.application.registry).end)
        sys.setswitchinterval(SWITCH_SECONDS)
        pa.array([""])  # the first conversion of a list imports pandas, which may take seconds
        before = self._handled(watch)
        watch({"event": "serving", "listen": self.file.listen, "party": self.file.party, **self._models()})
        try:
            self._server.run()
            if not self._server.started:
                raise PlacementError(
                    f"cannot serve at {self.file.listen}: name a free address of this machine in `listen`"
                )
        finally:
            if before is not None:
                signal.signal(signal.SIGHUP, before)
            self._stack.close()

    def stop(self) -> None:
        """End the service. Any thread may call this method."""
        self._server.should_exit = True

    def reload(self, watch: Callable[[dict[str, Any]], None]) -> None:
        """Read the service file again, for new callers and models, the data, and the certificate and key of HTTPS.

        A changed address, or a different data or certificate file, takes effect only after a restart.
        """
        try:
            file = read_service(self.file.path)
            if self._tls is not None:
                self._present(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            found, failures = self.scoring.loaded(file)
        except VflError as error:
            watch({"event": "not reloaded", "why": str(error)})
            return

        def take() -> None:
            if self._tls is not None:
                with contextlib.suppress(SpecificationError):  # read above; a later change needs another reload
                    self._trust(self._tls, file.callers)
            self._callers.update(file.callers)
            self.scoring.take(file, found, failures)
            watch({"event": "reloaded", **self._models()})

        self.application.soon(take)
        for party, why in self.scoring.refresh().items():
            watch({"event": "data", "party": party, "why": f"not read again: {why}", "stale": True})

    def _models(self) -> dict[str, Any]:
        """Return each model's versions and its active version, and {model/version: reason} of refused versions."""
        kept = {
            name: {"active": own["active"], "versions": [*own["versions"]]}
            for name, own in self.scoring.described().items()
        }
        return {"models": kept} | ({"refused": self.scoring.failures} if self.scoring.failures else {})

    def _handled(self, watch: Callable[[dict[str, Any]], None]) -> Any:
        """Reload on SIGHUP, in a thread. Return the earlier signal handler; None outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return None

        def reload(number: int, frame: object) -> None:
            del number, frame  # the signature of handlers
            threading.Thread(target=self.reload, args=(watch,), daemon=True).start()

        return signal.signal(signal.SIGHUP, reload)

    @contextlib.contextmanager
    def _gathering(self) -> Iterator[ConnectedMembers]:
        path = self.file.federation
        if path is None:
            raise SpecificationError("the service has no federation")
        federation = read_federation(path)
        if federation.coordinator.name != self.file.party:
            raise SpecificationError(
                f"{self.file.party!r} is not the coordinator of the federation {federation.name!r}, to which the other "
                "parties send their linear predictors. Write a federation file with vfl federation new NAME --coordinator "
                f"{self.file.party}=…"
            )
        with ConnectedMembers(
            federation, identity_for(federation, path, self.file.party, self.file.identity)
        ) as gathering:
            yield gathering

    def _context(self, config: uvicorn.Config, default: Any) -> ssl.SSLContext:
        """Return the TLS 1.3 context, which accepts callers with a pinned certificate, and callers without a certificate."""
        self._tls = context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self._trust(context, self.file.callers)
        return context

    def _trust(self, context: ssl.SSLContext, callers: Mapping[str, Caller]) -> None:
        """Present the service's certificate, and verify these callers', in all later connections.

        A context never forgets a certificate. `Callers` refuses a caller who is no longer listed.
        """
        self._present(context)
        pinned = [one.certificate.certificate_pem.decode() for one in callers.values() if one.certificate is not None]
        if pinned:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(cadata="\n".join(pinned))

    def _present(self, context: ssl.SSLContext) -> None:
        """Read the service's certificate and key. Raises SpecificationError."""
        if self.file.certificate is None or self.file.key is None:
            raise SpecificationError("HTTPS needs certificate and key")
        try:
            context.load_cert_chain(self.file.certificate, self.file.key)
        except (OSError, ssl.SSLError) as error:
            raise SpecificationError(f"certificate and key of the service cannot be used: {error.strerror}") from None
