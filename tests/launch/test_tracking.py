"""Experiment trackers get public facts and released values alone, in plain JSON and in MLflow's file store."""

from __future__ import annotations

import json
import math
import re
import socket
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import vfl
from vfl.errors import OutputError, SpecificationError
from vfl.launch.run.tracking import LIMITS, tracked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 300


def train(output: Path | None = None, **options: Any) -> vfl.Result:
    rng = np.random.default_rng(2)
    table: dict[str, Any] = {name: rng.uniform(-1, 1, N) for name in "ab"}
    table["y"] = (table["a"] > 0).astype(int)
    job = vfl.Job(
        name="credit",
        partition=vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, label=("bank", "y")),
        bounds={"*": (-1.0, 1.0)},
        **{
            "privacy": vfl.Privacy(epsilon=2.0, delta=1e-6),
            "solver": vfl.SkGD(passes=2),
            "evaluation": vfl.Evaluation(holdout=0.3),
        }
        | options,
    )
    return vfl.train(job, table, at="inprocess", output=output)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tracked") / "run"
    train(folder, evaluation=vfl.Evaluation(holdout=0.3, diagnostics=True))
    return folder


def test_all_that_leaves_is_public_or_released(run: Path) -> None:
    result = vfl.Result.load(run)
    found = tracked(result)
    released = {
        number
        for kind in ("held out",)
        for e in result.findings[kind].measures.values()
        for number in (e.value, e.error, e.baseline, e.cap)
    }
    certificate = result.certificate
    assert set(found.metrics.values()) <= released | {certificate.epsilon, certificate.delta}
    assert not any("diagnostics" in name for name in found.metrics)
    exact = {e.value for e in result.findings["diagnostics"].measures.values()}
    assert exact.isdisjoint(found.metrics.values())
    assert (found.params["job"], found.params["n_records"], found.params["n_held_out"]) == (
        "credit",
        N,
        result.findings["held out"].n_records,
    )
    assert found.tags["vfl.model_digest"] == certificate.model_digest
    assert found.tags["vfl.private"] == "false"  # the job asked for diagnostics
    assert "diagnostics" not in json.dumps(found.to_dict()["params"])


def test_a_run_without_privacy_states_no_epsilon() -> None:
    found = tracked(train(privacy=None))
    assert "epsilon" not in found.metrics
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert found.tags["vfl.private"] == "false"


def test_names_are_those_that_trackers_accept() -> None:
    result = train()
    held = result.findings["held out"]
    names = dict.fromkeys(("recall [x]", "recall (x)", "\u03b5"), replace(held.measures["accuracy"], withheld=False))
    found = tracked(replace(result, findings={"held out": replace(held, measures=names)}))
    assert all(name.isascii() for name in found.metrics)
    assert len([name for name in found.metrics if name.startswith("held out/recall _x_")]) == 6


def test_the_command_writes_json(run: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    said = call("export", str(run), "--form", "tracking", "--output", str(tmp_path / "run.json"))
    assert said.code == 0
    assert json.loads((tmp_path / "run.json").read_text()) == tracked(vfl.Result.load(run)).to_dict()
    assert json.loads(call("export", str(run), "--form", "tracking").out) == tracked(vfl.Result.load(run)).to_dict()
    missing = call("export", str(run), "--form", "scorecard")
    assert missing.code == 2
    assert "Missing option '--output'" in missing.err
    assert (
        call("export", str(run), "--form", "tracking", "--output", str(tmp_path / "run.json")).code
        == OutputError.exit_code
    )


def test_a_model_that_was_altered_is_not_tracked(run: Path) -> None:
    result = vfl.Result.load(run)
    with pytest.raises(OutputError, match="certificate does not hold"):
        tracked(replace(result, w=result.w + 1.0))


def test_without_mlflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SpecificationError, match=r"pip install 'vfl\[track\]'"):
        vfl.Result.load(run).log_to_mlflow()


