"""Metrics and log lines for operators: the numbers are right and reach Prometheus, and no line reveals more."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import logging
import re
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Lost, Round
from coordinator.telemetry import COUNTERS, GAUGES, Telemetry
from coordinator.transport import Traffic
from parties.loading import load
from tests.faults.traps import Trap, source, sprung
from vfl.errors import PartyLost
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sites.ray import ROUNDS_AHEAD
from vfl.launch.sources import sources_of
from vfl.launch.train import stream
from vfl.planning import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"))
N = 300
SAID = {
    "plan": {"rounds", "epsilon", "delta"},
    "reserved": {"records"},
    "rounds": {"round", "made", "seconds", "epsilon"},
    "lost": {"round", "party", "charged"},
    "made": set(),
}
"""All that a line may hold, by its event; besides when it was written, and of which job and run."""
LEADING = 9
"""Characters by which a printed number is looked up among the secrets."""
SOLVERS = [
    vfl.SkGD(passes=4, details=vfl.solvers.Details(message="block"), clip="coordinate"),
    vfl.solvers.GCD(),
    vfl.solvers.SCD(sampling="disjoint"),
    vfl.solvers.SGD(sampling="disjoint"),
]


def table() -> dict[str, Any]:
    rng = np.random.default_rng(11)
    X = rng.uniform(-1, 1, (N, 5))
    columns: dict[str, Any] = {name: X[:, j] for j, name in enumerate(PARTITION.features)}
    return columns | {"y": (X[:, 0] + 0.3 * rng.logistic(size=N) > 0).astype(int)}


def job(solver: Any) -> vfl.Job:
    return vfl.Job(
        partition=PARTITION,
        name="credit",
        bounds=dict.fromkeys(PARTITION.features, (-1.0, 1.0)),
        penalty=vfl.L2(1e-2),
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, noise=vfl.SeededNoise(5)),
        solver=solver,
    )


class Meters:
    """Sums the numbers that it receives."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.gauged: dict[str, float] = {}

    def add(self, name: str, amount: float) -> None:
        assert name in COUNTERS
        assert amount >= 0
        self.counted[name] += amount

    def set(self, name: str, value: float) -> None:
        assert name in GAUGES
        self.gauged[name] = value


class Spied(InProcessTransport):
    """Loses a party once, and keeps every per-record number and every sum in the messages."""

    def __init__(self, spec: vfl.Job, at: int = -1) -> None:
        self.spec, self.at, self.secrets = spec, at, []
        super().__init__({name: self.loaded(name) for name in PARTITION.parties})

    def loaded(self, name: str) -> Any:
        return load(self.spec.for_party(name), sources_of(self.spec, table())[name])

    def ask(self, shares: Any, records: Any, key: Any) -> Any:
        if key.round == self.at:
            self.at = -1
            raise PartyLost("'bank' died", "bank")
        replies = super().ask(shares, records, key)
        travelled = [records.weights, records.margins, *(reply.vector for reply in replies.values())]
        self.secrets += [value for vector in travelled if vector is not None for value in vector[:3]]
        self.secrets += [value for reply in replies.values() for sums in reply.released for value in sums[:3]]
        self.secrets += [reply.selected.value for reply in replies.values() if reply.selected is not None]
        return replies

    def revive(self, party: str, seconds: float) -> Any:
        self._parties[party] = self.loaded(party)
        return super().greet()[party]


def secrets_of(*groups: Any) -> dict[str, list[float]]:
    """Return numbers that must not appear in a line, by their leading digits; round numbers are no secret."""
    found: dict[str, list[float]] = {}
    for value in (abs(float(value)) for values in groups for value in values):
        if len(text := repr(value)) > 12 and "e" not in text:
            found.setdefault(text[:LEADING], []).append(value)
    return found


def shown(secrets: Mapping[str, list[float]], said: str) -> list[str]:
    """Return the numbers of a text that are secrets, to all their decimals: seven alone agree with one by chance."""
    return [
        number
        for number in re.findall(r"\d+\.\d{7,}", said)
        for value in secrets.get(number[:LEADING], ())
        if abs(float(number) - value) <= 10.0 ** -len(number.partition(".")[2])
    ]


def cells() -> list[float]:
    """Return all cells of the features."""
    return [value for name in PARTITION.features for value in table()[name]]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.name)
