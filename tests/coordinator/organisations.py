"""A federation on loopback: real gRPC, temporary identities, and each party in a thread of this process."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parties.joined import serve
from tests.ports import free_address
from vfl.job.site import Faults
from vfl.launch.sites.open_site import Organisations
from vfl.network.federation.file import write_federation
from vfl.network.federation.identity import new_identity

if TYPE_CHECKING:
    from pathlib import Path

POLICY = """
format = 1
jobs = ["*"]
trust = ["trusted"]
products = true
allow_non_private = true
[total]
epsilon = 1000.0
delta = 1e-4
[prediction]
models = ["*"]
labels = true
"""


@dataclass
class Joined:
    """A federation whose parties can be started and stopped. events : {party: what it reported}."""

    folder: Path
    federation: Any
    identities: dict[str, Any]
    faults: Faults = field(default_factory=lambda: Faults(wait_timeout_s=120.0, answer_timeout_s=120.0))
    events: dict[str, list[Any]] = field(default_factory=dict)
    failed: dict[str, BaseException] = field(default_factory=dict)
    _running: list[tuple[threading.Event, threading.Thread]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        """The federation file."""
        return self.folder / "credit.toml"

    @property
    def place(self) -> Organisations:
        """The place for the coordinator's functions, whose limits only a participant that is gone exceeds."""
        return Organisations(self.federation, self.identities["hub"], self.faults, gather_seconds=120.0)

    def policy(self, party: str, text: str = POLICY) -> Path:
        """Write a party's policy."""
        path = self.folder / f"{party}.policy.toml"
        path.write_text(text)
        return path

    def start(self, party: str, source: Any, **options: Any) -> threading.Event:
        """Let a party join, or the dealer with the source None; returns the event that stops it."""
        stop = threading.Event()
        policy = options.pop("policy", None) or (None if source is None else self.policy(party))
        identity = options.pop("identity", self.identities[party])
        federation = options.pop("federation", self.federation)
        sources = source if isinstance(source, dict) and "" in source else {"": source}
        seen = self.events.setdefault(party, [])

        def work() -> None:
            try:
                options.setdefault("longest_pause", 0.3)
                options.setdefault("indexes", str(self.folder / f"{party}-index"))
                serve(identity, federation, sources, policy, seen.append, stop, **options)
            except BaseException as error:  # noqa: BLE001 - asserted on by the tests
                self.failed[party] = error

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._running.append((stop, thread))
        return stop

    def stop(self) -> None:
        """Stop all parties; none may be left."""
        for stop, _ in self._running:
            stop.set()
        for _, thread in self._running:
            thread.join(60.0)
            assert not thread.is_alive()


@contextlib.contextmanager
def federation(
    folder: Path,
    parties: tuple[str, ...] = ("bank", "telco"),
    *,
    address: str | None = None,
    dealer: str | None = None,
    **options: Any,
):
    """Yield a federation of these members, none of which has joined yet. address : None takes a free one on loopback."""
    identities = {
        name: new_identity(name, folder) for name in ("hub", *parties, *(() if dealer is None else (dealer,)))
    }
    made = write_federation(
        folder / "credit.toml",
        name="credit",
        coordinator=("hub", identities["hub"].certificate_pem),
        address=address or free_address(),
        parties={name: identities[name].certificate_pem for name in parties},
        dealer=None if dealer is None else (dealer, identities[dealer].certificate_pem),
    )
    joined = Joined(folder, made, identities, **options)
    try:
        yield joined
    finally:
        joined.stop()
