"""A job on three hosts by `vfl submit`: one is cut off and reconnected during the run; once with TLS and a token."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.faults.hosts import ROOT, Hosts, why_not
from vfl.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
N = 4000
JOB = """
format = 1
name = "credit"
loss = "logistic"
[partition]
label = ["bank", "default"]
[partition.parties]
bank = ["income", "age"]
telco = ["calls", "data_mb"]
[bounds]
income = [0, 200000]
age = [18, 100]
calls = [0, 500]
data_mb = [0, 100000]
[penalty]
kind = "l2"
strength = 1e-4
[privacy]
epsilon = 1.0
delta = 1e-9
[solver]
kind = "SkGD"
passes = 800
block_size = 1
details.message = "block"
[data]
bank = "bank.csv"
telco = "telco.csv"
[ray]
ready_timeout_s = 30
[faults]
on_party_lost = "wait"
wait_timeout_s = 90
answer_timeout_s = 20
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.close()


def furnish(hosts: Hosts) -> None:
    """Give each host its own files: the data of a party lie on its host only, and no host has the job file."""
    rng = np.random.default_rng(0)
    columns = {
        "income": rng.uniform(1e4, 1.5e5, N),
        "age": rng.uniform(18, 90, N),
        "calls": rng.uniform(0, 400, N),
        "data_mb": rng.uniform(0, 9e4, N),
    }
    score = columns["income"] / 5e4 - columns["calls"] / 200 + 0.5 * rng.normal(size=N)
    columns["default"] = (score > 0.5).astype(float)
    for k, party, names in ((1, "bank", ("income", "age", "default")), (2, "telco", ("calls", "data_mb"))):
        rows = np.column_stack([columns[name] for name in names])
        np.savetxt(hosts.own(k) / f"{party}.csv", rows, delimiter=",", header=",".join(names), comments="")


def started(hosts: Hosts) -> None:
    furnish(hosts)
    hosts.start(0, coordinator=1)
    hosts.start(1, **{"party:bank": 1})
    hosts.start(2, **{"party:telco": 1})


def submitted(hosts: Hosts, text: str = JOB) -> dict[str, str]:
    (hosts.own(0) / "mine.toml").write_text(text)
    said = hosts.vfl(0, "submit", "mine.toml", "--address", hosts.server, "--folder", hosts.folder, "--json")
    sent: dict[str, str] = json.loads(said.splitlines()[-1])
    return sent


def status(hosts: Hosts, ident: str) -> str:
    client = f"from ray.job_submission import JobSubmissionClient; client = JobSubmissionClient({hosts.server!r})"
    code = f"{client}; print(client.get_job_status({ident!r}).value)"
    return hosts.run(0, "python", "-c", code).stdout.split()[-1]


def rounds(hosts: Hosts, sent: dict[str, str]) -> int:
    log = hosts.own(0) / sent["output"] / "rounds.log"
    return log.read_bytes().count(b'"round"') if log.exists() else 0


def log(hosts: Hosts, sent: dict[str, str]) -> list[dict[str, Any]]:
    """Return the entries of the run's log. Each line has a hash before the entry."""
    lines = (hosts.own(0) / sent["output"] / "rounds.log").read_text().splitlines()
    return [json.loads(line.split(" ", 1)[1]) for line in lines]


def lost(text: str) -> set[int]:
    """Return the numbers of the queries during which a party was lost, from the text of the run."""
    return {int(number) - 1 for number in re.findall(r"round (\d+): lost party", text)}


def wait(what: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.3)


def ended(hosts: Hosts, sent: dict[str, str], seconds: float) -> str:
    wait(lambda: status(hosts, sent["id"]) in ("SUCCEEDED", "FAILED", "STOPPED"), seconds)
    text = hosts.run(0, "ray", "job", "logs", sent["id"], "--address", hosts.server).stdout
    assert status(hosts, sent["id"]) == "SUCCEEDED", text
    return text


def test_cut_off_and_healed(hosts: Hosts) -> None:
    """The run waits for the host, pays for lost releases, makes fewer releases, and ends below its ε."""
    started(hosts)
    assert hosts.run(1, "ls", hosts.folder).stdout.split() == ["bank.csv", "ray"]
    sent = submitted(hosts)
    wait(lambda: rounds(hosts, sent) > 300, 120)
    hosts.cut(2)
    time.sleep(1)
    hosts.heal(2)  # a short interruption, which nobody has to notice
    before = rounds(hosts, sent)
    wait(lambda: rounds(hosts, sent) > before + 100, 60)
    hosts.cut(2)
    time.sleep(1)
    stopped = rounds(hosts, sent)
    time.sleep(8)  # Ray considers the node dead
    assert rounds(hosts, sent) <= stopped + 40
    assert status(hosts, sent["id"]) == "RUNNING"
    hosts.kill(2)
    hosts.heal(2)
    hosts.start(2, **{"party:telco": 1})
    text = ended(hosts, sent, 240)
    assert "lost party 'telco'" in text
    folder = hosts.own(0) / sent["output"]
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["epsilon"] <= 1.0
    assert certificate["flags"] == []
    said = hosts.vfl(0, "verify", sent["output"], "--ledger", f"{sent['output']}/ledger.db")
    assert "ε" in said
    hosts.vfl(0, "ledger", "verify", f"{sent['output']}/ledger.db", "--output", "entries.json")
    entries = json.loads((hosts.own(0) / "entries.json").read_text())["entries"]
    made = {entry["round"]: entry for entry in log(hosts, sent) if "round" in entry}
    again = {entry["round"] for entry in entries if entry["kind"] == "charge" and entry["attempt"] > 0}
    # Now and then a query rebuilds Xw and releases nothing; such a query is repeated without a charge.
    assert again == {number for number in lost(text) if made[number]["released"]}


