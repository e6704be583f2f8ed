"""Parties that share a process: the same results, and one loss for all of them."""

from __future__ import annotations

import os
import pickle
import signal
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from coordinator.cluster.ray_transport import Seat, process_of, together
from coordinator.rounds import Lost, Round
from tests.faults.test_ray_faults import job, pids, sources, table
from vfl.errors import FederationError, JobFileError, PlacementError, SpecificationError
from vfl.launch.sites import ray as site
from vfl.launch.sites.open_site import Arrangement

if TYPE_CHECKING:
    from pathlib import Path


class Process:
    """A process handle that notes its calls."""

    def __init__(self) -> None:
        self.call = self.stream = self
        self.seen: list[Any] = []

    def options(self, **options: Any) -> Process:
        self.seen.append(options)
        return self

    def remote(self, *arguments: Any) -> str:
        self.seen.append(arguments)
        return "ref"


def test_a_seat_is_called_like_an_actor() -> None:
    seat = Seat(Process(), 0, "bank")
    assert seat.answer.remote(1, 2) == "ref"
    assert seat.multiply.options(num_returns="streaming").remote("telco") == "ref"
    assert seat.process.seen == [("bank", "answer", 1, 2), {"num_returns": "streaming"}, ("bank", "multiply", "telco")]
    with pytest.raises(AttributeError):
        _ = seat._private


def test_a_seat_travels() -> None:
    assert pickle.loads(pickle.dumps(Seat("handle", 3, "bank"))) == Seat("handle", 3, "bank")  # noqa: S301


def test_parties_of_one_process_are_lost_together() -> None:
    one = Process()
    actors = {"a": Seat(one, 0, "a"), "b": "own", "c": Seat(one, 0, "c"), "d": Seat(Process(), 1, "d")}
    assert together(actors, "c") == ("c", "a")
    assert together(actors, "b") == ("b",)
    assert together(actors, "d") == ("d",)
    assert process_of(actors["a"]) is one
    assert process_of(actors["b"]) == "own"


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_other_numbers_of_parties_are_refused(number: Any) -> None:
    with pytest.raises(SpecificationError, match="parties_per_process must"):
        vfl.Ray(parties_per_process=number)


def test_pinned_parties_share_no_process() -> None:
    with pytest.raises(JobFileError, match="pinned parties"):
        vfl.Ray(parties_per_process=2, pin="always")
    place = vfl.Ray("10.0.0.1:6379", parties_per_process=2)
    with (
        pytest.raises(PlacementError, match="pinned parties"),
        site._federation(job(), table(), place, Arrangement()),
    ):
        pass


def test_processes_hold_the_parties_in_their_order() -> None:
    assert vfl.Ray(parties_per_process=2).processes("abcde") == [("a", "b"), ("c", "d"), ("e",)]


@pytest.mark.parametrize(
    ("parties", "cores", "processes"),
    [(4, 1, 4), (5, 1, 2), (5, 2, 2), (20, 2, 2), (20, 16, 10), (20, 64, 20), (200, 2, 2), (0, 2, 0)],
)
def test_many_parties_of_a_simulation_share_few_processes(parties: int, cores: int, processes: int) -> None:
    names = [f"q{k}" for k in range(parties)]
    site = vfl.Ray().for_simulation(names, "trusted", cores)
    assert len(site.processes(names)) == processes
    assert sum(site.processes(names), ()) == tuple(names)


@pytest.mark.parametrize(
    ("options", "trust"),
    [
        ({"parties_per_process": 1}, "trusted"),
        ({"parties_per_process": 3}, "trusted"),
        ({"pin": "always"}, "trusted"),
        ({"shards": 2}, "trusted"),
        ({}, "secure"),
    ],
)
def test_a_simulation_leaves_other_sites_as_they_are(options: dict[str, Any], trust: str) -> None:
    site = vfl.Ray(**options)
    assert site.for_simulation("abcdefghij", trust, 2) is site


class Started(Exception):
    """Raised in place of a connection to Ray."""


@pytest.mark.parametrize(
    ("address", "connected", "policies", "processes"),
    [
        (None, False, None, 2),
        (None, True, None, 20),
        ("10.0.0.1:6379", False, None, 20),
        (None, False, {"q0": "policy.toml"}, 20),
    ],
    ids=["a local Ray of the run", "a connected Ray", "a cluster", "an owner's policy"],
)
def test_parties_share_processes_only_on_a_ray_that_the_run_starts(
    monkeypatch: pytest.MonkeyPatch, address: Any, connected: bool, policies: Any, processes: int
) -> None:
    def start(cpus: int, _address: Any) -> Any:
        raise Started(cpus)

    monkeypatch.setattr(site, "usable_cores", lambda: 2)
    monkeypatch.setattr(site, "connected_elsewhere", lambda: connected)
    monkeypatch.setattr(site, "connected", start)
    sources = {f"q{k}": "q.csv" for k in range(20)}
    with (
        pytest.raises(Started) as asked,
        site._federation(None, sources, vfl.Ray(address), Arrangement(policies=policies or {})),
    ):
        pass
    assert asked.value.args == (processes + 1,)


def test_only_public_methods_can_be_called() -> None:
    from parties.actor import SharedActor

    with pytest.raises(FederationError, match="not a public method"):
        SharedActor({"bank": (job(), "bank")}).call("bank", "_party")


@pytest.mark.faults
def test_a_killed_process_loses_its_parties_once_and_the_model_is_the_same(local_ray: Any, tmp_path: Path) -> None:
    seen: list[Any] = []

    def watch(event: Any) -> None:
        seen.append(event)
        if isinstance(event, Round) and event.number == 20:
            os.kill(pids(tmp_path, "bank")[-1], signal.SIGKILL)

    result = vfl.train(
        job(passes=10),
        sources(tmp_path),
        output=tmp_path / "run",
        watch=watch,
        at=vfl.Ray(parties_per_process=2),
    )
    assert pids(tmp_path, "bank") == pids(tmp_path, "telco")
    assert len(set(pids(tmp_path, "bank"))) == 2
    assert len([event for event in seen if isinstance(event, Lost)]) == 1
    assert result.coef_.tobytes() == vfl.train(job(passes=10), table(), at="inprocess").coef_.tobytes()
