"""Acceptance of one stream per member of a federation. A refused peer receives the reason."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from coordinator.federation.link import Link
from vfl.errors import PartyLost
from vfl.version import __version__
from vfl.wire.federation_pb2 import FromParty, Refused, ToParty, Welcome
from vfl.wire.frames import PROTOCOL, parsed
from vfl.wire.streams import Listener
from vfl.wire.values import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from vfl.federation.file import Federation
    from vfl.federation.identity import Identity
    from vfl.wire.federation_pb2 import Hello
    from vfl.wire.streams import Peer

HELLO_SECONDS = 10.0

log = logging.getLogger("vfl.federation")
ENDED = "the coordinator has ended"
"""Reason that parties receive when the coordinator closes their streams, after a run or an error."""


class Gathering:
    """Connected members of a federation, with one stream each: the parties, and the dealer in training on shares.

    If a party connects again from the same process, the new stream replaces the old one. A second process of the party is
    refused while the first process is connected.

    listen : address to bind (vfl.wire.streams.Listener).
    """

    def __init__(self, federation: Federation, identity: Identity, *, listen: str | None = None) -> None:
        self._federation, self.parties = federation, tuple(federation.parties)
        self._process = secrets.token_bytes(16)
        self._links: dict[str, Link] = {}
        self._changed = threading.Condition()
        self._listener = Listener(federation, identity, self._session, listen=listen)
        self.port = self._listener.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all streams and close the port."""
        with self._changed:
            links = list(self._links.values())
        for link in links:
            link.end(ENDED)
        self._listener.close()

    def link(self, party: str, seconds: float) -> Link:
        """Wait for the party's stream, and return it. Raises PartyLost after `seconds`."""
        until = time.monotonic() + seconds
        with self._changed:
            while (link := self._links.get(party)) is None or link.ended:
                left = until - time.monotonic()
                if left <= 0.0 or not self._changed.wait(left):
                    raise PartyLost(
                        f"{party!r} did not connect within {seconds:g} s: its owner has to run vfl join", party
                    )
            return link

    def connected(self) -> dict[str, Link]:
        """Return {party: stream} for all open streams."""
        with self._changed:
            return {party: link for party, link in self._links.items() if not link.ended}

    def wait(self, parties: Collection[str], seconds: float) -> dict[str, Link]:
        """Return the streams of these parties once all are connected. Else raises PartyLost, which names a missing party."""
        until = time.monotonic() + seconds
        return {party: self.link(party, max(until - time.monotonic(), 0.0)) for party in parties}

    def _session(
        self, frames: Iterator[bytes], peer: Peer, at_end: Callable[[Callable[[], None]], Any]
    ) -> Iterator[bytes]:
        hello = _first(frames, at_end)
        why, busy, link = self._reason(hello, peer), False, None
        if hello is not None and not why:
            link = Link(hello.name, hello.process, hello.version, peer.cancel)
            if busy := not self._admitted(link):
                why = f"another process of {hello.name!r} is connected: a party joins from one process"
        if link is None or busy:
            log.warning(json.dumps({"event": "refused", "peer": peer.fingerprint, "why": why}))
            yield ToParty(refused=Refused(reason=why, busy=busy)).SerializeToString()
            return
        log.info(json.dumps({"event": "connected", "party": link.party}))
        at_end(lambda: self._gone(link, "the connection broke"))
        reading = threading.Thread(target=self._read, args=(link, frames), daemon=True)
        reading.start()
        try:
            yield ToParty(
                welcome=Welcome(
                    protocol=PROTOCOL,
                    version=__version__,
                    federation=self._federation.digest,
                    name=self._federation.coordinator.name,
                    process=self._process,
                )
            ).SerializeToString()
            yield from link.outgoing()
        finally:
            self._gone(link, "the connection broke")

    def _read(self, link: Link, frames: Iterator[bytes]) -> None:
        try:
            for data in frames:
                link.receive(data)
        except WireError as error:
            log.warning(json.dumps({"event": "refused", "party": link.party, "why": str(error)}))
            self._gone(link, f"it broke the protocol: {error}")
        self._gone(link, "the connection broke")

    def _admitted(self, link: Link) -> bool:
        """Return False if another process of the party is connected. An older stream of the same process is ended."""
        with self._changed:
            older = self._links.get(link.party)
            if older is not None and older.process != link.process and not older.ended:
                return False
            self._links[link.party] = link
            self._changed.notify_all()
        if older is not None:
            older.end("it connected again")
        return True

    def _gone(self, link: Link, why: str) -> None:
        link.end(why)
        with self._changed:
            if self._links.get(link.party) is link:
                del self._links[link.party]
                self._changed.notify_all()
                log.info(json.dumps({"event": "disconnected", "party": link.party, "why": link.ended}))

    def _reason(self, hello: Hello | None, peer: Peer) -> str:
        """Return the reason for refusing a peer; '' if the peer is accepted."""
        if hello is None:
            return f"no greeting came within {HELLO_SECONDS:g} s"
        member = self._federation.joining.get(hello.name)
        if member is None:
            return f"{hello.name!r} is not a party of the federation {self._federation.name!r}"
        if not peer.is_member(member):
            if peer.version != "TLSv1.3":
                return f"TLS 1.3 is needed, not {peer.version}"
            return (
                f"{hello.name!r} is expected with the certificate {member.fingerprint}, and {peer.fingerprint} came: use the "
                "identity whose certificate is in the federation file"
            )
        if hello.federation != self._federation.digest:
            return (
                f"the federation files differ: this one has the digest {self._federation.digest}, that of {hello.name!r} "
                f"{hello.federation:.64}; exchange the file again"
            )
        if hello.protocol != PROTOCOL or hello.version != __version__:
            return f"{hello.name!r} runs vfl {hello.version:.32}, the coordinator {__version__}: install one version everywhere"
        if len(hello.process) != 16:
            return "the greeting does not name its process"
        return ""


def _first(frames: Iterator[bytes], at_end: Callable[[Callable[[], None]], Any]) -> Hello | None:
    """Return the first frame if it arrives in time and is a Hello; else None."""
    found: list[Hello] = []
    there = threading.Event()
    at_end(there.set)

    def read() -> None:
        try:
            frame, _ = parsed(FromParty, next(frames, b""))
            if frame.WhichOneof("frame") == "hello":
                found.append(frame.hello)
        except WireError:
            pass
        there.set()

    threading.Thread(target=read, daemon=True).start()
    there.wait(HELLO_SECONDS)
    return found[0] if found else None
