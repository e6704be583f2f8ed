"""Peers that are not who they say, or send what is not due: each is told one sentence, and nothing is computed or lost."""

from __future__ import annotations

import contextlib
import datetime as dt
import queue
import re
import resource
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

import vfl
from coordinator.federation import gathering as gatherings
from coordinator.federation.gathering import ConnectedMembers
from coordinator.federation.transport import FederationTransport
from coordinator.prediction import ID_BYTES, apply
from parties.joined import NotAccepted, serve
from tests.coordinator.organisations import Joined, federation
from tests.faults.proxy import Proxy
from tests.ports import free_address
from vfl.base.losses import Logistic
from vfl.base.problem import Block
from vfl.errors import FederationError, PartyLost, PlacementError, SpecificationError
from vfl.network.federation.file import Federation
from vfl.network.federation.identity import Identity, new_identity
from vfl.network.kinds import FORMAT, to_plain
from vfl.network.messages import Applied, Done, Greeting
from vfl.network.wire.federation_pb2 import FromParty, Head, Hello, Piece, Progress, ToParty, Vector
from vfl.network.wire.frames import PROTOCOL, frames, parsed
from vfl.network.wire.streams import PartyStream, Peer, StreamBroken, der_of
from vfl.privacy.events import ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.selection import NoisyScore
from vfl.queries import Backward, Forward, Records, Reply, Select
from vfl.queries.protocol import Derivative
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def joined(tmp_path) -> Iterator[Joined]:
    with federation(tmp_path) as joined:
        yield joined


LISTENING = """
import sys
from coordinator.federation.gathering import ConnectedMembers
from vfl.network.federation.file import read_federation
from vfl.network.federation.identity import load_identity
with ConnectedMembers(read_federation(sys.argv[1]), load_identity(sys.argv[2])) as gathering:
    print(gathering.port, flush=True)
    sys.stdin.read()
"""
"""A coordinator that listens until its standard input is closed."""


def open_to(joined: Joined) -> ConnectedMembers:
    return ConnectedMembers(joined.federation, joined.identities["hub"])


class Raw:
    """A party's end of a stream that sends any frames."""

    def __init__(self, joined: Joined, identity: Identity, **hello: Any) -> None:
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.dialled = PartyStream(joined.federation, identity, iter(self._out.get, None))
        self.frames = self.dialled.frames()
        fields = {
            "protocol": PROTOCOL,
            "version": __version__,
            "federation": joined.federation.digest,
            "name": identity.name,
            "process": b"p" * 16,
        }
        self.send(FromParty(hello=Hello(**fields | hello)))

    def send(self, *given: Any) -> None:
        for each in given:
            self._out.put(each if isinstance(each, bytes) else each.SerializeToString())

    def next(self) -> ToParty:
        return parsed(ToParty, next(self.frames))[0]

    def answer(self, message: object, vectors: dict[str, Any] | None = None) -> None:
        """Answer the next call."""
        head = self.next().head
        self.send(*frames(head.call, to_plain(message), vectors))

    def close(self) -> None:
        self._out.put(None)
        self.dialled.close()


@contextlib.contextmanager
def raw(joined: Joined, who: str = "bank", /, **hello: Any) -> Iterator[Raw]:
    made = Raw(joined, joined.identities[who], **hello)
    try:
        yield made
    finally:
        made.close()


def reason(made: Raw) -> str:
    frame = made.next()
    assert frame.WhichOneof("frame") == "refused"
    with pytest.raises(StreamBroken):  # nothing follows
        made.next()
    return frame.refused.reason


