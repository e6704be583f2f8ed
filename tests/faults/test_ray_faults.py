"""Kills on a real Ray of the party's process, the coordinator's and the driver's; policies are tested elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.rounds import Lost, Round
from vfl.errors import PartyLost, PlacementError
from vfl.job import file as jobfile
from vfl.job.site import Faults, plain_site, site_of_log
from vfl.launch.train import resume
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.faults

PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"))
N = 4000  # one party's table is too large to be passed in a call


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (N, 5))
    columns = {name: X[:, j] for j, name in enumerate(PARTITION.features)}
    return columns | {"y": (X[:, 0] - X[:, 3] + 0.3 * rng.logistic(size=N) > 0).astype(int)}


def job(*, seeded: bool = True, passes: int = 60) -> vfl.Job:
    return vfl.Job(
        partition=PARTITION,
        bounds=dict.fromkeys(PARTITION.features, (-1.0, 1.0)),
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, noise=vfl.SeededNoise(5) if seeded else None),
        solver=vfl.SkGD(passes=passes, block_size=1, details=vfl.solvers.Details(message="block")),
    )


def test_the_runs_here_are_under_a_record_cap() -> None:
    assert vfl.plan(job(), N).solver.clip == "record"


def sources(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return sources that record the process id of the process that opens them."""

    def source(party: str) -> Callable[[], Any]:
        part = {c: table()[c] for c in PARTITION.wanted(party)}
        path = folder / f"{party}.pids"

        def opened() -> Any:
            with path.open("a") as file:
                file.write(f"{os.getpid()}\n")
            return part

        return opened

    return {party: source(party) for party in PARTITION.parties}


def pids(folder: Path, party: str) -> list[int]:
    return [int(line) for line in (folder / f"{party}.pids").read_text().split()]


def killing(folder: Path, party: str, number: int, signals: int = signal.SIGKILL) -> tuple[list[Any], Any]:
    """Return the list of events, and a watcher that kills the party's process at a round."""
    seen: list[Any] = []

    def watch(event: Any) -> None:
        seen.append(event)
        if isinstance(event, Round) and event.number == number:
            os.kill(pids(folder, party)[-1], signals)

    return seen, watch


@pytest.mark.parametrize(
    ("party", "how"),
    [
        ("bank", signal.SIGKILL),
        ("bank", signal.SIGSTOP),
        *(pytest.param("telco", how, marks=pytest.mark.slow) for how in (signal.SIGKILL, signal.SIGSTOP)),
    ],
)
def test_a_killed_or_stopped_party_comes_back_and_the_model_is_the_same(
    local_ray: Any, tmp_path: Path, party: str, how: signal.Signals
) -> None:
    """A stopped process is killed after the time for its answer."""
    seen, watch = killing(tmp_path, party, 20, how)
    policy = Faults(answer_timeout_s=10.0)
    result = vfl.train(job(), sources(tmp_path), output=tmp_path / "run", watch=watch, at=vfl.Ray(faults=policy))
    assert [event.party for event in seen if isinstance(event, Lost)] == [party]
    first, second = pids(tmp_path, party)
    assert first != second
    assert not Path(f"/proc/{first}").exists()
    assert result.coef_.tobytes() == vfl.train(job(), table(), at="inprocess").coef_.tobytes()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_true_noise_is_charged_again_after_a_loss(local_ray: Any, tmp_path: Path, how: signal.Signals) -> None:
    seen, watch = killing(tmp_path, "bank", 20, how)
    at = vfl.Ray(faults=Faults(answer_timeout_s=10.0))
    result = vfl.train(job(seeded=False), sources(tmp_path), output=tmp_path / "run", watch=watch, at=at)
    assert [event.party for event in seen if isinstance(event, Lost)] == ["bank"]
    assert result.certificate.epsilon <= 1.0
    entries = json.loads(SqliteLedger(tmp_path / "run" / "ledger.db").export())["entries"]
    assert {entry["attempt"] for entry in entries if entry["kind"] == "charge"} == {0, 1}
    assert result.verify(ledger=tmp_path / "run" / "ledger.db").ok


