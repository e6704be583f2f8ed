"""`vfl submit` of a job with thousands of columns to a real job server: its job file exceeds one environment variable."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from tests.ports import free_port
from vfl.launch.sites.submission import JobServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.faults, pytest.mark.slow]

VFL = [sys.executable, "-c", "from vfl.apps.cli import main; main()"]
WIDE = 4000


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Start a head with a dashboard; yield the address of its job server."""
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {
        "num_cpus": 4,
        "resources": {"coordinator": 1, "party:bank": 1, "party:telco": 1},
        "include_dashboard": True,
        "dashboard_port": free_port(),
        "dashboard_agent_listen_port": free_port(),
        "object_store_memory": 100_000_000,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    address, until = f"http://{cluster.head_node.webui_url}", time.monotonic() + 120
    while True:  # the node's agent, which runs jobs, starts after the server
        try:
            JobServer(address)._client.submit_job(entrypoint="true")
            break
        except RuntimeError:
            assert time.monotonic() < until
            time.sleep(1)
    yield address
    cluster.shutdown()


def said(*arguments: object) -> str:
    done = subprocess.run([*VFL, *map(str, arguments)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_job_file_of_thousands_of_columns_arrives(server: str, tmp_path: Path) -> None:
    names = [f"measurement_of_{k:04}" for k in range(WIDE)]
    rng = np.random.default_rng(0)
    columns = {"bank": ["a"], "telco": names}
    spec = vfl.Job(
        name="wide",
        partition=vfl.FeaturePartition(columns, label=("bank", "y")),
        bounds=dict.fromkeys(("a", *names), (0.0, 1.0)),
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6),
        solver=vfl.SkGD(passes=1),
    )
    tables = {
        "bank": {"a": rng.uniform(size=50), "y": rng.integers(0, 2, 50)},
        "telco": {n: rng.uniform(size=50) for n in names},
    }
    for party, table in tables.items():
        np.savetxt(
            tmp_path / f"{party}.csv",
            np.column_stack(list(table.values())),
            "%g",
            ",",
            header=",".join(table),
            comments="",
        )
    sources = "".join(f'{party} = "{tmp_path / party}.csv"\n' for party in tables)
    (tmp_path / "wide.toml").write_text(spec.to_toml() + f"[data]\n{sources}[ray]\nready_timeout_s = 60\n")
    assert (tmp_path / "wide.toml").stat().st_size > 131_072
    words = ("submit", tmp_path / "wide.toml", "--address", server, "--folder", tmp_path, "--json")
    sent = json.loads(said(*words))
    followed = subprocess.run(
        ["ray", "job", "logs", sent["id"], "--address", server, "--follow"], capture_output=True, text=True, timeout=240
    ).stdout
    assert re.search("replace-one", followed)
    assert (tmp_path / sent["output"] / "model.json").exists()
    assert JobServer(server)._client.get_job_status(sent["id"]).value == "SUCCEEDED"