class TestStrangers:
    def test_a_certificate_that_is_not_in_the_file(self, joined, tmp_path) -> None:
        (tmp_path / "other").mkdir()
        stranger = new_identity("bank", tmp_path / "other")
        theirs = _with(joined.federation, bank=stranger)
        with (
            open_to(joined),
            pytest.raises(NotAccepted, match=f"certificate of 'bank', {stranger.fingerprint}"),
        ):
            serve(stranger, theirs, {"": None}, joined.policy("bank"))

    def test_a_certificate_that_is_not_the_files_is_found_before_connecting(self, joined, tmp_path) -> None:
        (tmp_path / "other").mkdir()
        stranger = new_identity("bank", tmp_path / "other")
        with pytest.raises(SpecificationError, match="expects a different certificate for 'bank'"):
            serve(stranger, joined.federation, {"": None}, joined.policy("bank"))

    def test_one_party_under_the_name_of_another(self, joined) -> None:
        bank, telco = (joined.identities[name].fingerprint for name in ("bank", "telco"))
        with open_to(joined), raw(joined, "telco", name="bank") as made:
            assert re.search(f"'bank'.*{bank}.*{telco}", reason(made))

    def test_a_server_that_is_not_the_coordinator(self, joined, tmp_path) -> None:
        (tmp_path / "other").mkdir()
        false = new_identity("hub", tmp_path / "other")
        with (
            ConnectedMembers(joined.federation, false),
            pytest.raises(
                NotAccepted,
                match=f"'hub'.*{false.fingerprint}.*{joined.identities['hub'].fingerprint} is expected",
            ),
        ):
            serve(joined.identities["bank"], joined.federation, {"": None}, joined.policy("bank"))

    def test_an_expired_certificate(self, joined) -> None:
        expired = _expired(joined.identities["bank"])
        pinned = _with(joined.federation, bank=expired)
        with ConnectedMembers(pinned, joined.identities["hub"]):
            dialled = PartyStream(pinned, expired, iter([]))
            with pytest.raises(StreamBroken, match="certificate of 'bank'"):
                next(dialled.frames())
            dialled.close()

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_tls_1_3_alone(self, joined, version) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(joined.folder / "bank.pem", joined.folder / "bank.key")
        # gRPC reads its cipher suites once per process, and another library may have started it before: take a new one.
        command = [sys.executable, "-c", LISTENING, str(joined.file), str(joined.folder / "hub.key")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hub:
            assert hub.stdout is not None
            port = int(hub.stdout.readline())
            with (
                socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
                context.wrap_socket(plain, server_hostname="hub", do_handshake_on_connect=False) as stream,
            ):
                if version is ssl.TLSVersion.TLSv1_2:
                    with pytest.raises((ssl.SSLError, ConnectionError)):
                        stream.do_handshake()
                else:
                    stream.do_handshake()
                    assert stream.recv(1)
            hub.communicate("")

    def test_a_member_that_speaks_an_older_tls(self, joined) -> None:
        bank = joined.federation.parties["bank"]
        assert Peer(der_of(bank.certificate_pem.decode()), "TLSv1.3").is_member(bank)
        assert not Peer(der_of(bank.certificate_pem.decode()), "TLSv1.2").is_member(bank)

    def test_no_certificate_and_no_tls(self, joined) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with open_to(joined) as gathering:
            with (
                socket.create_connection(("127.0.0.1", gathering.port), timeout=10) as plain,
                context.wrap_socket(plain, server_hostname="hub") as stream,
                contextlib.suppress(OSError),
            ):
                assert stream.recv(1) == b""
            with socket.create_connection(("127.0.0.1", gathering.port), timeout=10) as plain:
                plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
                with contextlib.suppress(OSError):
                    assert b"\x00\x00" not in plain.recv(100)[:2]
            assert gathering.connected() == {}

    def test_a_recorded_stream_that_is_sent_again(self, joined) -> None:
        listening = free_address()
        with (
            ConnectedMembers(joined.federation, joined.identities["hub"], listen=listening) as gathering,
            Proxy(joined.federation.address, listening) as proxy,
        ):
            with raw(joined) as made:
                assert made.next().WhichOneof("frame") == "welcome"
            while gathering.connected():
                pass
            host, _, port = listening.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=10) as plain, contextlib.suppress(OSError):
                plain.sendall(bytes(proxy.seen))
                while plain.recv(1 << 16):
                    pass
            assert gathering.connected() == {}


