"""Several jobs at once on a Ray of several nodes: each is placed as a whole, waits its turn, and frees its place at its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
SMALL = {"object_store_memory": 80_000_000}
PROGRAM = """
import sys, time
import numpy as np
import vfl
address, ready, seconds, pin, shards = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4], int(sys.argv[5])
rng = np.random.default_rng(1)
partition = vfl.FeaturePartition({name: ["x" + name] for name in "abc"}, label=("a", "y"))
table = {name: rng.uniform(-1, 1, 200) for name in partition.features} | {"y": rng.integers(0, 2, 200)}
job = vfl.Job(partition=partition, name="waiting",
              bounds=dict.fromkeys(partition.features, (-1.0, 1.0)), solver=vfl.SkGD(passes=2),
              privacy=vfl.Privacy(epsilon=1.0, delta=1e-6))
waited = []
def watch(event):
    if not waited:
        waited.append(1)
        print("placed", flush=True)
        time.sleep(seconds)
site = vfl.Ray(address, pin=pin, party_cpus=1, ready_timeout_s=ready, shards=shards)
try:
    vfl.train(job, table, at=site, watch=watch)
except vfl.VflError as error:
    print("refused:", str(error).replace(chr(10), " "), flush=True)
else:
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes: a head without CPUs, and two nodes of two CPUs that offer the parties' resources."""
    from ray.cluster_utils import Cluster

    several = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "resources": {"coordinator": 1}, "include_dashboard": False, **SMALL},
    )
    several.add_node(num_cpus=2, resources={"party:a": 1, "party:b": 1}, **SMALL)
    several.add_node(num_cpus=2, resources={"party:c": 1}, **SMALL)
    yield several
    several.shutdown()


def begin(address: str, *, ready: float = 120, seconds: float = 0, pin: str = "never", shards: int = 1) -> Any:
    """Start the driver of a job, which stops for some seconds when its parties have loaded."""
    arguments = [address, str(ready), str(seconds), pin, str(shards)]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(driver: Any) -> str:
    """Return what a driver printed; a driver that does not end in time fails the test."""
    try:
        out, err = driver.communicate(timeout=240)
    finally:
        driver.kill()
    return out or err


def placed(driver: Any) -> None:
    """Wait until a job holds its place."""
    assert driver.stdout.readline() == "placed\n", driver.communicate()


@pytest.mark.parametrize("pin", ["never", pytest.param("always", marks=pytest.mark.slow)])
def test_jobs_that_do_not_fit_together_run_one_after_another(cluster: Any, pin: str) -> None:
    """Three jobs of three CPUs on four CPUs. Placed actor by actor, each would wait for what the others hold."""
    drivers = [begin(cluster.address, pin=pin) for _ in range(3)]
    assert [ended(driver).split() for driver in drivers] == [["placed", "done"]] * 3


def test_a_job_that_waits_too_long_says_which_job_holds_the_place(cluster: Any) -> None:
    first = begin(cluster.address, seconds=600)
    try:
        placed(first)
        said = ended(begin(cluster.address, ready=2))
        assert "refused: the cluster is still in use after 2 s" in said
        assert "3 CPU of which 1 is free" in said
        assert "In use by 'waiting " in said
    finally:
        first.kill()
        first.communicate()


ENDS = [*(pytest.param(end, marks=pytest.mark.slow) for end in (signal.SIGINT, signal.SIGTERM)), signal.SIGKILL]


@pytest.mark.parametrize("end", ENDS)
def test_the_place_of_a_job_is_free_after_every_end(cluster: Any, end: signal.Signals) -> None:
    first = begin(cluster.address, seconds=600)
    placed(first)
    first.send_signal(end)
    first.communicate(timeout=60)
    assert "done" in ended(begin(cluster.address, ready=30))


def test_a_job_that_never_fits_is_told_what_is_missing(cluster: Any) -> None:
    said = ended(begin(cluster.address, ready=1, shards=2))
    assert "refused: the cluster lacks what the job asks for, after 1 s" in said
    assert "each of its 2 shards" in said
    assert "ray start --address=" in said


@pytest.fixture
def scaling(tmp_path: Path) -> Iterator[str]:
    """Address of a head without CPUs whose autoscaler adds nodes: processes of this machine, in a session of their own.

    AutoscalingCluster of ray.cluster_utils begins and ends with 'ray stop --force', which would end every Ray of this machine.
    """
    from ray._private.services import get_node_ip_address

    pytest.importorskip(
        "ray.autoscaler._private.fake_multi_node.node_provider", reason="this Ray has no provider of nodes for tests"
    )
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = f"{get_node_ip_address()}:{port}"
    kinds = {
        "ray.head.default": {"resources": {"coordinator": 1}, "max_workers": 0},
        "two": {"resources": {"CPU": 2, "party:a": 1, "party:b": 1, **SMALL}, "max_workers": 1},
        "one": {"resources": {"CPU": 1, "party:c": 1, **SMALL}, "max_workers": 1},
    }
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray", "stop_ray")
    config = {
        "cluster_name": "scaling",
        "max_workers": 2,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "provider": {"type": "fake_multinode", "gcs_address": address},
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "head_node_type": "ray.head.default",
        "available_node_types": {name: {"node_config": {}} | kind for name, kind in kinds.items()},
        **{f"{name}_commands": [] for name in lists},
    }
    (tmp_path / "scaling.json").write_text(json.dumps(config))
    with (tmp_path / "head.log").open("w") as log:
        head = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
                *(f"--port={port}", "--num-cpus=0", "--include-dashboard=false", "--object-store-memory=80000000"),
                *(f"--autoscaling-config={tmp_path / 'scaling.json'}", '--resources={"coordinator": 1}'),
            ],
            env=os.environ | {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 90
        while "--block" not in (tmp_path / "head.log").read_text():
            assert head.poll() is None, (tmp_path / "head.log").read_text()
            assert time.monotonic() < until, (tmp_path / "head.log").read_text()
            time.sleep(0.5)
        yield address
    finally:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(path.name)) == head.pid:
                    os.kill(int(path.name), signal.SIGKILL)
        head.wait()


def test_an_autoscaler_adds_the_nodes_that_a_job_needs(scaling: str) -> None:
    """Nodes join only for demand that is not met, so a job that waits for nodes before it asks would wait for ever."""
    said = ended(begin(scaling, pin="always", ready=180))
    assert said.split() == ["placed", "done"], said
