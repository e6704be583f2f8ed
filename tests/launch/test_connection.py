"""Addresses without a Ray: they fail in one line within seconds, before Ray tries to connect."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from importlib.util import cache_from_source
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_address
from vfl.errors import PlacementError
from vfl.launch.sites import connection
from vfl.launch.sites.submission import JobServer

if TYPE_CHECKING:
    from collections.abc import Iterator

HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """Yield host:port of a server that sends `answer` to every client; None sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    opened.append(listener.accept()[0])
                    if answer is not None:
                        opened[-1].sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield "{}:{}".format(*listener.getsockname())
        for one in opened:
            one.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace Ray by a fake, and list the addresses that it should connect to."""
    addresses: list[str] = []
    stub = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda address, **_: addresses.append(address),
        shutdown=lambda: None,
        exceptions=SimpleNamespace(RayError=ArithmeticError),
    )
    monkeypatch.setattr(connection, "import_ray", lambda: stub)
    monkeypatch.setattr(connection, "_cluster_address", lambda address: address)
    return addresses


@pytest.mark.parametrize("answer", [None, HTTP, b""], ids=["silent", "HTTP", "nothing listens"])
def test_an_address_without_ray_fails_in_one_line(
    answer: bytes | None, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.5)
    address = free_address()
    with contextlib.ExitStack() as running:
        if answer != b"":
            address = running.enter_context(server(answer))
        with (
            pytest.raises(PlacementError, match="no Ray cluster answers at") as refused,
            connection.connected(2, address),
        ):
            pass
    assert len(str(refused.value).splitlines()) == 1
    assert asked == []


def test_a_missing_cluster_of_this_node_is_told_with_what_runs_without_one(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: str) -> str:
        raise ConnectionError("Could not find any running Ray instance. Please specify `--address`.")

    monkeypatch.setattr(connection, "_cluster_address", none)
    with pytest.raises(PlacementError, match="--at ray") as refused, connection.connected(2, "auto"):
        pass
    assert "--address" not in str(refused.value)
    assert asked == []


def test_ray_connects_once_its_server_answers(asked: list[str]) -> None:
    with server(SETTINGS) as address, connection.connected(2, address):
        pass
    assert asked == [address]


def test_the_limit_covers_slow_name_resolution(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)

    answered = threading.Event()

    def resolve(*_: object, **__: object) -> None:
        answered.wait(120)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    try:  # the resolver answers after the test
        with (
            pytest.raises(PlacementError, match=r"no answer within 0\.2 s"),
            connection.connected(2, "head.example:6379"),
        ):
            pass
    finally:
        answered.set()
    assert connection.ANSWER_SECONDS == 0.2
    assert asked == []


def test_a_missing_job_server_fails_in_one_line() -> None:
    address = free_address()
    with pytest.raises(PlacementError, match="no job server answers at") as refused:
        JobServer(f"http://{address}")
    assert len(str(refused.value).splitlines()) == 1


def test_the_limit_is_below_fifteen_seconds() -> None:
    assert connection.ANSWER_SECONDS < 15.0


def test_workers_keep_compiled_modules_where_the_environment_forbids_them_beside_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "module.py"
    source.write_text("", encoding="utf-8")
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    assert connection.compiled_modules(str(source)) == {}, "Python keeps them itself"
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    changes = connection.compiled_modules(str(source))
    environment = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
    subprocess.run([sys.executable, "-c", "import module"], cwd=tmp_path, env=environment, check=True, timeout=60)
    kept = [path.name for path in (tmp_path / "cache" / "vfl" / "modules").rglob("module*.pyc")]
    assert len(kept) == 1
    assert not Path(cache_from_source(str(source))).exists()
    with connection.environment(changes):
        assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "PYTHONPYCACHEPREFIX" not in os.environ
    Path(cache_from_source(str(source))).parent.mkdir()
    Path(cache_from_source(str(source))).touch()
    assert connection.compiled_modules(str(source)) == {}, "the installer wrote them"
