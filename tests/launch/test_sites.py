"""Sites: one argument `at` in every command, the rules of its default, its form in a log, and the local Ray that stays."""

from __future__ import annotations

import copy
import inspect
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import vfl
from vfl.apps.tuning import run as tuning
from vfl.errors import PlacementError, SpecificationError
from vfl.job.site import Faults, plain_site, site_of_log
from vfl.launch import stream
from vfl.launch.sites import inprocess
from vfl.launch.sites.bundles import CENTRE, layout_of
from vfl.launch.sites.open_site import site_and_data

PARTIES = ("bank", "telco")
TABLE = {"a": np.linspace(-1, 1, 60), "b": np.cos(np.arange(60.0)), "y": np.arange(60) % 2}
SITES = (
    vfl.InProcess(num_cpus=2, shards=3),
    vfl.Ray("10.0.0.1:6379", shards=2, resources={"bank": "vault"}, faults=Faults(wait_timeout_s=9)),
    vfl.Federated("/f/credit.toml", "/f/hub.key", faults=Faults(on_party_lost="skip")),
)
COMMANDS = (
    *(vfl.train, vfl.resume, vfl.tune, vfl.predict, vfl.evaluate, vfl.align, stream),
    *(tuning.resume, vfl.releases.private_bounds, vfl.releases.private_quantiles, vfl.releases.woe),
)


def job(**options: Any) -> vfl.Job:
    privacy = vfl.Privacy(epsilon=1.0, delta=1e-6, noise=vfl.SeededNoise(1))
    partition = vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, label=("bank", "y"))
    given = {"partition": partition, "bounds": {"*": (-1, 1)}, "privacy": privacy, "solver": vfl.SkGD(passes=2)}
    return vfl.Job(**given | options)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.__module__}.{command.__name__}")
def test_no_command_restates_an_option_of_a_site(command: Any) -> None:
    parameters = set(inspect.signature(command).parameters)
    assert "at" in parameters
    own = {f.name for site in SITES for f in fields(site)} | {
        "engine",
        "placement",
        "federation",
        "policies",
        "indexes",
    }
    assert not parameters & own
    assert len(parameters) <= {vfl.train: 8, vfl.tune: 11, vfl.releases.private_quantiles: 9}.get(command, 8)


@pytest.mark.parametrize("site", SITES, ids=lambda site: type(site).__name__)
def test_a_site_is_copied_and_kept(site: Any) -> None:
    assert copy.deepcopy(site) == site
    assert site_of_log({"at": json.loads(json.dumps(plain_site(site)))}) == site
    with pytest.raises(AttributeError):
        setattr(site, fields(site)[0].name, None)


def test_estimators_with_a_site_are_cloned() -> None:
    assert clone(vfl.sklearn.VerticalRidge(at=SITES[1])).get_params()["at"] == SITES[1]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (TABLE, vfl.InProcess),
        ({"bank": TABLE, "telco": TABLE}, vfl.InProcess),
        (vfl.Source(TABLE, {"bank": "policy.toml"}), vfl.InProcess),
        ("all.csv", vfl.Ray),
        ({"bank": "bank.csv", "telco": Path("telco.parquet")}, vfl.Ray),
        ({"bank": TABLE, "telco": vfl.Source(vfl.Csv("telco.csv"))}, vfl.Ray),
        ({"bank": TABLE, "telco": lambda: TABLE}, vfl.Ray),
    ],
)
def test_tables_in_memory_stay_in_the_process(data: Any, kind: type) -> None:
    assert type(site_and_data(PARTIES, data, None)[0]) is kind


