"""Fixtures of all tests, including a local Ray and the command line, and the spread of the suite over processes."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from vfl.apps.auditing import audit
from vfl.apps.tuning import sealed
from vfl.privacy import noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.coordinator.shared_parties import SharedParties

PARTIES = ("bank", "telco", "hospital", "clinic", "lab")

DEFAULT_MARKS = "not slow and not faults"
"""The marks of the whole suite, as in pyproject.toml; other marks run in one process."""

MOST_WORKERS = 8
"""More processes do not help: the tests that share a Ray run one after another."""

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # before NumPy is imported: workers share the cores
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))
    )

# Ray reads these once, when it is first imported, and any test may be the first to import it.
os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_memory_monitor_refresh_ms": "0",  # a full machine must not kill an actor of a test
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",  # by default the other tests of a busy machine go before Ray's processes
}

# A shell makes its background jobs ignore SIGINT, and children inherit that: tests that interrupt a command need it heard.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return a worker per core and one more for the whole suite; run chosen files and other marks in this process.

    Tests on Ray and of other processes wait for them, and leave a third of a core per worker idle.
    """
    whole = config.args == config.getini("testpaths") and config.option.markexpr == DEFAULT_MARKS
    return min(len(os.sched_getaffinity(0)) + 1, MOST_WORKERS) if whole else 0


ON_RAY = re.compile(r"::(?:.*_)?ray(?:_|\[|$)")
"""The ids of tests that one worker runs, one after another: they share a Ray."""


class ByFile(LoadScopeScheduling):
    """Gives all tests of a file to one worker, which shares their fixtures and caches, and all tests on Ray to one worker.

    It needs no marks of groups: pytest-xdist 3.8 writes them into the ids of tests, and pytest 9.2 ignores what it writes.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "ray" if ON_RAY.search(nodeid) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """Return the scheduler of the whole suite."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


gc.disable()  # nothing that a collection of tests makes is garbage


def pytest_collection_finish() -> None:
    """Leave the 11,000 tests and all modules out of garbage collections, and make these rarer: they took 12 % of the time."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.hookimpl(trylast=True)  # after the marks have left tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let workers begin with the tests on Ray, the longest group."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: not ON_RAY.search(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    """Report a failure that is expected by its reason: pytest takes half a second to print a traceback that nobody reads."""
    try:
        return (yield)
    except Exception:
        expected = pyfuncitem.get_closest_marker("xfail")
        if expected is None or expected.args or expected.kwargs.get("raises"):
            raise
        reason = str(expected.kwargs.get("reason", ""))
    return pytest.xfail(reason)


class Entropy:
    """Random bytes in the place of the operating system's, so that a test that fails by chance fails at every run.

    It replaces the entropy of `CryptographicNoise` and of the coins of a tune and of an audit in this process. Tests marked
    `true_noise`, forked processes and Ray's workers keep the system's. VFL_TEST_SEED=n draws different bytes, to find tests
    that pass by chance; Hypothesis draws new examples then.
    """

    def __init__(self) -> None:
        self._seed, self._pid = os.environ.get("VFL_TEST_SEED", "0"), os.getpid()
        self.begin("")

    def begin(self, test: str, *, true: bool = False) -> None:
        """Start the sequence of a test."""
        self._test, self._true, self._n_drawn = test, true, 0

    def urandom(self, size: int) -> bytes:
        """Return the next bytes of the test's sequence."""
        if self._true or os.getpid() != self._pid:
            return os.urandom(size)
        self._n_drawn += 1
        return hashlib.shake_256(f"{self._seed}|{self._test}|{self._n_drawn}".encode()).digest(size)


entropy = Entropy()
noise.os = SimpleNamespace(urandom=entropy.urandom)  # type: ignore[assignment]
sealed.chosen.__defaults__ = (entropy.urandom,)
audit.secrets = SimpleNamespace(  # type: ignore[assignment]
    randbits=lambda bits: int.from_bytes(entropy.urandom(bits // 8), "little")
)

# As Hypothesis does where CI is set: the same examples at every run, without a limit on the time of one.
settings.register_profile(
    "repeated",
    derandomize="VFL_TEST_SEED" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeated")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the test's own sequence of random bytes, fixtures included. End a worker's Ray after the tests on Ray."""
    if "PYTEST_XDIST_WORKER" in os.environ and not ON_RAY.search(item.nodeid):
        if "local_ray" in getattr(item, "fixturenames", ()):
            pytest.fail("a test that shares the Ray of the suite has '_ray' in its name, which sends it to one worker")
        ray = sys.modules.get("ray")
        if ray and ray.is_initialized():
            ray.shutdown()  # its processes take time of the other tests
    entropy.begin(item.nodeid, true=item.get_closest_marker("true_noise") is not None)


@pytest.fixture(scope="session", autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sign results with a key of this session, so that the user's own key is never used."""
    os.environ["VFL_KEY"] = str(tmp_path_factory.mktemp("key") / "signing.pem")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the indexes of aligned records in a folder of this session; Ray's workers start later and inherit it."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the messages of in-process jobs in their plain form, as between processes, with copies of arrays."""
    from vfl.launch.sites.inprocess import InProcessTransport
    from vfl.network.kinds import from_plain, from_plain_call, to_plain, to_plain_call

    passed = InProcessTransport._post

    def post(transport: InProcessTransport, call: Any) -> Any:
        posted = passed(transport, replace(call, message=from_plain_call(to_plain_call(call.message))))
        if call.steps:
            return posted
        reply, *sent = posted.answer
        return replace(posted, answer=(from_plain(to_plain(reply), type(reply)), *sent))

    monkeypatch.setattr(InProcessTransport, "_post", post)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Any]:
    """The `ray` module, connected to a local Ray of eight CPUs that offers `party:NAME` for PARTIES, and `coordinator`."""
    import ray

    for left in (2, 1, 0):
        ray.shutdown()  # of a local Ray that vfl has started for an earlier test
        try:
            ray.init(
                address="local",  # not to another Ray on this machine
                num_cpus=8,
                resources={"coordinator": 1, **{f"party:{name}": 1 for name in PARTIES}},
                object_store_memory=100_000_000,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _system_config={"automatic_object_spilling_enabled": False, "metrics_report_interval_ms": 1000},
            )
            break
        except Exception as error:  # Ray gives a node 30 s to start, which a busy machine may exceed
            if not left or "timed out during startup" not in str(error):
                raise
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def parties_on_ray(local_ray: Any) -> SharedParties:
    """Processes of parties on the local Ray that the tests of a session share."""
    from tests.coordinator.shared_parties import SharedParties

    return SharedParties(local_ray)


class Said(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Run `vfl ARGUMENTS` as the console script does, in this process."""
    from vfl.apps import cli

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


@pytest.fixture
def call_apart() -> Callable[..., Said]:
    """Run `vfl ARGUMENTS` in a process of its own, to compare all of its output.

    In this process, threads that an earlier test left, such as those of Ray and gRPC, write to the same streams.
    """

    def run(*arguments: str) -> Said:
        code = "from vfl.apps.cli import main; main()"
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=200
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return run
