"""Shared by all tests: one local Ray for the session, started by the first test that asks for it; the command line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTIES = ("bank", "telco", "hospital", "clinic", "lab")

# Ray reads these once, when it is first imported, and any test may be the first to import it.
os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_memory_monitor_refresh_ms": "0",  # a full machine must not kill an actor of a test
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}


@pytest.fixture(scope="session", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Results are signed with a key of this session: whoever runs the tests keeps his own out of them."""
    os.environ["VFL_KEY"] = str(tmp_path_factory.mktemp("key") / "signing.pem")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Indexes of aligned records are left in a folder of this session; Ray's workers are started after this."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Any]:
    """The `ray` module, connected to a local Ray of eight CPUs that offers `party:NAME` for PARTIES, and `coordinator`."""
    import ray

    ray.init(
        address="local",  # not to some other Ray of this machine
        num_cpus=8,
        resources={"coordinator": 1, **{f"party:{name}": 1 for name in PARTIES}},
        object_store_memory=100_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"automatic_object_spilling_enabled": False},
    )
    yield ray
    ray.shutdown()


class Said(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run `vfl ARGUMENTS` as the console script does, in this process."""
    from vfl import cli

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["vfl", *arguments])
        capfd.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Said(code, *capfd.readouterr())

    return run
