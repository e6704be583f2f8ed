"""Streams between the coordinator and parties: gRPC over mutual TLS 1.3, with pinned certificates at both ends.

Guarantee. The coordinator accepts a stream only from a peer that has proved to hold the key of a party's certificate in the
federation file. `Peer.is_member` then checks that this certificate belongs to the name that the peer claims. A party sends
nothing before the other end has proved to hold the key of the coordinator's certificate. There is no mode without TLS.

gRPC for Python has no option to use only TLS 1.3. CIPHERS therefore contains no cipher suite of TLS 1.2 for keys on P-256, so
that a handshake with TLS 1.2 fails. gRPC reads CIPHERS once per process. If another library has started gRPC before, such a
handshake succeeds; `Peer.is_member` then sees the version of TLS and refuses the stream.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import os
import re
import socket
import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vfl.errors import FederationError, PlacementError, SpecificationError
from vfl.network.wire.frames import LARGEST_FRAME
from vfl.network.wire.gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vfl.network.federation.certificate import Read
    from vfl.network.federation.file import Federation
    from vfl.network.federation.identity import Identity

METHOD = "Session"
SERVICE = "vfl.wire.v1.Federation"
CIPHERS = "ECDHE-RSA-AES256-GCM-SHA384"
"""Cipher suite of TLS 1.2 for RSA keys, which no member has. Suites of TLS 1.3 cannot be configured and stay enabled."""

CONNECT_SECONDS = 20.0
KEEPALIVE_SECONDS = 10
"""Seconds of silence after which a peer is pinged; also the seconds within which the peer must answer."""
HANDSHAKES = 3
"""Number of consecutive failed handshakes after which a party concludes that its certificate is refused."""
WINDOW = 1 << 24
"""Largest number of bytes in flight. A link with 20 ms at 1 Gb/s needs 2.5 MB."""

_OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST_FRAME),
    ("grpc.max_send_message_length", LARGEST_FRAME),
    ("grpc.max_metadata_size", 1 << 14),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.tcp_read_chunk_size", 1 << 20),
    ("grpc.experimental.tcp_min_read_chunk_size", 1 << 18),
    ("grpc.experimental.tcp_max_read_chunk_size", 1 << 22),
    ("grpc.server_handshake_timeout_ms", int(CONNECT_SECONDS * 1000)),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none, so that no small message expands in memory
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]
MOST_STREAMS = 4
"""Largest number of streams per certificate: one in use, plus replacements until the end of a broken stream is noticed."""
log = logging.getLogger("vfl.federation")
_loading = threading.Lock()


class StreamBroken(FederationError):
    """A stream ended or could not be opened. refused : True if a certificate was refused, so that later attempts fail, too."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


def import_grpc() -> Any:
    """Import gRPC without its log lines and with TLS 1.3 only. If gRPC is missing, SpecificationError names what to install."""
    with _loading:
        before = {name: os.environ.get(name) for name in ("GRPC_SSL_CIPHER_SUITES", "GRPC_VERBOSITY")}
        os.environ["GRPC_SSL_CIPHER_SUITES"] = CIPHERS
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            import grpc

            grpc.ssl_channel_credentials()  # gRPC reads these environment variables once, at this first use
        except ImportError:
            raise SpecificationError(
                "a federation across organisations needs gRPC: pip install 'vfl[federation]'"
            ) from None
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        return grpc


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a stream at the coordinator.

    certificate : in DER form, as verified by TLS. version : version of TLS. cancel : function that ends the stream at once.
    """

    certificate: bytes
    version: str
    cancel: Callable[[], object] = field(default=lambda: None, compare=False, repr=False)

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the certificate in hexadecimal."""
        return hashlib.sha256(self.certificate).hexdigest()

    def is_member(self, member: Read) -> bool:
        """Return True if this end has the member's pinned key and uses TLS 1.3."""
        return self.version == "TLSv1.3" and self.fingerprint == member.fingerprint


