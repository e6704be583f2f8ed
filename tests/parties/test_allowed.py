"""Sources that an owner allows: no other file is read, and no other host sees a credential."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
import vfl.launch.predict
from parties.actor import PartyActor
from parties.allowed import matches, name_of
from vfl.errors import ConsentRefused, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

REGION = "region=eu-central-1"


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        (
            "postgresql://reader@db.example/bank",
            ["postgresql://reader@db.example/bank?table=a", "postgresql://reader@db.example/bank?table=b"],
            [
                "postgresql://reader@db.example/bank?query=SELECT pg_terminate_backend(1)",
                "postgresql://reader@db.example/bank?host=evil.example&table=a",
                "postgresql://reader@db.example/bank?table=a&hostaddr=192.0.2.1",
                "postgresql://reader@db.example/bank?table=a&host%61ddr=192.0.2.1",
                "postgresql://reader@db.example/bank?table=a&service=evil",
                "postgresql://reader@db.example:5433/bank?table=a",
                "postgresql://reader@db.example,evil.example/bank?table=a",
                "postgresql://reader@db.example.evil.example/bank?table=a",
                "postgresql://admin@db.example/bank?table=a",
                "postgresql://db.example/bank?table=a",
                "postgresql://reader@db.example/other?table=a",
                "postgres://reader@db.example/bank?table=a",
                "/data/bank.csv",
                "memory",
            ],
        ),
        (
            "postgresql://*@db*.example/*?sslmode=verify-full",
            ["postgresql://reader@db2.example/bank?sslmode=verify-full&table=a"],
            [
                "postgresql://reader@db2.example/bank?table=a",
                "postgresql://reader@db2.example/bank?sslmode=disable&table=a",
                "postgresql://reader@db2.example/bank?sslmode=verify-full&sslmode=disable&table=a",
                "postgresql://a@evil.example,x@db2.example/bank?sslmode=verify-full&table=a",
                "postgresql://a@db.evil.org,b.example/bank?sslmode=verify-full&table=a",
                "postgresql://a@db@evil.org/.example/bank?sslmode=verify-full&table=a",
                "postgresql://a@db%2Eevil.org/x.example/bank?sslmode=verify-full&table=a",
            ],
        ),
        (
            "postgresql://db/bank?table=customers",
            ["postgresql://db/bank?table=customers"],
            ["postgresql://db/bank?table=salaries", "postgresql://db/bank?query=SELECT 1"],
        ),
        (
            "postgresql://db/bank?query=SELECT * FROM t",
            ["postgresql://db/bank?query=SELECT%20*%20FROM%20t"],
            ["postgresql://db/bank?query=SELECT pg_sleep(9) FROM t", "postgresql://db/bank?table=t"],
        ),
        (
            f"s3://bucket/bank/*?{REGION}",
            [f"s3://bucket/bank/a.parquet?{REGION}", f"s3://bucket/bank/deep/a.csv?{REGION}"],
            [
                f"s3://bucket/bank/a.parquet?{REGION}&endpoint_override=evil.example",
                f"s3://bucket/bank/a.parquet?endpoint_override=evil.example&{REGION}",
                "s3://bucket/bank/a.parquet?region=evil.example/",
                "s3://bucket/bank/a.parquet",
                f"s3://bucket/bank/../other/a.parquet?{REGION}",
                f"s3://bucket/bank/%2e%2e/other/a.parquet?{REGION}",
                f"s3://bucket/bank/a.parquet#?{REGION}",
                f"s3://other/bank/a.parquet?{REGION}",
                f"s3://key@bucket/bank/a.parquet?{REGION}",
            ],
        ),
        ("*", ["memory", "/data/a.csv"], ["postgresql://db/bank?table=a", "s3://bucket/a.csv", "warehouse://a"]),
        ("new/*.duckdb", ["/data/new/a.duckdb"], ["duckdb:///data/new/a.duckdb?table=t"]),
        (
            "duckdb://new/*.duckdb?table=t",
            ["duckdb:///data/new/a.duckdb?table=t"],
            [
                "duckdb:///data/new/a.duckdb?table=s",
                "duckdb:///data/new/a.duckdb?query=FROM t",
                "duckdb:///data/new/../a.duckdb?table=t",
                "duckdb:///data/a.duckdb?table=t",
            ],
        ),
        ("warehouse://sales/*", ["warehouse://sales/calls"], ["warehouse://salaries/calls", "warehouse://sales/c?x=1"]),
    ],
)
def test_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    folder = Path("/data")
    assert [name for name in allowed if not matches(name, pattern, folder)] == []
    assert [name for name in refused if matches(name, pattern, folder)] == []


def test_a_text_file_of_a_store_is_an_address() -> None:
    assert name_of(vfl.Csv("s3://bucket/a.csv", delimiter=";")) == "s3://bucket/a.csv"


class Server(threading.Thread):
    """A Postgres server that asks for a password in clear, and a store of objects. `seen` holds what clients sent."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def run(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(10)
                first = client.recv(65536)
                if first[4:8] == struct.pack("!i", 80877103):  # asks for TLS
                    client.sendall(b"N")
                    first = client.recv(65536)
                self.seen.append(first)
                if not first.startswith((b"HEAD", b"GET")):
                    client.sendall(b"R" + struct.pack("!ii", 8, 3))
                    self.seen.append(client.recv(65536))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("VFL_SOURCES", "VFL_POLICY"):
        monkeypatch.delenv(name, raising=False)
    given = {"AWS_ACCESS_KEY_ID": "KEYID", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "TOKEN"}
    for name, value in {**given, "AWS_EC2_METADATA_DISABLED": "true", "PGPASSWORD": "PASSWORD"}.items():
        monkeypatch.setenv(name, value)
    made = Server()
    made.start()
    yield made
    made.close()


