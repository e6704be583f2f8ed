"""`vfl.join` and the checks of links: what they start, how they stop, and what they report."""

from __future__ import annotations

import json
import re
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from coordinator.federation.gathering import ConnectedMembers
from parties.joined import serving
from tests.ports import free_address
from vfl.errors import SpecificationError
from vfl.launch import join as joining
from vfl.launch.join import check_coordinator, check_links
from vfl.launch.sites import federation as federation_engine
from vfl.network.federation.events import Connected, Disconnected
from vfl.network.federation.file import read_federation
from vfl.network.federation.identity import load_identity
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

POLICY = 'format = 1\njobs = ["*"]\ntrust = ["trusted"]\ntotal = { epsilon = 4.0, delta = 1e-6 }\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    members = {name: vfl.federation.new_identity(name, tmp_path) for name in ("hub", "bank", "telco")}
    vfl.federation.write_federation(
        tmp_path / "credit.toml",
        name="credit",
        coordinator=("hub", members["hub"].certificate_pem),
        address=free_address(),
        parties={name: members[name].certificate_pem for name in ("bank", "telco")},
    )
    (tmp_path / "policy.toml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gathering(folder: Path, key: str = "hub.key") -> ConnectedMembers:
    return ConnectedMembers(read_federation(folder / "credit.toml"), load_identity(folder / key))


class Joined:
    """`vfl.join` in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.events: list[Any] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(
            target=vfl.join,
            args=("credit.toml", name, f"{name}.csv"),
            kwargs={"policy": "policy.toml", "watch": self.events.append, "stop": self.stop},
        )

    def __enter__(self) -> Joined:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


class TestJoin:
    def test_it_connects_reports_and_stops(self, folder: Path) -> None:
        with Joined("bank") as joined:
            with gathering(folder) as hub:
                hub.wait(["bank"], 120)
            while [type(event) for event in joined.events][-2:] != [Connected, Disconnected]:
                joined.stop.wait(0.05)
        assert sum(isinstance(event, Connected) for event in joined.events) == 1

    def test_an_error_of_the_connection_is_raised_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: object, **__: object) -> None:
            raise vfl.errors.FederationError("no")

        monkeypatch.setattr("parties.joined.serve", refused)
        with pytest.raises(vfl.errors.FederationError, match="no"):
            vfl.join("credit.toml", "bank", "bank.csv", policy="policy.toml")

    def test_an_interrupt_stops_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stopped = threading.Event()

        def serving_until_stopped(*given: Any, **_: object) -> None:
            given[-1].wait(60)
            stopped.set()

        class Interrupted(threading.Thread):
            def join(self, timeout: float | None = None) -> None:
                if timeout == joining.STOPPING_SECONDS:
                    super().join(timeout)
                    return
                raise KeyboardInterrupt

        monkeypatch.setattr("parties.joined.serve", serving_until_stopped)
        monkeypatch.setattr(joining.threading, "Thread", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            vfl.join("credit.toml", "bank", "bank.csv", policy="policy.toml")
        assert stopped.is_set()

    def test_serve_is_what_it_calls(self) -> None:
        import parties.joined

        assert parties.joined.serve is serving.serve


class TestCheckOfLinks:
    def test_those_who_are_there_and_those_who_are_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        link = ConnectedMembers.link

        def once_telco_is_there(self: ConnectedMembers, party: str, seconds: float) -> Any:
            link(self, "telco", 60.0)
            return link(self, party, 0.0)

        monkeypatch.setattr(ConnectedMembers, "link", once_telco_is_there)
        with Joined("telco"):
            bank, telco = check_links("credit.toml", seconds=60)
        assert (bank.party, bank.why) == ("bank", "it did not connect: it runs vfl join")
        assert (telco.party, telco.why, telco.version) == ("telco", "", __version__)
        assert telco.round_trip > 0
        assert abs(telco.skew) <= telco.round_trip / 2 + 1e-3  # the same clock, read at some time of the trip
        assert telco.throughput > 1e5

    def test_exit_code_and_json(self, call: Callable[..., Said]) -> None:
        said = call("federation", "check", "credit.toml", "--seconds", "0", "--json")
        assert said.code == vfl.errors.FederationError.exit_code
        assert [json.loads(line)["party"] for line in said.out.splitlines()] == ["bank", "telco"]
        said = call("federation", "check", "credit.toml", "--seconds", "0")
        assert said.code == vfl.errors.FederationError.exit_code
        assert re.match("bank +no +.*vfl join", said.out.splitlines()[1])


class TestCheckOfTheCoordinator:
    def test_it_is_there(self, folder: Path, call: Callable[..., Said]) -> None:
        with gathering(folder):
            assert 0 < check_coordinator("credit.toml", "bank", seconds=60) < 60
            said = call("federation", "check", "credit.toml", "--as", "bank")
        assert said.code == 0
        assert "accepts the key of bank" in said.out

    def test_nobody_answers(self, call: Callable[..., Said]) -> None:
        said = call("federation", "check", "credit.toml", "--as", "bank", "--seconds", "0")
        assert said.code == vfl.errors.FederationError.exit_code
        assert said.err.startswith("error: no coordinator answers at 127.0.0.1:")
        assert said.err.count("\n") == 1

    def test_another_key(self, folder: Path) -> None:
        (folder / "other").mkdir()
        other = vfl.federation.new_identity("hub", folder / "other")
        federation = read_federation("credit.toml")
        expected = federation.coordinator.fingerprint
        with (
            ConnectedMembers(federation, other),
            pytest.raises(vfl.errors.FederationError, match=f"{other.fingerprint}, and {expected} is expected"),
        ):
            check_coordinator("credit.toml", "bank", seconds=60)


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("income 52000"), "ValueError"), (SpecificationError("name a solver"), "name a solver")],
)
def test_parties_are_told_no_text_of_other_packages(error, told):
    sent = []

    def call(message):
        sent.append(message)
        return SimpleNamespace(wait=lambda _: None)

    gathering = SimpleNamespace(connected=lambda: {"bank": SimpleNamespace(call=call)})
    with pytest.raises(type(error)), federation_engine.offering(gathering, ("bank",)):
        raise error
    assert [message.why for message in sent] == [told]