class Listener:
    """The coordinator's end of all streams. It runs `session(frames, peer, done)` for every stream, in a separate thread.

    session : function of the iterator of incoming frames, the peer, and a function that registers a callback for the end of
        the stream; it yields outgoing frames.
    listen : address to bind; None for the federation's port, on loopback if its address is one, else on all interfaces.

    Raises PlacementError if the address cannot be bound.
    """

    def __init__(
        self,
        federation: Federation,
        identity: Identity,
        session: Callable[[Iterator[bytes], Peer, Callable[[Callable[[], None]], Any]], Iterator[bytes]],
        *,
        listen: str | None = None,
    ) -> None:
        grpc = import_grpc()

        self._owners = {member.fingerprint: name for name, member in federation.joining.items()}
        self._lock = threading.Lock()
        self._streams: Counter[str] = Counter()

        def handle(frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
            found = context.auth_context()
            pem = found.get("x509_pem_cert", [b""])[0].decode()
            version = found.get("ssl_tls_version", [b""])[0].decode()
            peer = Peer(der_of(pem) if pem else b"", version, context.cancel)
            if not self._taken(peer, context):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self._crowded(peer))
            return session(_until_broken(frames), peer, context.add_callback)

        # A stream beyond the limits of its certificate takes a thread only until it is refused.
        self._threads = ThreadPoolExecutor(MOST_STREAMS * len(federation.joining) + 8, thread_name_prefix="vfl-session")
        self._server = grpc.server(self._threads, options=_OPTIONS)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: grpc.stream_stream_rpc_method_handler(handle)}),)
        )
        credentials = grpc.ssl_server_credentials(
            [(identity.key_pem, identity.certificate_pem)],
            root_certificates=b"".join(member.certificate_pem for member in federation.joining.values()),
            require_client_auth=True,
        )
        bound = listen or _bound(federation.address)
        try:
            self._gate = Gate(bound)
        except OSError:
            raise PlacementError(
                f"cannot listen at {bound}: another process does, perhaps another coordinator of this federation, or the "
                "address is not one of this machine"
            ) from None
        self.port = self._gate.port
        self._server.add_secure_port(self._gate.inner, credentials)
        self._server.start()
        self._gate.open()

    def close(self) -> None:
        """End all streams, and close the port."""
        self._server.stop(1.0).wait()
        self._gate.close()
        self._threads.shutdown(wait=True)

    def _taken(self, peer: Peer, context: Any) -> bool:
        """Return False if the certificate already has MOST_STREAMS streams. Otherwise count this stream until it ends."""

        def end() -> None:
            with self._lock:
                self._streams[peer.fingerprint] -= 1
            self._gate.release(context.peer())

        with self._lock:
            if self._streams[peer.fingerprint] >= MOST_STREAMS:
                return False
            self._streams[peer.fingerprint] += 1
        self._gate.hold(context.peer())
        if not context.add_callback(end):  # the stream has ended already
            end()
        return True

    def _crowded(self, peer: Peer) -> str:
        owner = self._owners.get(peer.fingerprint, "an unknown member")
        why = (
            f"{MOST_STREAMS} streams under the certificate of {owner!r} ({peer.fingerprint[:12]}) are open, and a member needs "
            f"one: stop its other processes, or make a new identity if its key is in other hands"
        )
        log.warning(json.dumps({"event": "refused", "peer": peer.fingerprint, "why": why}))
        return why