PARTITION = vfl.FeaturePartition({"bank": ["income"], "telco": ["calls"]}, label=("bank", "default"))
BOUNDS = {"income": (0.0, 1.0), "calls": (0.0, 1.0)}
ROWS = {"income": np.linspace(0, 1, 12), "calls": np.linspace(1, 0, 12), "default": np.arange(12) % 2}
TOTAL = "[total]\nepsilon = 4.0\ndelta = 1e-6\n"


def job(**options: Any) -> vfl.Job:
    return vfl.Job(partition=PARTITION, bounds=BOUNDS, privacy=None, name="credit", **options)


@pytest.fixture(scope="module")
def result() -> Any:
    return vfl.train(job(), ROWS, at="inprocess")


def opened(purpose: str, source: Any, result: Any, policies: Any = None) -> None:
    """Open a source of the bank for a purpose."""
    telco = {"calls": ROWS["calls"], "who": np.arange(12).astype(str)}
    data = vfl.Source({"bank": source, "telco": telco}, policies)
    match purpose:
        case "train":
            vfl.train(job(), data, at="inprocess")
        case "align":
            vfl.align(job(id=vfl.columns.Id("who", kind="text")), data, at="inprocess")
        case "predict":
            vfl.predict(result, data)
        case "evaluate":
            vfl.launch.predict.evaluate(result, data)
        case "simulate":
            vfl.train(job(), vfl.Source(source, policies), at="inprocess")
        case "actor":
            PartyActor(job(), "bank", (policies or {}).get("bank")).load(source)


PURPOSES = ["train", "align", "predict", "evaluate", "simulate", "actor"]


def addresses(port: int) -> list[Any]:
    store = f"s3://bucket/a.csv?endpoint_override=127.0.0.1:{port}&scheme=http&region=eu-central-1"
    return [f"postgresql://reader@127.0.0.1:{port}/bank?table=t", store, vfl.Csv(store, delimiter=";")]


@pytest.mark.parametrize("purpose", PURPOSES)
def test_no_credential_goes_to_an_address_that_only_a_job_names(
    purpose: str, server: Server, result: Any, tmp_path: Path
) -> None:
    """Neither does a policy that comes with the job allow it."""
    lax = 'format = 1\njobs = ["*"]\nallow_non_private = true\nsources = ["postgresql://*@*/*", "s3://*/*", "memory"]\n'
    (tmp_path / "lax.toml").write_text(lax + TOTAL + '[prediction]\nmodels = ["*"]\nlabels = true\n')
    for address in addresses(server.port):
        for policies in (None, {"bank": str(tmp_path / "lax.toml")}):
            with pytest.raises(ConsentRefused, match="party 'bank' refuses"):
                opened(purpose, address, result, policies=policies)
    assert server.seen == []


def test_an_owner_allows_an_address_where_the_party_runs(
    server: Server, result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    address = addresses(server.port)[0]
    monkeypatch.setenv("VFL_SOURCES", f"s3://bucket/* postgresql://reader@127.0.0.1:{server.port}/bank")
    with pytest.raises(DataError, match="its database cannot be opened"):
        opened("train", address, result)
    assert b"PASSWORD" in server.seen[-1]
    monkeypatch.delenv("VFL_SOURCES")
    with pytest.raises(ConsentRefused):
        opened("train", address, result)
    own = f'format = 1\njobs = ["*"]\nallow_non_private = true\nsources = ["memory", "{address}"]\n'
    (tmp_path / "own.toml").write_text(own + TOTAL)
    monkeypatch.setenv("VFL_POLICY", str(tmp_path / "own.toml"))
    with pytest.raises(DataError, match="its database cannot be opened"):
        opened("train", address, result)
    with pytest.raises(ConsentRefused):
        opened("train", address.replace("table=t", "table=s"), result)


@pytest.mark.parametrize("purpose", PURPOSES)
def test_sources_of_a_policy_bind_every_purpose(purpose: str, result: Any, tmp_path: Path) -> None:
    """With the digest of its job pinned, a submitter could name another file."""
    own = {name: ROWS[name] for name in ("income", "default")} | {"who": np.arange(12).astype(str)}
    table = own | {"calls": ROWS["calls"]} if purpose == "simulate" else own
    for name in ("listed.csv", "other.csv"):
        rows = zip(*table.values(), strict=True)
        text = "\n".join([",".join(table), *(",".join(map(str, row)) for row in rows)])
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "other.csv")
    pinned = (job(id=vfl.columns.Id("who", kind="text")) if purpose == "align" else job()).digest
    rules = f'format = 1\njobs = ["{pinned}"]\nallow_non_private = true\nsources = ["listed.csv"{{}}]\n{TOTAL}'
    rules += '[prediction]\nmodels = ["*"]\nlabels = true\n'
    memory = ', "memory"' if purpose == "simulate" else ""
    (tmp_path / "bank.toml").write_text(rules.format(memory))
    policies = {"bank": str(tmp_path / "bank.toml")}
    opened(purpose, str(tmp_path / "listed.csv"), result, policies=policies)
    for source in ("other.csv", "link.csv", "none.csv"):
        with pytest.raises(ConsentRefused, match="by its policy's sources: "):
            opened(purpose, str(tmp_path / source), result, policies=policies)
    if purpose != "simulate":
        with pytest.raises(ConsentRefused, match="by its policy's sources: "):
            opened(purpose, own, result, policies=policies)