def test_numbers_and_lines(solver: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """No line of any logger at any level contains a number from a message."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("vfl.run").setLevel(logging.DEBUG)
    spec, meters = job(solver), Meters()
    transport = Spied(spec, at=1)
    traffic = Traffic()
    traffic.n_bytes = 1000
    tell = Telemetry("credit", "run-1", meters, traffic)
    *events, outcome = Coordinator(transport, faults=Faults()).stream(spec)
    for event in events:
        tell(event)
    made = [event for event in events if isinstance(event, Round)]
    assert meters.counted["vfl_rounds"] == len(made)
    assert meters.counted["vfl_retries"] == sum(isinstance(event, Lost) for event in events) == 1
    assert meters.counted["vfl_message_seconds"] == pytest.approx(sum(event.seconds for event in made))
    assert meters.counted["vfl_bytes"] == 1000
    assert meters.gauged["vfl_epsilon_spent"] == pytest.approx(outcome.statement.spent, rel=1e-9)
    lines = [
        record.getMessage() for record in caplog.records if record.name.partition(".")[0] in ("vfl", "coordinator")
    ]
    require_discreet(lines)
    assert Counter(json.loads(line)["event"] for line in lines) >= Counter(
        ["plan", "reserved", "rounds", "lost", "made"]
    )
    assert not [r.name for r in caplog.records if r.name.startswith(("parties", "vfl")) and r.name != "vfl.run"]
    secrets = secrets_of(transport.secrets, cells())
    assert len(secrets) > 500
    said = "\n".join([*(record.getMessage() for record in caplog.records), *capfd.readouterr()])
    assert shown(secrets, said) == []
    assert shown(secrets, f"{said} [{cells()[7]:.9f}, 0.12345678") == [f"{abs(cells()[7]):.9f}"]


def test_a_run_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds so far are reported although no event follows."""
    monkeypatch.setattr("coordinator.telemetry.EVERY_SECONDS", 0.3)
    spec, complete = job(vfl.SkGD(passes=4, details=vfl.solvers.Details(message="block"))), threading.Event()

    class Waited(Meters):
        def set(self, name: str, value: float) -> None:
            super().set(name, value)
            if self.counted["vfl_rounds"] == 5:
                complete.set()

    meters = Waited()
    tell = Telemetry("credit", "run-1", meters, Traffic())
    with contextlib.closing(Coordinator(Spied(spec)).stream(spec)) as events:
        for event in events:
            tell(event)
            if isinstance(event, Round) and event.number == 4:
                break
        assert complete.wait(200)
    assert meters.gauged["vfl_epsilon_spent"] > 0


def require_discreet(lines: list[str]) -> None:
    """Assert that each line is JSON with the fields of SAID only."""
    for line in lines:
        entry = json.loads(line)
        assert entry.keys() - {"time", "event", "job", "run"} == SAID[entry["event"]], line
        assert not any(isinstance(value, list | dict) for value in entry.values()), line


def require_discreet_logs(spec: vfl.Job, ray: Any) -> None:
    """Search all log files of the session; the vectors of the first rounds are known, because seeded noise repeats them."""
    spy = Spied(spec)
    with contextlib.closing(Coordinator(spy).stream(spec)) as events:
        next(itertools.islice(watched(events), 99, None))
    secrets = secrets_of(spy.secrets, cells())
    folder = Path(ray._private.worker._global_node.get_logs_dir_path())
    told = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # Ray renames full logs
            told[path] = path.read_text(errors="replace")
    ours = [line for text in told.values() for line in text.splitlines() if line.startswith('{"time"')]
    require_discreet(ours)
    assert any('"job": "credit"' in line for line in ours)
    for path, text in told.items():
        assert shown(secrets, text) == [], path


def scraped(ray: Any, run: str) -> dict[str, float]:
    """Return {metric: value} of a run, from the endpoint of the node."""
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=60) as answer:  # those of our own Ray
        lines = answer.read().decode().splitlines()
        values = (line.rpartition(" ") for line in lines if line.startswith("ray_vfl_") and f'job="{run}"' in line)
        return {name.partition("{")[0]: float(value) for name, _, value in values}
    return {}


def test_metrics_and_logs_on_ray(local_ray: Any, tmp_path: Path) -> None:
    """During a run that lost a party, its numbers are at the place that docs/cluster.md names. No log file holds data."""
    columns, served = table(), importlib.util.find_spec("aiohttp")  # a port is named even where nothing listens
    armed = {p: source(tmp_path, p, {c: columns[c] for c in PARTITION.wanted(p)}) for p in PARTITION.parties}
    Trap("bank", 5, "before", "is killed").set(tmp_path)
    spec, until = (
        job(vfl.SkGD(passes=4000, block_size=1, details=vfl.solvers.Details(message="block"))),
        time.monotonic() + 200,
    )
    found: Mapping[str, float] = {}
    with contextlib.closing(stream(spec, armed, at="ray")) as events:
        plan = next(event for event in events if isinstance(event, Plan))
        rounds = watched(events)
        seen = next(itertools.islice(rounds, 99, None))
        while served and not complete(found) and time.monotonic() < until:
            seen = next(itertools.islice(rounds, 19, None))
            found = scraped(local_ray, "credit")
            time.sleep(0.05)  # Ray reports every few seconds: the run has a thousand of these pauses, on any machine
    assert sprung(tmp_path)
    require_discreet_logs(spec, local_ray)
    if served is None:
        pytest.skip("Ray's metrics are not installed: pip install '.[cluster]'")
    assert complete(found), found
    assert found["ray_vfl_rounds_total"] <= seen + ROUNDS_AHEAD + 2
    assert found["ray_vfl_retries_total"] == 1
    assert 0 < found["ray_vfl_epsilon_spent"] <= plan.epsilon


def complete(found: Mapping[str, float]) -> bool:
    """Return True once a report of a hundred rounds is there as a whole: its meters arrive one by one."""
    return (
        found.keys() >= {"ray_vfl_retries_total", "ray_vfl_epsilon_spent"}
        and found.get("ray_vfl_rounds_total", 0) >= 100
        and found.get("ray_vfl_bytes_total", 0) >= 100 * 8 * N
        and 0 < found.get("ray_vfl_party_seconds_total", 0) < found.get("ray_vfl_message_seconds_total", 0)
    )


def watched(events: Iterator[Any]) -> Iterator[int]:
    """Yield the number of rounds so far."""
    for event in events:
        if isinstance(event, Round):
            yield event.number + 1


def test_names_in_any_script_reach_the_metrics_of_ray() -> None:
    """Ray encodes tags in ASCII when it records a number, which would end a run after its first charge."""
    from coordinator.cluster.actor import RayMeters

    meters = RayMeters("crédit 信用 \ud800", "läuft")
    meters.add("vfl_rounds", 1.0)
    meters.set("vfl_epsilon_spent", 0.5)