class PartyStream:
    """A party's end of a stream. `frames` yields incoming frames and raises StreamBroken at the end of the stream."""

    def __init__(self, federation: Federation, identity: Identity, outgoing: Iterator[bytes]) -> None:
        self._grpc = import_grpc()
        self._federation, self._identity = federation, identity
        coordinator = federation.coordinator
        credentials = self._grpc.ssl_channel_credentials(
            coordinator.certificate_pem, identity.key_pem, identity.certificate_pem
        )
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", coordinator.name)]
        self._channel = self._grpc.secure_channel(federation.address, credentials, options=options)
        self._call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")(outgoing)

    def frames(self) -> Iterator[bytes]:
        """Yield incoming frames as they arrive."""
        try:
            yield from self._call
        except self._grpc.RpcError as error:
            raise self._broken(error) from None
        raise StreamBroken("the coordinator closed the stream, as its commands do when they end")

    def close(self) -> None:
        """End the stream; `frames` then raises StreamBroken. Another thread may call this."""
        self._call.cancel()
        self._channel.close()

    def _broken(self, error: Any) -> StreamBroken:
        code, details = error.code(), error.details() or ""
        if code == self._grpc.StatusCode.CANCELLED:
            return StreamBroken("the stream was ended")
        if code == self._grpc.StatusCode.UNAVAILABLE and "failed to connect" in details:
            broken = StreamBroken(f"the stream to {self._federation.address} broke")
            return obstacle(self._federation, self._identity) or broken
        if code == self._grpc.StatusCode.RESOURCE_EXHAUSTED:
            reason = "".join(c if c.isprintable() else " " for c in details)[:1000]
            return StreamBroken(f"the coordinator refuses the stream: {reason}")
        return StreamBroken(f"the stream to {self._federation.address} broke ({code.name.lower()})")


def obstacle(federation: Federation, identity: Identity) -> StreamBroken | None:
    """Try TLS handshakes, and return the reason why no stream can be opened; None if both ends accept each other.

    A refusal is tried again, because a coordinator under load also closes connections whose certificate it accepts.
    """
    for _ in range(HANDSHAKES - 1):
        found = _obstacle(federation, identity)
        if found is None or not found.refused:
            return found
    return _obstacle(federation, identity)


def _obstacle(federation: Federation, identity: Identity) -> StreamBroken | None:
    where, coordinator = federation.address, federation.coordinator
    try:
        with _handshake(where, identity) as connection:
            came = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
            if came != coordinator.fingerprint:
                return StreamBroken(
                    f"the server at {where} is not the coordinator {coordinator.name!r} of this federation: its certificate "
                    f"is {came}, and {coordinator.fingerprint} is expected",
                    refused=True,
                )
            if connection.recv(1):
                return None
    except ssl.SSLError as error:
        return StreamBroken(f"no TLS 1.3 handshake with {where}: {error.reason or 'the connection was closed'}")
    except OSError as error:
        return StreamBroken(f"no coordinator answers at {where}: {error.strerror or 'no answer in time'}")
    return StreamBroken(
        f"the coordinator at {where} does not accept the certificate of {identity.name!r}, {identity.fingerprint}: its "
        "federation file names another one, or none",
        refused=True,
    )


@contextlib.contextmanager
def _handshake(where: str, identity: Identity) -> Iterator[ssl.SSLSocket]:
    """Yield a connection after a handshake without verification, in order to inspect the other end's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    if hasattr(os, "memfd_create"):  # the key is written to no disk
        with _files_of(identity) as (certificate, key):
            context.load_cert_chain(certificate, key)
    host, _, port = where.rpartition(":")
    with (
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host.strip("[]")) as connection,
    ):
        yield connection


@contextlib.contextmanager
def _files_of(identity: Identity) -> Iterator[tuple[str, str]]:
    """Yield paths of in-memory files with the certificate and the key, since Python's TLS reads both from files only."""
    with contextlib.ExitStack() as stack:
        paths = []
        for content in (identity.certificate_pem, identity.key_pem):
            descriptor = os.memfd_create("identity")
            stack.callback(os.close, descriptor)
            os.write(descriptor, content)
            paths.append(f"/proc/self/fd/{descriptor}")
        yield paths[0], paths[1]


def der_of(pem: str) -> bytes:
    """Return the first certificate of a PEM text in DER form."""
    found = re.search("-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", pem, re.DOTALL)
    return base64.b64decode(found[1]) if found else b""


def _until_broken(frames: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the frames, and end without an error when gRPC raises any error."""
    with contextlib.suppress(Exception):
        yield from frames


def _bound(address: str) -> str:
    host, _, port = address.rpartition(":")
    loopback = host == "localhost" or host.startswith("127.") or host == "[::1]"
    return address if loopback else f"[::]:{port}"
