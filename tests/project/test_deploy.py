"""Files of deploy/, checked as far as possible without Docker, Kubernetes or other machines."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import vfl
from vfl.job import file as jobfile
from vfl.launch.join import STOPPING_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NODES = {"coordinator", "party:bank", "party:telco"}
SPILLING_OFF = {"automatic_object_spilling_enabled": False}


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def options(command: list[str]) -> dict[str, str]:
    return dict(part.removeprefix("--").split("=", 1) for part in command if part.startswith("--") and "=" in part)


def named(resources: Mapping[str, Any]) -> set[str]:
    assert all(value == 1 for value in resources.values())
    return set(resources)


def test_the_job_requests_resources_that_the_nodes_offer() -> None:
    job, _ = jobfile.read(DEPLOY / "jobs" / "credit.toml")
    assert {f"party:{name}" for name in job.partition.parties} | {"coordinator"} == NODES


def test_compose() -> None:
    compose = read("compose.yaml")
    offered: set[str] = set()
    for name, service in compose["services"].items():
        given = options(service["command"])
        assert service["command"][:2] == ["ray", "start"]
        assert "--block" in service["command"]
        assert "--disable-usage-stats" in service["command"]
        assert service["environment"]["RAY_AUTH_MODE"] == "token"
        assert service["restart"] == "unless-stopped"  # the run waits for a restarted party
        offered |= named(json.loads(given["resources"]))
        if name == "head":
            assert json.loads(given["system-config"]) == SPILLING_OFF
            assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        else:
            assert given["address"] == "head:6379"
            (folder,) = service["volumes"]
            assert folder == f"./site/{name}:/vfl"
    assert offered == NODES
    for volume in compose["services"]["head"]["volumes"]:
        assert volume.split(":")[0] in compose["volumes"]


def test_ray_up() -> None:
    """The fields are those of Ray's own schema for such files."""
    import ray.autoscaler

    config = read("ray-up.yaml")
    path = Path(ray.autoscaler.__file__).parent / "ray-schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    import jsonschema

    jsonschema.validate(config, schema)
    head, worker = config["head_start_ray_commands"][-1], config["worker_start_ray_commands"][-1]
    assert named(json.loads(re.search(r"--resources='([^']*)'", head)[1])) == {"coordinator"}
    assert json.loads(re.search(r"--system-config='([^']*)'", head)[1]) == SPILLING_OFF
    spoken = subprocess.run(
        [
            "sh",
            "-c",
            "echo " + re.search(r"--resources=(\"\S+ \S+ 1}\")", worker)[1].replace("$(cat /etc/vfl/party)", "bank"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert named(json.loads(spoken.stdout)) == {"party:bank"}
    assert (
        options(head.split())["dashboard-host"] == config["provider"]["head_ip"]
    )  # reachable on no other network of the machine
    assert config["file_mounts"] == {}


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml"])
def test_kubernetes(name: str) -> None:
    whole = read(f"kubernetes/{name}")
    assert whole["apiVersion"] == "ray.io/v1"
    job = whole["kind"] == "RayJob"
    cluster = whole["spec"]["rayClusterSpec"] if job else whole["spec"]
    site = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "site.yaml").read_text(encoding="utf-8")))
    kept = {(thing["kind"], thing["metadata"]["name"]) for thing in site}
    assert cluster["authOptions"] == {"mode": "token"}
    assert tuple(map(int, cluster["rayVersion"].split("."))) >= (2, 52)  # the first version with tokens
    offered: set[str] = set()
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        start = group["rayStartParams"]
        assert all(isinstance(value, str) for value in start.values())
        # KubeRay copies the value into a shell's command line, so the inner JSON is quoted for the shell.
        offered |= named(json.loads(json.loads(start["resources"])))
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for volume in pod["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            settings = volume.get("configMap", {}).get("name")
            assert ("PersistentVolumeClaim", claim) in kept or ("ConfigMap", settings) in kept
        mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert json.loads(json.loads(cluster["headGroupSpec"]["rayStartParams"]["system-config"])) == SPILLING_OFF
    for group in cluster["workerGroupSpecs"]:
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 1
    assert offered == NODES
    if job:
        assert set(json.loads(whole["spec"]["entrypointResources"])) == {"coordinator"}
        assert whole["spec"]["shutdownAfterJobFinishes"] is True
        assert whole["spec"]["backoffLimit"] == 0
        assert "/vfl/runs/" in whole["spec"]["entrypoint"]


def test_the_job_in_kubernetes_equals_the_template(tmp_path: Path) -> None:
    site = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "site.yaml").read_text(encoding="utf-8")))
    (text,) = [thing["data"]["credit.toml"] for thing in site if thing["kind"] == "ConfigMap"]
    (tmp_path / "credit.toml").write_text(text)
    job, environment = jobfile.read(tmp_path / "credit.toml")
    assert job.digest == jobfile.read(DEPLOY / "jobs" / "credit.toml")[0].digest
    assert environment.data == {"bank": "/vfl/bank.parquet", "telco": "/vfl/telco.csv"}