@pytest.mark.slow
def test_a_party_that_hangs_is_given_up_in_time(local_ray: Any, tmp_path: Path) -> None:
    """The process is stopped: first its answer is late, then the data of its restarted process."""
    _, watch = killing(tmp_path, "bank", 20, signal.SIGSTOP)
    given = sources(tmp_path)

    def slow() -> Any:
        time.sleep(60 * (tmp_path / "bank.pids").exists())
        return given["bank"]()

    policy = Faults(on_party_lost="skip", wait_timeout_s=2.0, answer_timeout_s=2.0)
    began = time.monotonic()
    there = given | {"bank": slow}
    result = vfl.train(job(), there, at=vfl.Ray(faults=policy), watch=watch, output=tmp_path / "run")
    assert time.monotonic() - began < 60
    assert (result.coef_[:3] == 0).all()
    assert (result.coef_[3:] != 0).all()
    (flag,) = [flag for flag in result.certificate.flags if "'bank'" in flag]
    assert flag.startswith("party 'bank' was lost during the run and left out")
    assert result.verify().ok


@pytest.mark.slow
def test_aborted_then_resumed(local_ray: Any, tmp_path: Path) -> None:
    """The aborted run leaves no model, an intact ledger, and a run that resumes to the same model."""
    _, watch = killing(tmp_path, "bank", 20)
    with pytest.raises(PartyLost, match=r"'bank' (died|was restarted)"):
        vfl.train(
            job(),
            sources(tmp_path),
            output=tmp_path / "run",
            watch=watch,
            at=vfl.Ray(faults=Faults(on_party_lost="abort")),
        )
    assert not (tmp_path / "run" / "model.json").exists()
    SqliteLedger(tmp_path / "run" / "ledger.db").verify()
    result = resume(tmp_path / "run", sources(tmp_path))
    assert result.coef_.tobytes() == vfl.train(job(), table(), at="inprocess").coef_.tobytes()


def test_a_killed_coordinator_leaves_a_run_to_resume(local_ray: Any, tmp_path: Path) -> None:
    earlier = processes(b"ray::CoordinatorActor")  # of a test before, which may still be ending

    def watch(event: Any) -> None:
        if isinstance(event, Round) and event.number == 20:
            (own,) = set(coordinators(pids(tmp_path, "bank")[-1])).difference(earlier)
            os.kill(own, signal.SIGKILL)

    with pytest.raises(PartyLost, match="'coordinator' died"):
        vfl.train(job(), sources(tmp_path), output=tmp_path / "run", watch=watch, at="ray")
    assert not (tmp_path / "run" / "model.json").exists()
    result = resume(tmp_path / "run", sources(tmp_path))
    assert result.coef_.tobytes() == vfl.train(job(), table(), at="inprocess").coef_.tobytes()


