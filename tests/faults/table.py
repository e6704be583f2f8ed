"""The fault table: faults of every kind at every kind of moment on a real Ray, with the outcome of the run and its ε.

    python -m tests.faults.table [--only WORDS] [--list] [--json] [--hosts]

Each row checks the following. All noise that was drawn is in the ledger and in the book of the party that drew it. The
ε charged and the ε stated are at most the ε planned. The run finishes, or says how to continue it and then can be
continued. Noise is true, every party keeps a party ledger, and the run is evaluated on held-out records.

Rows on several nodes have a Ray of their own, and so has the row on memory. --hosts adds the rows on three hosts in
network namespaces, by running tests.faults.test_hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import vfl
from coordinator.charging.budget import Reserved
from coordinator.rounds import Lost, Round
from tests.faults.hosts import ROOT, SYSTEM, why_not
from tests.faults.traps import COORDINATOR, Armed, Trap, pid_of, source, sprung
from vfl.errors import VflError
from vfl.launch.train import resume
from vfl.planning import Plan
from vfl.privacy.events import ReleaseKey
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"))
N = 600
DELTA = 1e-6
WAIT_SECONDS, ANSWER_SECONDS, NODE_SECONDS = 20.0, 3.0, 60.0
AWAY_SECONDS = 4.0
"""How long a run waits for a party that never comes back."""


def table() -> dict[str, np.ndarray]:
    """Return the columns of all parties."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (N, 5))
    columns = {name: X[:, j] for j, name in enumerate(PARTITION.features)}
    return columns | {"y": (X[:, 0] - X[:, 3] + 0.3 * rng.logistic(size=N) > 0).astype(int)}


def job() -> vfl.Job:
    """Return the job of all rows."""
    return vfl.Job(
        partition=PARTITION,
        bounds=dict.fromkeys(PARTITION.features, (-1.0, 1.0)),
        privacy=vfl.Privacy(epsilon=1.0, delta=DELTA),
        solver=vfl.SkGD(passes=10, block_size=1, details=vfl.solvers.Details(message="block"), clip="coordinate"),
        evaluation=vfl.Evaluation(holdout=0.25),
    )