def test_mlflow_holds_the_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    for option in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(option, "true")
    result, uri = vfl.Result.load(run), (tmp_path / "store").as_uri()
    ident = result.log_to_mlflow(uri=uri, experiment="credit")
    client = mlflow.MlflowClient(tracking_uri=uri)
    held, found = client.get_run(ident), tracked(result)
    assert held.info.status == "FINISHED"
    assert held.data.metrics == dict(found.metrics)
    assert held.data.params == {name: str(value) for name, value in found.params.items()}
    assert {name: held.data.tags[name] for name in found.tags} == dict(found.tags)
    assert set(held.data.tags) - set(found.tags) <= {"mlflow.runName", "mlflow.user"}
    certificate = client.download_artifacts(ident, "certificate.json", str(tmp_path))
    assert vfl.Certificate.load(certificate) == result.certificate
    assert result.log_to_mlflow(uri=uri, experiment="credit") != ident
    with pytest.raises(OutputError, match="MLflow refuses the run"):
        result.log_to_mlflow(uri="nonesuch://store")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{port}", "http://127.0.0.1:many"])
def test_a_server_that_does_not_answer_is_refused_at_once(
    uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Callable[..., Any]
) -> None:
    """MLflow itself would ask again for minutes. A double of its client would answer, so only the connection fails."""
    _doubled(monkeypatch)
    with socket.socket() as bound:  # nobody listens at its port
        bound.bind(("127.0.0.1", 0))
        said = call(
            "run", "breast_cancer", "--track", uri.format(port=bound.getsockname()[1]), "--output", str(tmp_path / "r")
        )
    assert said.code == OutputError.exit_code
    assert "so nothing was trained: " in said.err
    assert not (tmp_path / "r").exists()


def test_a_run_is_not_trained_without_mlflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Callable[..., Any]
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    said = call("run", "breast_cancer", "--track", "file:store", "--output", str(tmp_path / "run"))
    assert said.code == SpecificationError.exit_code
    assert "pip install 'vfl[track]'" in said.err
    assert not (tmp_path / "run").exists()


class Client:
    """Double of MLflow's client. It keeps what was logged, and refuses URIs that begin with "bad"."""

    kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, tracking_uri: str) -> None:
        self.uri = tracking_uri

    def search_experiments(self, max_results: int) -> list[Any]:
        if self.uri.startswith("bad"):
            raise OSError("nobody answers")
        return [][:max_results]

    def get_experiment_by_name(self, name: str) -> None:
        if self.uri.startswith("later"):
            raise OSError(f"{name}: the disk is full")

    def create_experiment(self, name: str) -> str:
        return name

    def create_run(self, home: str, run_name: str, tags: dict[str, str]) -> Any:
        self.kept |= {"name": run_name, "home": home, "tags": tags, "params": {}, "metrics": {}}
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def log_param(self, run: str, name: str, value: Any) -> None:
        self.kept["params"][name] = value

    def log_metric(self, run: str, name: str, value: float) -> None:
        self.kept["metrics"][name] = value

    def log_text(self, run: str, text: str, path: str) -> None:
        self.kept[path] = text

    def set_terminated(self, run: str) -> None:
        self.kept["ended"] = run


def _doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the double in place of MLflow. The limits that are set for MLflow end with the test."""
    exceptions = ModuleType("mlflow.exceptions")
    exceptions.MlflowException = RuntimeError  # type: ignore[attr-defined]
    mlflow = ModuleType("mlflow")
    mlflow.MlflowClient = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    for name, value in LIMITS.items():
        monkeypatch.setenv(name, value)


def test_a_run_is_logged_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Callable[..., Any]
) -> None:
    """With a double of MLflow's client; test_mlflow_holds_the_run takes a real store where one is installed."""
    _doubled(monkeypatch)
    run = ("run", "breast_cancer", "--at", "inprocess", "--output")
    bad = call(*run, str(tmp_path / "bad"), "--track", "bad://server")
    assert bad.code == OutputError.exit_code
    assert re.search("'bad://server'.*nothing was trained", bad.err)
    assert not (tmp_path / "bad").exists()
    said = call(*run, str(tmp_path / "first"), "--track", "file:store")
    assert said.code == 0, said.err
    assert "logged to MLflow as run r1" in said.err
    found = tracked(vfl.Result.load(tmp_path / "first"))
    assert (Client.kept["name"], Client.kept["ended"]) == ("first", "r1")
    assert Client.kept["metrics"] == found.metrics
    assert Client.kept["params"] == found.params
    later = call(*run, str(tmp_path / "second"), "--track", "later:store")
    assert later.code == OutputError.exit_code
    assert "finished and kept" in later.err
    assert (tmp_path / "second" / "model.json").exists()