def test_rules_of_owners_are_taken_from_around_the_data_and_from_each_source(tmp_path: Path) -> None:
    sources = {"bank": vfl.Source("b.csv", tmp_path / "bank.toml", tmp_path / "index"), "telco": "t.csv"}
    _, data, arrangement = site_and_data(PARTIES, vfl.Source(sources, {"telco": tmp_path / "telco.toml"}), None)
    assert data == {"bank": "b.csv", "telco": "t.csv"}
    assert arrangement.policies == {"telco": str(tmp_path / "telco.toml"), "bank": str(tmp_path / "bank.toml")}
    assert arrangement.folders == {"bank": str(tmp_path / "index")}
    with pytest.raises(SpecificationError, match="which is not a party"):
        site_and_data(PARTIES, vfl.Source(TABLE, {"bnak": "x.toml"}), None)
    with pytest.raises(SpecificationError, match=r"policy must be \{party: path\}"):
        site_and_data(PARTIES, vfl.Source(TABLE, "x.toml"), None)


def test_a_run_is_resumed_at_its_own_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(Exception):
        pass

    def cut(event: Any) -> None:
        if getattr(event, "number", 0) == 2:
            raise Cut

    places, run = [], inprocess.run
    monkeypatch.setattr(inprocess, "run", lambda *a, **k: places.append(k["site"]) or run(*a, **k))
    site = vfl.InProcess(shards=2)
    with pytest.raises(Cut):
        vfl.train(job(), TABLE, at=site, output=tmp_path / "run", watch=cut)
    resumed = vfl.resume(tmp_path / "run", TABLE)
    assert places == [site, site]
    assert resumed.w.tobytes() == vfl.train(job(), TABLE).w.tobytes()


def test_parties_of_one_machine_ask_for_a_fraction_of_a_cpu() -> None:
    processes = [(party,) for party in PARTIES]
    here = layout_of(vfl.Ray(), processes)
    assert set(here.homes) == set(PARTIES)  # the coordinator takes nothing
    assert 0 < sum(bundle["CPU"] for bundle in here.asked()) < 0.1
    assert layout_of(vfl.Ray(party_cpus=2.0), processes).bundles["bank"]["CPU"] == 2.0
    assert layout_of(vfl.Ray("auto"), processes).bundles["bank"]["CPU"] == 1.0
    assert layout_of(vfl.Ray(party_cpus=0), processes).asked() == []
    shares = vfl.Ray(pin="always")
    assert "dealer" in layout_of(shares, processes, dealer="separate").bundles
    assert layout_of(shares, processes, dealer="coordinator").homes["dealer"] == CENTRE
    assert "dealer" not in layout_of(shares, processes, dealer=None).homes


def test_a_client_that_the_user_opened_is_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("ray.util.client")
    monkeypatch.setattr(type(client.ray), "is_connected", lambda _: True)
    with pytest.raises(PlacementError, match="by Ray Client"):
        vfl.train(job(), TABLE, at=vfl.Ray(), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_command_refuses_what_cannot_run_there() -> None:
    with pytest.raises(PlacementError, match="Ray Client"):
        vfl.train(job(), TABLE, at=vfl.Ray("ray://127.0.0.1:10001"))
    with pytest.raises(PlacementError, match="leave shards at 1"):
        vfl.train(job(trust="secure"), TABLE, at=vfl.InProcess(shards=2))


PROGRAM = """
import os, ray, vfl
from tests.launch.test_sites import TABLE, job

spec = job(partition=vfl.FeaturePartition({"bank": ["a", "b"]}, label=("bank", "y")))
model = vfl.train(spec, TABLE).w.tobytes()
addresses, open_files = [], []
for _ in range(2):
    assert vfl.train(spec, TABLE, at="ray").w.tobytes() == model
    addresses.append(ray.get_runtime_context().gcs_address)
    open_files.append(len(os.listdir("/proc/self/fd")))
assert len(set(addresses)) == 1, addresses  # the Ray that vfl started stays
assert open_files[1] - open_files[0] < 2, open_files
print("done")
"""


@pytest.mark.timeout(600)
def test_the_local_ray_stays_and_loses_no_descriptors() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout.split() == ["done"], done.stderr