@cache
def moments() -> dict[str, int]:
    """Return {moment: number of a query that goes to both parties, or to the bank, at that moment}."""
    seen: list[Round] = []
    vfl.train(job(), table(), at="inprocess", watch=lambda e: seen.append(e) if isinstance(e, Round) else None)
    of_bank = [event.number for event in seen if event.kind == "Descend" and "bank" in event.parties]
    after = max(event.number for event in seen if event.kind == "Descend")
    held_out = next(event.number for event in seen if event.number > after and "bank" in event.parties)
    return {
        "the moments": 0,
        "mid-rounds": of_bank[len(of_bank) // 2],
        "the evaluation": held_out,
        "the last": seen[-1].number,
    }


@dataclass(frozen=True)
class Fault:
    """Specification of one row.

    kind : what fails. moment : description of the time. policy : of the job. how : sets the trap, or names the event at
        which to kill. on : the Ray that it needs: 'one node', 'nodes', 'memory', 'driver'. quick : True if the ordinary
        suite runs it.
    """

    kind: str
    moment: str
    policy: str
    who: str = "bank"
    number: str = ""
    at: str = "before"
    act: str = "is killed"
    on: str = "one node"
    for_good: bool = False
    quick: bool = False

    @property
    def place(self) -> str:
        """The Ray that it needs."""
        return "one node" if self.on == "driver" else self.on

    @property
    def name(self) -> str:
        """Its name, for --only."""
        return f"{self.kind}, {self.moment}, {self.policy}"


def _faults() -> Iterator[Fault]:
    parts = {"during the moments": "the moments", "mid-rounds": "mid-rounds", "during the evaluation": "the evaluation"}
    for policy in ("wait", "abort"):
        yield Fault("party killed", "before the first round", policy, at="reserved")
        for moment, number in parts.items():
            if policy == "wait" or moment == "mid-rounds":
                yield Fault("party killed", moment, policy, number=number)
                yield Fault("party killed, noise drawn", moment, policy, number=number, at="after")
        if policy == "wait":
            yield Fault("party killed", "after the last round", policy, at="last")
    for policy in ("wait", "skip", "abort"):
        for moment, number in parts.items():
            act = "is gone for good"
            yield Fault("party gone for good", moment, policy, number=number, act=act, for_good=True)
    for policy in ("wait", "skip"):
        yield Fault("party slow", "mid-rounds", policy, number="mid-rounds", act="is slow")
    yield Fault("party slow, noise drawn", "mid-rounds", "wait", number="mid-rounds", at="after", act="is slow")
    yield Fault("coordinator killed", "before the first round", "wait", COORDINATOR, at="reserved")
    for moment, number in parts.items():
        yield Fault("coordinator killed", f"{moment}, the charge not yet written", "wait", COORDINATOR, number)
        yield Fault("coordinator killed", f"{moment}, the charge just written", "wait", COORDINATOR, number, "after")
    yield Fault("coordinator killed", "after the last round", "wait", COORDINATOR, at="settling")
    for at, moment in (
        ("reserved", "before the first round"),
        ("number", "mid-rounds"),
        ("last", "after the last round"),
    ):
        yield Fault("driver killed", moment, "wait", "the driver", "mid-rounds", at, on="driver")
    full = "has a full disk"
    yield Fault("disk full (ledger)", "while a charge is written", "wait", COORDINATOR, "mid-rounds", act=full)
    yield Fault("disk full (ledger)", "while it is settled", "wait", COORDINATOR, "", "settling", full)
    yield Fault("disk full (a party ledger)", "mid-rounds", "wait", number="mid-rounds", act=full)
    raylet = "loses its raylet"
    for moment, number in parts.items():
        quick = moment == "mid-rounds"
        yield Fault("raylet killed alone", moment, "wait", number=number, act=raylet, on="nodes", quick=quick)
    yield Fault("raylet killed alone, for good", "mid-rounds", "skip", number="mid-rounds", act=raylet, on="nodes")
    yield Fault(
        "memory pressure", "mid-rounds", "wait", number="mid-rounds", act="eats all memory", on="memory", quick=True
    )


FAULTS = tuple(_faults())


HEAD = """\
| what fails | when | policy | outcome | what its user is told | attempts lost | ε planned | ε charged | ε stated |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Row:
    """Result of one row of the table.

    outcome : of the run. told : the message for the user; '' without one. lost : number of lost attempts.
    planned, charged, stated : ε of the plan, of the ledger's charges, of the certificate.
    uncovered : number of releases whose noise was drawn without an entry in ledger or book.
    """

    kind: str
    moment: str
    policy: str
    outcome: str
    told: str
    lost: int
    planned: float
    charged: float
    stated: float
    uncovered: int

    def markdown(self) -> str:
        """Return it as a row of a Markdown table."""
        epsilons = (f"{value:.6g}" for value in (self.planned, self.charged, self.stated))
        told = self.told.replace("|", "/") or "–"
        return f"| {' | '.join((self.kind, self.moment, self.policy, self.outcome, told, str(self.lost), *epsilons))} |"

    def check(self) -> None:
        """Raise AssertionError if the row breaks a promise."""
        assert self.uncovered == 0, self
        assert self.charged <= self.planned, self
        assert self.stated <= self.planned, self
        assert self.charged <= self.stated, self


class Site:
    """A folder for one run, with a policy and a book for every party."""

    def __init__(self, folder: Path, fault: Fault, mend: Callable[[], None]) -> None:
        self.folder, self.run, self.fault = folder, folder / "run", fault
        self.lost, self.planned, self.mend = 0, 0.0, mend
        self.policies = {}
        for party in PARTITION.parties:
            path = folder / f"{party}.toml"
            path.write_text(f'format = 1\njobs = ["*"]\n[total]\nepsilon = 4.0\ndelta = {DELTA}\n')
            self.policies[party] = str(path)
        (folder / "gone").unlink(missing_ok=True)

    def sources(self) -> dict[str, Callable[[], Any]]:
        """Return sources that set traps in the parties' processes."""
        columns = table()
        return {p: source(self.folder, p, {c: columns[c] for c in PARTITION.wanted(p)}) for p in PARTITION.parties}

    def faults(self) -> Armed:
        """Return the policy that sets traps in the coordinator's process."""
        wait = NODE_SECONDS if self.fault.on != "one node" else WAIT_SECONDS
        answer = NODE_SECONDS if self.fault.on != "one node" else ANSWER_SECONDS
        wait = AWAY_SECONDS if self.fault.for_good or "for good" in self.fault.kind else wait
        return Armed(
            folder=str(self.folder), on_party_lost=self.fault.policy, wait_timeout_s=wait, answer_timeout_s=answer
        )

    def watch(self, event: object) -> None:
        """Count losses, and kill at the given event."""
        if isinstance(event, Lost):
            self.lost += 1
            if "for good" not in self.fault.kind:
                self.mend()
        self.planned = event.epsilon if isinstance(event, Plan) else self.planned
        at = self.fault.at
        reserved = at == "reserved" and isinstance(event, Reserved)
        last = at == "last" and isinstance(event, Round) and event.number == moments()["the last"]
        number = at == "number" and isinstance(event, Round) and event.number == moments()[self.fault.number]
        if (reserved or last or number) and not (self.folder / "done").exists():
            (self.folder / "done").touch()
            driver = self.fault.on == "driver"
            os.kill(os.getpid() if driver else pid_of(self.folder, self.fault.who), signal.SIGKILL)

    def begin(self, address: str | None = None, **options: Any) -> vfl.Result:
        """Run the job with the trap set."""
        if self.fault.at in ("before", "after", "settling") and self.fault.on != "driver":
            number = moments()[self.fault.number] if self.fault.number else 0
            Trap(self.fault.who, number, self.fault.at, self.fault.act).set(self.folder)
        return vfl.train(
            job(),
            vfl.Source(self.sources(), policy=self.policies),
            at=vfl.Ray(address, faults=self.faults(), **options),
            output=self.run,
            watch=self.watch,
        )

    def resume(self, **options: Any) -> vfl.Result:
        """Continue the run after the fault has been removed."""
        (self.folder / "gone").unlink(missing_ok=True)
        self.mend()
        at = vfl.Ray(faults=self.faults(), **options)
        return resume(self.run, self.sources(), at=at, watch=self.watch)

    def uncovered(self) -> int:
        """Return the number of noised releases that the ledger, or the book of the noising party, does not hold."""
        ledger, missing = _charges(self.run / "ledger.db"), set()
        for who in (*PARTITION.parties, COORDINATOR):
            path = self.folder / f"{who}.draws"
            drawn = Counter(ReleaseKey(*map(int, line.split())) for line in path.read_text().splitlines())
            assert max(drawn.values(), default=0) <= 1, f"{who} drew noise twice for one release"
            # The joint release of the moments has one charge in the ledger and one draw per party.
            missing |= {key for key in drawn if (key not in ledger) and not (key.round == 0 and _first(key) in ledger)}
            if who != COORDINATOR:
                missing |= set(drawn) - _charges(self.folder / f"{who}.ledger")
        return len(missing)


def _first(key: ReleaseKey) -> ReleaseKey:
    return ReleaseKey(key.round, 0, key.attempt)


def _charges(path: Path) -> set[ReleaseKey]:
    ledger = SqliteLedger(path)
    ledger.verify()
    entries = json.loads(ledger.export())["entries"]
    return {ReleaseKey(e["round"], e["part"], e["attempt"]) for e in entries if e["kind"] == "charge"}


def provoke(fault: Fault, address: str, mend: Callable[[], None]) -> Row:
    """Cause a fault on the running Ray, and return the row."""
    options: dict[str, Any] = {"pin": "always" if fault.on == "nodes" else "never", "ready_timeout_s": 60.0}
    folder = Path(tempfile.mkdtemp(prefix="vfl-fault-"))
    site, told = Site(folder, fault, mend), []
    try:
        result = None
        try:
            result = _driven(site, address) if fault.on == "driver" else site.begin(**options)
        except VflError as error:
            told += [str(error), *getattr(error, "__notes__", ())]
        if fault.on != "driver":
            assert sprung(folder), f"{fault.name}: the trap has not sprung; {told}"
        outcome = "finished"
        if result is None:
            assert not (site.run / "model.json").exists(), "a model was published by a run that did not end"
            assert site.uncovered() == 0, fault.name
            result, outcome = site.resume(**options), "ended; finished by vfl resume"
        left = [flag for flag in result.certificate.flags if "left out" in flag]
        told += [flag.split(":")[0] for flag in left]
        assert result.verify(ledger=site.run / "ledger.db").ok, fault.name
        assert np.isfinite(result.coef_).all()
        (balance,) = SqliteLedger(site.run / "ledger.db").show()
        (run,) = balance.runs
        row = Row(
            fault.kind,
            fault.moment,
            fault.policy,
            outcome + (", without the party" if left else ""),
            " / ".join(told).replace(f"{folder}/", ""),
            site.lost,
            site.planned,
            run.spent,
            result.certificate.epsilon,
            site.uncovered(),
        )
        row.check()
        return row
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _driven(site: Site, address: str) -> None:
    """Begin the run in another process, which kills itself during it."""
    command = [sys.executable, "-m", "tests.faults.table", "--only", site.fault.name]
    command += ["--begin", str(site.folder), "--address", address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    until = time.monotonic() + 60
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:  # its actors end with it
            os.kill(pid_of(site.folder, COORDINATOR), 0)
            time.sleep(0.1)


QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
ALONE: dict[str, Any] = {"address": "local", "num_cpus": 6}
SMALL: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 100_000_000}


@contextlib.contextmanager
def one_node() -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a Ray of one node; yield its address and a function that repairs it."""
    import ray

    context = ray.init(_system_config={"automatic_object_spilling_enabled": False}, **ALONE, **SMALL, **QUIET)
    try:
        yield context.address_info["address"], _nothing
    finally:
        ray.shutdown()


def memory() -> tuple[int, int]:
    """Return the total and the free bytes of memory of this machine."""
    said = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    return int(said["MemTotal:"]) * 1024, int(said["MemAvailable:"]) * 1024


@contextlib.contextmanager
def short_of_memory() -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a Ray that treats the machine as full once three more gigabytes are used."""
    import ray

    total, free = memory()
    watched = {"memory_usage_threshold": round(1 - (free - 3 * (1 << 30)) / total, 4), "memory_monitor_refresh_ms": 100}
    config = {"automatic_object_spilling_enabled": False, **watched}
    context = ray.init(_system_config=config, **ALONE, **SMALL, **QUIET)
    try:
        yield context.address_info["address"], _nothing
    finally:
        ray.shutdown()


class Nodes:
    """A Ray of three nodes on one machine: a head, and one node per party."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "resources": {"coordinator": 1}, "_system_config": SYSTEM, **SMALL}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.parties = {self._node(party): party for party in PARTITION.parties}

    def _node(self, party: str) -> Any:
        return self.cluster.add_node(num_cpus=1, resources={f"party:{party}": 1}, object_store_memory=100_000_000)

    def mend(self) -> None:
        """Replace nodes whose raylets have died."""
        for node in list(self.parties):
            if node.all_processes["raylet"][0].process.poll() is not None:
                self.cluster.remove_node(node, allow_graceful=False)
                party = self.parties.pop(node)
                self.parties[self._node(party)] = party


@contextlib.contextmanager
def nodes() -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a Ray of three nodes; yield its address and a function that repairs its nodes."""
    import ray

    several = Nodes()
    try:
        ray.init(address=several.cluster.address, **QUIET)
        yield several.cluster.address, several.mend
    finally:
        ray.shutdown()
        several.cluster.shutdown()


def _nothing() -> None:
    """Do nothing: this Ray needs no repair."""


PLACES = {"one node": one_node, "nodes": nodes, "memory": short_of_memory}


def main() -> None:
    """Cause faults and print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name begins so")
    parser.add_argument("--list", action="store_true", help="print names")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each row")
    parser.add_argument("--hosts", action="store_true", help="also the rows on hosts in network namespaces")
    parser.add_argument("--begin", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if fault.name.startswith(arguments.only)]
    if arguments.list:
        print("\n".join(fault.name for fault in chosen))
        return
    if arguments.begin:
        (fault,) = chosen
        Site(Path(arguments.begin), fault, _nothing).begin(address=arguments.address, pin="never")
        return
    if not arguments.json:
        print(HEAD)
    for place, start in PLACES.items():
        there = [fault for fault in chosen if fault.place == place]
        if there:
            with start() as (address, mend):
                for fault in there:
                    row = provoke(fault, address, mend)
                    print(json.dumps(asdict(row)) if arguments.json else row.markdown(), flush=True)
    if arguments.hosts:
        print(f"On hosts in namespaces: {why_not() or _on_hosts()}")


def _on_hosts() -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", "tests/faults/test_hosts.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