def image(name: str) -> list[str]:
    """Return the lines of an image's file, which copies exactly what the build's context contains."""
    lines = [line for line in (DEPLOY / name).read_text(encoding="utf-8").splitlines() if line]
    copied = {
        source for line in lines if line.startswith("COPY ") and "--from" not in line for source in line.split()[1:-1]
    }
    root = DEPLOY.parent
    assert all((root / source).exists() for source in copied)
    allowed = {line[1:] for line in (root / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    assert copied == allowed  # the build's context contains nothing else
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    assert users == ["vfl"]
    return lines


def test_the_image() -> None:
    lines = image("Dockerfile")
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert "ENV XDG_STATE_HOME=/vfl/state" in lines  # on the volume, because a restarted party needs its index
    assert any("[cluster]" in line for line in lines)
    assert "cluster" in project["project"]["optional-dependencies"]


def test_the_image_of_a_participant() -> None:
    lines = image("organisations/Containerfile")
    assert "STOPSIGNAL SIGTERM" in lines  # on which vfl join ends cleanly
    assert 'ENTRYPOINT ["vfl"]' in lines
    (state,) = [line.split()[1] for line in lines if line.startswith("VOLUME")]
    assert any(line.startswith("ENV ") and f"XDG_STATE_HOME={state}" in line for line in lines)
    assert any("[federation,he,serve]" in line for line in lines)
    assert not any("[cluster]" in line or "EXPOSE" in line for line in lines)  # a party needs neither Ray nor a port
    runs = " ".join(line.lstrip("# ").rstrip("\\") for line in lines if line.startswith("#  "))
    for option in ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--ulimit core=0"):
        assert option in runs
    told(runs[runs.index("vfl-join join ") + len("vfl-join ") :])


def told(line: str) -> dict[str, Any]:
    """Return the parameters that `vfl join` reads from a command line; it refuses options that it does not know."""
    from vfl.apps.cli.administration.join import join_command

    words = shlex.split(line)
    assert words[0] == "join"
    return join_command.make_context("join", words[1:]).params


def settings(name: str) -> dict[str, list[str]]:
    """Return {key: values} of a systemd unit; a line that ends in a backslash goes on in the next."""
    text = (DEPLOY / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value.strip())
    return found


def test_the_service(tmp_path: Path) -> None:
    unit = settings("organisations/vfl-join.service")
    (start,) = unit["ExecStart"]
    program, _, rest = start.partition(" ")
    given = told(rest)
    assert given["as_json"] is True  # for the journal
    assert given["name"] == "bank"
    assert unit["KillSignal"] == ["SIGTERM"]
    assert int(unit["TimeoutStopSec"][0]) > 2 * STOPPING_SECONDS
    assert unit["RestartPreventExitStatus"] == [str(vfl.errors.SpecificationError.exit_code)]
    written = {"/var/lib/" + unit["StateDirectory"][0], "/var/cache/" + unit["CacheDirectory"][0]}
    environment = dict(pair.split("=", 1) for pair in unit["Environment"][0].split())
    assert set(environment.values()) == written
    read = set(unit["ReadOnlyPaths"][0].split())
    files = [Path(given["path"]), Path(given["policy"]), *map(Path, given["sources"])]
    assert {str(file.parent) for file in files} == read
    assert unit["NoNewPrivileges"] == unit["ProtectHome"] == ["yes"]
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["CapabilityBoundingSet"] == [""]
    assert unit["LimitCORE"] == unit["MemorySwapMax"] == ["0"]
    assert "MemoryDenyWriteExecute" not in unit  # Numba compiles at run time
    if shutil.which("systemd-analyze") is None:
        return
    text = (DEPLOY / "organisations" / "vfl-join.service").read_text(encoding="utf-8")
    copy = tmp_path / "vfl-join.service"
    copy.write_text(text.replace(program, sys.executable), encoding="utf-8")
    verified = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert "vfl-join" not in verified.stderr, verified.stderr
    measured = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--json=short", str(copy)], capture_output=True, text=True
    )
    if measured.returncode == 0:
        open_still = {row["name"] for row in json.loads(measured.stdout) if not row["set"]}
        assert len(open_still) < 20


def test_a_scoring_service_and_the_party_that_it_asks(tmp_path: Path) -> None:
    from vfl.apps.cli.administration.join import serve_command

    compose = yaml.safe_load((DEPLOY / "organisations" / "serve.compose.yaml").read_text(encoding="utf-8"))
    bank, telco = (compose["services"][name]["command"] for name in ("bank", "telco"))
    assert told(shlex.join(telco))["name"] == "telco"
    unit = settings("organisations/vfl-serve.service")
    for words in (bank, shlex.split(unit["ExecStart"][0])[1:]):
        assert words[0] == "serve"
        assert serve_command.make_context("serve", words[1:]).params == {
            "path": Path("/etc/vfl/serve.toml"),
            "as_json": True,
        }
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    joined = settings("organisations/vfl-join.service")
    same = set(unit) - {"Description", "ExecStart", "ExecReload", "RestartSec", "TimeoutStopSec"}
    assert {key: unit[key] for key in same} == {key: joined[key] for key in same}  # it has no more rights


def test_certificates(tmp_path: Path) -> None:
    """One command makes them. A server and a client with certificates connect, and the authority's key is not kept."""
    folder = tmp_path / "keys"
    command = [sys.executable, str(DEPLOY / "certificates.py"), str(folder), "127.0.0.1", "head"]
    subprocess.run(command, check=True)
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert not list(folder.rglob("ca.key"))
    sides = []
    for node, server in (("127.0.0.1", True), ("head", False)):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(folder / node / "node.crt", folder / node / "node.key")
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        assert (folder / node / "node.key").stat().st_mode & 0o777 == 0o600
        a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides.append(
            (context.wrap_bio(a, b, server_side=server, server_hostname=None if server else "127.0.0.1"), a, b)
        )
    (server, s_in, s_out), (client, c_in, c_out) = sides
    done = set()
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
            s_in.write(c_out.read())
            c_in.write(s_out.read())
    assert len(done) == 2
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode != 0  # existing keys are never overwritten