class TestGreetings:
    @pytest.mark.parametrize(
        ("hello", "said"),
        [
            ({"version": "0.0.0"}, "'bank' runs vfl 0.0.0, the coordinator"),
            ({"protocol": 9}, "install one version everywhere"),
            ({"federation": "00"}, "the federation files differ: this one has the digest"),
            ({"name": "nobody"}, "'nobody' is not a party of the federation 'credit'"),
            ({"name": "hub"}, "'hub' is not a party of the federation 'credit'"),
            ({"process": b""}, "does not name its process"),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_a_greeting_that_does_not_fit(self, joined, hello, said) -> None:
        with open_to(joined) as gathering, raw(joined, **hello) as made:
            assert said in reason(made)
            assert gathering.connected() == {}

    def test_no_greeting(self, joined, monkeypatch) -> None:
        monkeypatch.setattr(gatherings, "HELLO_SECONDS", 0.3)
        with open_to(joined):
            dialled = PartyStream(joined.federation, joined.identities["bank"], iter(threading.Event().wait, True))
            frame, _ = parsed(ToParty, next(dialled.frames()))
            assert frame.refused.reason.startswith("no greeting came")
            dialled.close()

    def test_a_second_process_of_a_party(self, joined) -> None:
        with open_to(joined) as gathering, raw(joined) as first:
            assert first.next().WhichOneof("frame") == "welcome"  # the second stream opens after it: they would race
            with raw(joined, process=b"q" * 16) as second:
                frame = second.next()
            assert frame.refused.busy
            assert "another process of 'bank'" in frame.refused.reason
            assert gathering.connected()["bank"].process == b"p" * 16

    def test_the_same_process_replaces_its_stream(self, joined) -> None:
        with open_to(joined) as gathering, raw(joined) as first:
            assert first.next().WhichOneof("frame") == "welcome"
            older = gathering.connected()["bank"]
            with raw(joined) as second:
                assert second.next().WhichOneof("frame") == "welcome"
                assert older.ended == "it connected again"
                assert gathering.connected()["bank"] is not older

    def test_a_second_coordinator(self, joined) -> None:
        with (
            open_to(joined),
            pytest.raises(PlacementError, match="perhaps another coordinator"),
        ):
            open_to(joined)


N = 50
BLOCK = Block(0, "bank", 0, 2, 0)
FORWARD = Forward({"bank": (BLOCK, np.zeros(2))})
BACKWARD = Backward(Derivative(Logistic()), (BLOCK,), (np.zeros(2),), (np.ones(2),), Clip(1.0, 2), None)
NOISED = replace(BACKWARD, event=BACKWARD.clip.event(3.0))
CALLS = {
    "too large a body": lambda call: [FromParty(head=Head(call=call, body=1 << 40))],
    "a reply of 4 GB": lambda call: [
        FromParty(head=Head(call=call, body=10, vectors=[Vector(name="vector", size=1 << 32)]))
    ],
    "a vector that is not due": lambda call: [
        FromParty(head=Head(call=call, body=10, vectors=[Vector(name="weights", size=8)]))
    ],
    "many vectors": lambda call: [
        FromParty(head=Head(call=call, body=10, vectors=[Vector(name=str(k), size=8) for k in range(99)]))
    ],
    "a vector twice": lambda call: [
        FromParty(head=Head(call=call, body=10, vectors=[Vector(name="vector", size=8 * N)] * 2))
    ],
    "a constant that is not held": lambda call: [
        FromParty(head=Head(call=call, body=10, vectors=[Vector(name="vector", size=8 * N, held=True, digest=b"x")]))
    ],
    "another call": lambda call: [FromParty(head=Head(call=call + 1, body=10))],
    "a piece without a head": lambda call: [FromParty(piece=Piece(call=call, data=b"x"))],
    "more than was announced": lambda call: [
        FromParty(head=Head(call=call, body=2)),
        FromParty(piece=Piece(call=call, data=b"xyz")),
    ],
    "a second greeting": lambda call: [FromParty(hello=Hello())],
    "progress of another call": lambda call: [FromParty(progress=Progress(call=call + 5, done=1))],
    "random bytes": lambda call: [b"\xff\xfe\xfd" * 5],
    "nothing": lambda call: [b""],
}


@contextlib.contextmanager
def asking(joined: Joined) -> Iterator[tuple[FederationTransport, Raw]]:
    """Yield a transport to a party that has stated N records."""
    with open_to(joined) as gathering, raw(joined) as made:
        assert made.next().WhichOneof("frame") == "welcome"
        transport = FederationTransport(
            gathering, ("bank",), offer=lambda _: None, parts=lambda n: (n, 0), timeout=20.0, load_seconds=20.0
        )
        answering = threading.Thread(target=made.answer, args=(Greeting(__version__, N),))
        answering.start()
        transport.greet()
        answering.join()
        yield transport, made


def asked(transport: FederationTransport, made: Raw, query: Any, reply: Any) -> Any:
    """Ask a query that is answered by frames, or by a message with vectors."""

    def work() -> None:
        if callable(reply):
            made.send(*reply(made.next().head.call))
        else:
            made.answer(*reply)

    answering = threading.Thread(target=work)
    answering.start()
    try:
        return transport.ask({"bank": query}, Records(weights=np.zeros(N)), ReleaseKey(0))
    finally:
        answering.join()


@pytest.mark.parametrize("case", CALLS)
def test_frames_that_are_not_due_end_the_session(joined, case: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with asking(joined) as (transport, made):
        with pytest.raises(PartyLost, match=r"'bank'.*broke the protocol"):
            asked(transport, made, FORWARD, CALLS[case])
        with pytest.raises(StreamBroken):
            made.next()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


REPLIES = {
    "no n-vector": (FORWARD, (Reply(), {}), "vector of an unexpected size"),
    "too short a vector": (FORWARD, (Reply(), {"vector": np.zeros(N - 1)}), "vector of an unexpected size"),
    "a release that was not asked for": (
        FORWARD,
        (Reply((np.zeros(3),)), {"vector": np.zeros(N)}),
        "releases of different lengths",
    ),
    "a release of another length": (BACKWARD, (Reply((np.zeros(3),)), {}), "releases of different lengths"),
    "no release": (BACKWARD, (Reply(), {}), "releases of different lengths"),
    "a selection that was not asked for": (
        BACKWARD,
        (Reply((np.zeros(2),), None, NoisyScore(0, 1)), {}),
        "releases of different lengths",
    ),
    "a release that is not a number": (NOISED, (Reply((np.array([0.0, np.nan]),)), {}), "not a finite number"),
    "an infinite release": (NOISED, (Reply((np.array([-np.inf, 0.0]),)), {}), "not a finite number"),
    "a time that is not a number": (BACKWARD, (Reply((np.zeros(2),), seconds=float("inf")), {}), "impossible time"),
    "another message": (FORWARD, (Done(), {}), "answered with a Done, where a Reply was expected"),
    "another kind": (FORWARD, lambda call: frames(call, (FORMAT, "shell", "rm")), "unknown message kind 'shell'"),
    "another format": (FORWARD, lambda call: frames(call, (0, "reply")), "a format different"),
    "no tuple": (
        FORWARD,
        lambda call: [FromParty(head=Head(call=call, body=2, inline=b"\x10\x02"))],
        "not in the wire format",
    ),
}


@pytest.mark.parametrize("case", REPLIES)
def test_replies_that_do_not_fit_are_refused(joined, case: str) -> None:
    query, reply, said = REPLIES[case]
    with asking(joined) as (transport, made), pytest.raises(FederationError, match=said):
        asked(transport, made, query, reply)


def test_a_selection_outside_the_block_is_refused(joined) -> None:
    from vfl.base.penalties import L2
    from vfl.solvers.gcd import MoveScore

    score = MoveScore(np.ones(2), np.ones(2), np.ones(2), L2(0.1), 1.0)
    query = Select(
        Derivative(Logistic()),
        {"bank": (BLOCK, np.zeros(2))},
        {"bank": np.zeros(2)},
        {"bank": np.ones(2)},
        Clip(1.0, 1),
        {"bank": score},
        None,
    )
    with (
        asking(joined) as (transport, made),
        pytest.raises(FederationError, match="not asked"),
    ):
        asked(transport, made, query, (Reply(selected=NoisyScore(7, 1)), {}))


def test_labels_are_numbers(joined) -> None:
    with asking(joined) as (transport, made):
        answering = threading.Thread(target=made.answer, args=(Done(), {"labels": np.full(N, np.nan)}))
        answering.start()
        with pytest.raises(FederationError, match="a label that is not a number"):
            transport.labels("bank")
        answering.join()


def test_an_impossible_number_of_records(joined) -> None:
    with open_to(joined) as gathering, raw(joined) as made:
        assert made.next().WhichOneof("frame") == "welcome"
        transport = FederationTransport(
            gathering, ("bank",), offer=lambda _: None, parts=lambda n: (n, 0), timeout=20.0, load_seconds=20.0
        )
        answering = threading.Thread(target=made.answer, args=(Greeting(__version__, 1 << 60),))
        answering.start()
        with pytest.raises(FederationError, match="an impossible number of records"):
            transport.greet()
        answering.join()


def _with(given: Federation, **identities: Identity) -> Federation:
    """Return a federation in which these members have other certificates."""
    parties = dict(given.parties)
    for name, identity in identities.items():
        parties[name] = replace(
            parties[name], certificate_pem=identity.certificate_pem, fingerprint=identity.fingerprint
        )
    return Federation(given.name, given.coordinator, given.address, parties, given.digest)


def _expired(made: Identity) -> Identity:
    """Return the identity with a certificate like its own that expired yesterday."""
    key, like = load_pem_private_key(made.key_pem, None), x509.load_pem_x509_certificate(made.certificate_pem)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(like.subject)
        .issuer_name(like.subject)
        .public_key(key.public_key())
        .serial_number(like.serial_number)
        .not_valid_before(now - dt.timedelta(days=3))
        .not_valid_after(now - dt.timedelta(days=1))
    )
    for extension in like.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(key, hashes.SHA256())
    return Identity(
        made.name, signed.public_bytes(Encoding.PEM), made.key_pem, signed.fingerprint(hashes.SHA256()).hex()
    )


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (b"[" * 100_000, "not a list of ids"),
        (b"\xff", "not a list of ids"),
        (b'{"0": "n0"}', "not a list of ids"),
        (b'[["n0"]]', "not a list of ids"),
        (b'["n0", "n1"]', "a different number of ids from records"),
    ],
    ids=("deep", "no text", "not a list", "lists", "too many"),
)
def test_ids_of_predictions_that_do_not_fit(joined, ids: bytes, said: str) -> None:
    """A party's words end in one sentence at the coordinator, and in no other exception."""
    with open_to(joined) as gathering, raw(joined) as made:
        assert made.next().WhichOneof("frame") == "welcome"
        partition = vfl.FeaturePartition({"bank": ["a"]}, label=("bank", "y"))
        spec = vfl.Job(partition=partition, bounds={"a": (0.0, 1.0)}, privacy=vfl.Privacy(epsilon=1.0))
        transport = FederationTransport(gathering, ("bank",), timeout=20.0)
        n = 1 + len(ids) // ID_BYTES

        def work() -> None:
            made.answer(Applied(n))
            made.answer(Done(), {"margins": np.zeros(n), "ids": ids})

        answering = threading.Thread(target=work)
        answering.start()
        with pytest.raises(FederationError, match=said):
            list(apply(transport, spec, aligns=False, ids=True, threshold=0.0))
        answering.join()