@pytest.mark.slow
def test_a_killed_driver_leaves_a_run_to_resume(tmp_path: Path) -> None:
    """No process is left either: a local Ray ends with the driver that started it."""
    rows = np.column_stack([table()[name] for name in (*PARTITION.features, "y")])
    names = ",".join((*PARTITION.features, "y"))
    np.savetxt(tmp_path / "all.csv", rows, delimiter=",", header=names, comments="", fmt="%.17g")
    spec = job(passes=400)
    (tmp_path / "job.toml").write_text(spec.to_toml() + '[simulation]\ntable = "all.csv"\n')
    vfl_command = [sys.executable, "-c", "from vfl.apps.cli import main; main()"]
    root = str(Path(__file__).parents[2])
    options: dict[str, Any] = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": root}, "text": True}
    driver = subprocess.Popen(
        [*vfl_command, "run", "job.toml", "--output", "run"], stderr=subprocess.DEVNULL, **options
    )
    log, until = tmp_path / "run" / "rounds.log", time.monotonic() + 90
    while not (log.exists() and log.read_bytes().count(b"round") > 60):
        assert time.monotonic() < until
        time.sleep(0.02)
    driver.kill()
    assert driver.wait(timeout=60) == -signal.SIGKILL
    assert not (tmp_path / "run" / "model.json").exists()
    SqliteLedger(tmp_path / "run" / "ledger.db").verify()
    done = subprocess.run([*vfl_command, "resume", "run", "--json"], capture_output=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    whole = vfl.train(spec, str(tmp_path / "all.csv"), at="inprocess")
    assert said["coef"] == dict(zip(whole.feature_names, map(float, whole.coef_), strict=True))


@pytest.mark.slow
def test_json_output_is_not_mixed_with_messages_of_ray(tmp_path: Path) -> None:
    """A party is killed, and standard output is still JSON."""
    rows = np.column_stack([table()[name] for name in (*PARTITION.features, "y")])
    names = ",".join((*PARTITION.features, "y"))
    np.savetxt(tmp_path / "all.csv", rows, delimiter=",", header=names, comments="", fmt="%.17g")
    (tmp_path / "job.toml").write_text(job(passes=400).to_toml() + '[simulation]\ntable = "all.csv"\n')
    command = [
        sys.executable,
        "-c",
        "from vfl.apps.cli import main; main()",
        "run",
        "job.toml",
        "--output",
        "run",
        "--json",
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        log, until = tmp_path / "run" / "rounds.log", time.monotonic() + 120
        while not (log.exists() and log.read_bytes().count(b"round") > 60):
            assert time.monotonic() < until
            time.sleep(0.02)
        parties = [pid for pid in processes(b"ray::PartyActor") if parent(parent(pid)) == driver.pid]
        os.kill(parties[0], signal.SIGKILL)
        said = driver.communicate(timeout=240)[0]
    assert driver.returncode == 0
    assert [json.loads(line)["private"] for line in said.splitlines()] == [False]


def coordinators(party: int) -> list[int]:
    """Return the process ids of the coordinators on the node of this party's process."""
    return [pid for pid in processes(b"ray::CoordinatorActor") if parent(pid) == parent(party)]


def processes(name: bytes) -> list[int]:
    """Return the ids of the processes whose names begin with this prefix."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cmdline").read_bytes().startswith(name):
                parent(int(path.name))  # ended meanwhile
                found.append(int(path.name))
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class TestPlacement:
    def test_actors_are_placed_on_the_node_with_the_resource(self, local_ray: Any) -> None:
        result = vfl.train(job(passes=2), table(), at=vfl.Ray(pin="always"))
        assert result.certificate.epsilon <= 1.0

    def test_a_resource_that_no_node_offers(self, local_ray: Any) -> None:
        """Fails soon, naming the requested and the offered resources, and the line that adds one."""
        began = time.monotonic()  # loading would wait for an hour
        with pytest.raises(PlacementError) as raised:
            vfl.train(
                job(passes=2),
                table(),
                at=vfl.Ray(pin="always", resources={"bank": "vault"}, ready_timeout_s=1.0),
            )
        assert time.monotonic() - began < 60
        address = local_ray.get_runtime_context().gcs_address
        said = str(raised.value)
        assert re.search("'bank' needs one node .*'vault' and 1 CPU", said)
        assert "telco" not in said.partition("Available: ")[0]
        assert "CPU 8, coordinator 1, party:bank 1" in said
        assert f"party 'bank': ray start --address={address} --num-cpus=1 --resources='{{\"vault\": 1}}'" in said

    def test_a_place_that_other_actors_hold(self, local_ray: Any) -> None:
        @local_ray.remote(num_cpus=8)
        class Greedy:
            def here(self) -> bool:
                return True

        greedy = Greedy.remote()
        local_ray.get(greedy.here.remote(), timeout=60)
        try:
            with pytest.raises(PlacementError, match=r"after 1 s: .*2 CPU of which 0"):
                vfl.train(job(passes=2), table(), at=vfl.Ray(pin="always", ready_timeout_s=1.0))
        finally:
            local_ray.kill(greedy)

    def test_a_group_that_captures_is_the_place_of_a_job(self, local_ray: Any) -> None:
        """As in a trial of Ray Tune: the parties take the group's bundles, or the error says which bundles to ask for."""
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        @local_ray.remote(num_cpus=0.1, max_retries=0)
        def trial() -> str:
            from ray.util.placement_group import placement_group_table

            others = len([group for group in placement_group_table().values() if group["state"] == "CREATED"])
            seen: list[int] = []

            def watch(_: Any) -> None:
                groups = placement_group_table().values()
                seen.append(len([group for group in groups if group["state"] == "CREATED"]) - others)

            try:
                vfl.train(job(passes=2), table(), at=vfl.Ray(party_cpus=0.1), watch=watch)
            except PlacementError as error:
                return str(error)
            return f"trained, with {max(seen)} more groups"

        said = []
        for bundles in ([{"CPU": 0.1}] * 3, [{"CPU": 0.1}]):
            group = placement_group(bundles)
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
            try:
                said.append(local_ray.get(trial.options(scheduling_strategy=strategy).remote(), timeout=180))
            finally:
                remove_placement_group(group)
        assert said[0] == "trained, with 0 more groups"
        assert 'tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 0.1}, {"CPU": 0.1}])' in said[1]

    def test_actors_show_run_and_party(self, local_ray: Any, tmp_path: Path) -> None:
        from ray.util import list_named_actors

        shown: dict[str, str] = {}
        named: set[str] = set()

        def watch(event: Any) -> None:
            if not shown:  # the actors wait for this process
                actors = {name: local_ray.get_actor(name) for name in list_named_actors()}
                shown.update(
                    {name: local_ray.get(one.__ray_call__.remote(repr), timeout=60) for name, one in actors.items()}
                )
            if isinstance(event, Round):
                named.update(list_named_actors())

        vfl.train(job(passes=2), table(), at=vfl.Ray(shards=2), watch=watch, output=tmp_path / "run")
        assert all(name == said for name, said in shown.items())
        assert len({name.partition(": ")[0] for name in named}) == 1
        parties = {"coordinator", "party bank", "party telco"}
        assert {name.partition(": ")[2] for name in shown} >= parties
        assert {name.partition(": ")[2] for name in named} == {
            *(*parties, "shard 0 of the margins", "shard 1 of the margins"),
            *(f"shard {k} of {party}" for k in range(2) for party in PARTITION.parties),
        }

    def test_a_reference_is_a_source(self, local_ray: Any) -> None:
        parts = {p: {name: table()[name] for name in PARTITION.wanted(p)} for p in PARTITION.parties}
        spec = job(passes=2)
        there = vfl.train(spec, {p: local_ray.put(part) for p, part in parts.items()})
        assert there.coef_.tobytes() == vfl.train(spec, table(), at="inprocess").coef_.tobytes()

    def test_ray_client_is_refused(self) -> None:
        code = (
            "import vfl, numpy as np\n"
            "from vfl.launch.sites.connection import connected\n"
            "with connected(1, 'ray://127.0.0.1:10001'): pass\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
        assert "is Ray Client" in done.stderr


def test_a_local_ray_is_started_whatever_else_runs() -> None:
    """Without an address neither RAY_ADDRESS, which is meant for vfl submit, nor somebody's cluster here is connected to."""
    program = (
        "from vfl.launch.sites.connection import connected\n"
        "with connected(3, None) as ray:\n"
        "    print(ray.cluster_resources()['CPU'])\n"
    )
    elsewhere = {"RAY_ADDRESS": "http://127.0.0.1:1", "PYTHONPATH": str(Path(vfl.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | elsewhere, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.split() == ["3.0"], done.stderr


def test_environment_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        job().to_toml()
        + '[ray]\naddress = "auto"\nready_timeout_s = 5\n[ray.resources]\nbank = "node:10.0.0.7"\n'
        + '[faults]\non_party_lost = "skip"\nwait_timeout_s = 9\n'
    )
    spec, environment = jobfile.read(path)
    assert spec.digest == job().digest
    assert environment.site == vfl.Ray(
        "auto",
        ready_timeout_s=5,
        resources={"bank": "node:10.0.0.7"},
        faults=Faults(on_party_lost="skip", wait_timeout_s=9),
    )
    assert site_of_log({"at": json.loads(json.dumps(plain_site(environment.site)))}) == environment.site
    path.write_text(path.read_text().replace('bank = "node', 'bnk = "node'))
    with pytest.raises(vfl.VflError, match=r"'bnk' in \[ray\.resources\] \(did you mean 'bank'\?\)"):
        jobfile.read(path)