def test_a_host_that_stays_away_is_left_out(hosts: Hosts) -> None:
    """The host loses power. The run continues without its blocks, and the certificate says so."""
    started(hosts)
    sent = submitted(hosts, JOB.replace('"wait"', '"skip"').replace("wait_timeout_s = 90", "wait_timeout_s = 5"))
    wait(lambda: rounds(hosts, sent) > 200, 120)
    hosts.cut(2)
    hosts.kill(2)
    ended(hosts, sent, 240)
    folder = hosts.own(0) / sent["output"]
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["epsilon"] <= 1.0
    assert certificate["flags"][0].startswith("party 'telco' was lost during the run and left out")
    coef = json.loads((folder / "model.json").read_text())["coef"]
    assert coef["calls"] == coef["data_mb"] == 0
    assert coef["income"] != 0
    assert "flag: party 'telco'" in hosts.vfl(0, "verify", sent["output"], "--ledger", f"{sent['output']}/ledger.db")


def test_cancelled_then_resumed(hosts: Hosts) -> None:
    started(hosts)
    sent = submitted(hosts, JOB.replace("passes = 800", "passes = 1600"))  # outlasts the start of ray job stop
    wait(lambda: rounds(hosts, sent) > 200, 120)
    hosts.run(0, "ray", "job", "stop", sent["id"], "--address", hosts.server)
    wait(lambda: status(hosts, sent["id"]) == "STOPPED", 60)
    assert not (hosts.own(0) / sent["output"] / "model.json").exists()
    said = hosts.vfl(
        0, "submit", "--resume", sent["output"], "--address", hosts.server, "--folder", hosts.folder, "--json"
    )
    ended(hosts, json.loads(said.splitlines()[-1]), 400)
    certificate = json.loads((hosts.own(0) / sent["output"] / "certificate.json").read_text())
    assert certificate["epsilon"] <= 1.0


def test_an_unreachable_host_is_named_with_the_line_that_adds_it(hosts: Hosts) -> None:
    furnish(hosts)
    hosts.start(0, coordinator=1)
    hosts.start(1, **{"party:bank": 1})
    sent = submitted(hosts, JOB.replace("ready_timeout_s = 30", "ready_timeout_s = 2"))
    wait(lambda: status(hosts, sent["id"]) == "FAILED", 90)
    text = hosts.run(0, "ray", "job", "logs", sent["id"], "--address", hosts.server).stdout
    assert re.search("'telco' needs one node .*'party:telco' and 1 CPU", " ".join(text.split()))
    assert "ray start --address=10.77.0.10:6379 --num-cpus=1 --resources='{\"party:telco\": 1}'" in text


def test_with_tls_and_a_token(hosts: Hosts) -> None:
    """With the certificates of deploy/certificates.py; a connection without them fails."""
    keys = hosts.scratch / "keys"
    addresses = [hosts.address(k) for k in range(hosts.count)]
    subprocess.run([sys.executable, str(ROOT / "deploy/certificates.py"), str(keys), *addresses], check=True)
    for k, address in enumerate(addresses):
        lines = (keys / address / "env.sh").read_text().splitlines()
        hosts.environment[k] = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    started(hosts)
    sent = submitted(hosts, JOB.replace("passes = 800", "passes = 50"))
    ended(hosts, sent, 240)
    assert (hosts.own(0) / sent["output"] / "model.json").exists()
    hosts.environment[1] = hosts.environment[1] | {"RAY_AUTH_TOKEN_PATH": str(hosts.scratch / "nothing")}
    (hosts.scratch / "nothing").write_text("0" * 64)
    refused = hosts.run(1, "vfl", "submit", "--resume", "x", "--folder", hosts.folder, "--address", hosts.server)
    assert refused.returncode == PlacementError.exit_code
    said = " ".join(refused.stderr.split())
    assert re.search("token is wrong or missing.*RAY_AUTH_MODE=token.*RAY_AUTH_TOKEN_PATH", said)
    assert "Traceback" not in refused.stderr
