"""`vfl submit`, with a job server that runs each submitted command at once in a shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import vfl
from vfl.apps.cli import vfl as command
from vfl.errors import JobFileError, PlacementError
from vfl.job import file as jobfile
from vfl.launch.sites import submission


@dataclass
class Server:
    """Fake of Ray's job submission client."""

    folder: Path
    sent: list[dict[str, Any]] = field(default_factory=list)
    printed: dict[str, str] = field(default_factory=dict)
    status: dict[str, str] = field(default_factory=dict)

    def submit_job(self, *, entrypoint: str, submission_id: str, runtime_env: dict[str, Any], **asked: Any) -> None:
        packages = [Path(package) for package in runtime_env.get("py_modules", ())]
        files = {file.name: file.read_text() for package in packages for file in package.iterdir()}
        self.sent.append({"id": submission_id, "files": files, "runtime_env": runtime_env, **asked})
        place = self.folder / "packages"  # Ray unpacks each package below a folder of PYTHONPATH
        for package in packages:
            shutil.copytree(package, place / package.name)
        done = subprocess.run(
            ["sh", "-c", entrypoint],
            env=os.environ | {"PYTHONPATH": f"/nowhere:{place}", "PATH": f"{self.folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        self.printed[submission_id] = done.stdout + done.stderr
        self.status[submission_id] = "FAILED" if done.returncode else "SUCCEEDED"

    @dataclass
    class Info:
        submission_id: str
        status: str
        message: str | None = None
        start_time: int = 0

    def known(self, ident: str) -> str:
        if ident not in self.status:
            raise RuntimeError(f"Request failed with status code 404: Job {ident} does not exist.")
        return ident

    def get_job_info(self, ident: str) -> Info:
        return self.Info(self.known(ident), self.status[ident])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Make the fake server; on its machine `vfl` only prints its arguments."""
    stub = tmp_path / "vfl"
    stub.write_text(f"#!{sys.executable}\nimport sys\nprint(*sys.argv[1:])\nsys.exit('broken' in sys.argv)\n")
    stub.chmod(0o755)
    (tmp_path / "site with a space").mkdir()
    server = Server(tmp_path)

    def connect(self: Any, address: str | None) -> None:
        self._client = server

    monkeypatch.setattr(submission.JobServer, "__init__", connect)
    return server


@pytest.fixture
def job(tmp_path: Path) -> Path:
    spec = vfl.Job(
        name="credit",
        partition=vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, label=("telco", "y")),
        bounds={"a": (0.0, 1.0), "b": (0.0, 1.0)},
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-6),
    )
    path = tmp_path / "here" / "mine.toml"
    path.parent.mkdir()
    path.write_text(spec.to_toml() + '[data]\nbank = "it\'s \\"quoted\\" $HOME.csv"\ntelco = \'t.csv\'\n')
    return path


def run(*arguments: object) -> str:
    return (
        CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False, standalone_mode=False).output
    )


def submit(job: Path, server: Server, *options: object) -> dict[str, str]:
    said = run("submit", job, "--folder", server.folder / "site with a space", "--json", *options)
    sent: dict[str, str] = json.loads(said.splitlines()[-1])
    return sent


def test_only_the_text_of_the_job_is_sent(server: Server, job: Path) -> None:
    sent = submit(job, server, "--set", "privacy.epsilon=2", "--set", "ledger.path=a b.db")
    (call,) = server.sent
    assert call["files"] == {"job.toml": job.read_text()}
    assert list(call["runtime_env"]) == ["py_modules"]
    assert call["entrypoint_num_cpus"] == 0
    assert set(call["entrypoint_resources"]) == {"coordinator"}
    there = server.folder / "site with a space" / f"{sent['id']}.toml"
    assert there.read_text() == job.read_text()
    assert jobfile.read(there)[0].digest == jobfile.read(job)[0].digest
    said = server.printed[sent["id"]]
    expected = f"--output runs/{sent['id']} --set privacy.epsilon=2 --set ledger.path=a b.db"
    assert said == f"run {sent['id']}.toml --at auto {expected}\n"
    assert sent["output"] == f"runs/{sent['id']}"


def test_two_jobs_have_two_names(server: Server, job: Path) -> None:
    first, second = (submit(job, server)["id"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize("name", ["status", "logs", "cancel"])
def test_jobs_are_followed_by_the_commands_of_ray(name: str) -> None:
    with pytest.raises(click.UsageError, match="it is ray job"):
        run(name, "x")


def test_resume(server: Server) -> None:
    sent = json.loads(run("submit", "--resume", "runs/credit-1", "--folder", server.folder, "--json"))
    assert server.printed[sent["id"]] == "resume runs/credit-1\n"
    assert sent["output"] == "runs/credit-1"


def test_errors_are_found_before_submission(server: Server, job: Path, tmp_path: Path) -> None:
    for arguments in ((), (job, "--resume", "r")):
        with pytest.raises(click.UsageError, match="give a job file, or --resume"):
            run("submit", *arguments, "--folder", "/vfl")
    job.write_text(job.read_text().replace("epsilon", "epsilom"))
    with pytest.raises(JobFileError, match="did you mean 'epsilon'"):
        submit(job, server)
    assert server.sent == []


def test_a_missing_folder_is_named(server: Server, job: Path) -> None:
    ident = json.loads(run("submit", job, "--folder", "/no such $folder", "--json"))["id"]
    said = server.printed[ident]
    assert said.startswith(
        "error: there is no folder '/no such $folder' that can be entered where the coordinator runs"
    )
    assert said.endswith("name another with --folder\n")
    assert server.status[ident] == "FAILED"
    assert list(server.folder.glob("*.toml")) == []


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Capture the address that reaches Ray's client. Like Ray's, this fake prefers its environment variables to
    arguments."""
    import types

    asked: list[str | None] = []

    def connect(address: str | None) -> None:
        asked.append(os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or address)

    module = types.SimpleNamespace(JobSubmissionClient=connect)
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)  # type: ignore[arg-type]
    monkeypatch.setattr(submission, "require_answer", lambda url, **_: None)
    return asked


@pytest.mark.parametrize("variable", ["RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"])
def test_a_given_address_takes_precedence(
    client: list[str | None], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://other:8265")
    submission.JobServer("http://mine:8265")
    submission.JobServer(None)
    assert client == ["http://mine:8265", "http://other:8265"]
    assert os.environ[variable] == "http://other:8265"


def test_a_wrong_token(client: list[str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    class AuthenticationError(ray.exceptions.RayError):  # type: ignore[misc]  # Ray has one from 2.52 on
        pass

    def refuse(address: str | None) -> None:
        raise AuthenticationError("Authentication failed\n" + "a line\n" * 40)

    monkeypatch.setattr(sys.modules["ray.job_submission"], "JobSubmissionClient", refuse)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/etc/vfl/token")
    with pytest.raises(PlacementError) as raised:
        run("submit", "--resume", "r", "--folder", "f", "--address", "http://mine:8265")
    for fact in ("http://mine:8265", "RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN_PATH", "'/etc/vfl/token'"):
        assert fact in str(raised.value)


def test_the_address_of_a_job_server_is_refused_as_a_cluster_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    for address in ("auto", "http://head:8265"):
        with pytest.raises(PlacementError, match=r"head:8265.*vfl submit JOB.*--at HEAD:6379"):
            run("run", "breast_cancer", "--at", address)
    assert list(tmp_path.iterdir()) == []


def test_no_server() -> None:
    code = "from vfl.launch.sites.submission import JobServer; JobServer('http://127.0.0.1:1')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert PlacementError.__name__ in done.stderr
    assert "http://127.0.0.1:1" in done.stderr or "vfl[cluster]" in done.stderr
