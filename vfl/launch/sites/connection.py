"""Connection of this process to Ray: to a cluster at an address, or to a local Ray that this process starts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import urllib.parse
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

QUIET = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment variables set before Ray is imported. They stop Ray from uploading the working directory and reporting usage."""

ANSWER_SECONDS = 10.0
"""Time limit for a server to answer at its stated address."""
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""First bytes that an HTTP/2 client sends, with an empty SETTINGS frame."""
SETTINGS_FRAME = 4

POOL = ["parties.actor", "coordinator.cluster.actor", "scipy.linalg"]
"""Modules that each worker process of a local Ray imports when it starts. It knows of no job before it becomes an actor."""
ONE_RUN = "VFL_ONE_RUN"
"""Environment variable of a process that makes one run, so that no worker processes are started after the run."""
REFILL_SECONDS = 5.0
"""Time limit for a local Ray to accept a request for new worker processes."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def import_ray() -> Any:
    """Import Ray without uploads of the working directory and without usage reports."""
    for name, value in QUIET.items():
        os.environ[name] = value
    import ray

    return ray


def unreachable(what: str, where: str, error: Exception, remedy: str) -> PlacementError:
    """Return an error of one line for a cluster that cannot be reached or that refuses this process.

    what : name of the service. where : its address. error : the error that Ray raised. remedy : advice for every cause except a
        wrong token. (Ray does not always report a wrong token as such.)
    """
    how = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the file that holds the cluster's token"
    if type(error).__name__ == "AuthenticationError" or "authenticat" in str(error).lower():
        path = os.environ.get("RAY_AUTH_TOKEN_PATH")
        return PlacementError(
            f"the {what} at {where} is closed to this process, whose token is wrong or missing: {how}"
            + (f" (now {path!r}; RAY_AUTH_TOKEN comes first where it is set)" if path else "")
        )
    said = next(iter(str(error).splitlines()), type(error).__name__)  # further lines advise on Ray Client,
    said = said.split(". Please ")[0]  # and further sentences on options of Ray's own commands
    return PlacementError(f"no {what} answers at {where}: {said} ({remedy}; where the cluster asks for a token, {how})")


def check_address(address: str | None) -> None:
    """Raise PlacementError if this process cannot join the address as a node. Address 'auto' stands for RAY_ADDRESS."""
    named = os.environ.get("RAY_ADDRESS") if address == "auto" else None
    said = f"RAY_ADDRESS={named}, which 'auto' stands for," if named else repr(address)
    asked = named or address or ""
    client = sys.modules.get("ray.util.client")
    if client is not None and client.ray.is_connected():
        raise PlacementError(
            "this process is connected to a cluster by Ray Client, with which it is not a node of the cluster and cannot keep "
            "a run: run on a node with --at auto, send the job there with: vfl submit JOB, or call ray.shutdown() first"
        )
    if asked.startswith("ray://"):
        raise PlacementError(
            f"{said} is Ray Client, with which this process is not a node of the cluster and cannot keep a run: "
            "run on a node with --at auto, or send the job there with: vfl submit JOB"
        )
    if asked.startswith(("http://", "https://")):
        raise PlacementError(
            f"{said} is a job server's, to which a job is sent with: vfl submit JOB. To run here, on a node of the "
            "cluster, give --at HEAD:6379, or unset RAY_ADDRESS and give --at auto"
        )


def require_answer(url: str, *, rpc: bool = False) -> None:
    """Raise OSError unless a server at host:port, or at a URL, accepts connections within ANSWER_SECONDS.

    Ray itself waits for minutes, and cannot be interrupted while it waits.

    rpc : True also requires the answer of a gRPC server, an HTTP/2 SETTINGS frame (RFC 9113, section 3.4).
    """
    parsed = urllib.parse.urlsplit(url if "://" in url else f"//{url}")
    host, port = parsed.hostname or "", parsed.port or (443 if parsed.scheme == "https" else 80)
    failures: list[OSError] = [TimeoutError(f"no answer within {ANSWER_SECONDS:g} s")]

    def ask() -> None:
        try:
            with socket.create_connection((host, port), timeout=ANSWER_SECONDS) as connection:
                if rpc and os.environ.get("RAY_USE_TLS", "").lower() not in ("1", "true"):  # TLS has its own handshake
                    connection.sendall(HTTP2_PREFACE)
                    header = connection.recv(9, socket.MSG_WAITALL)
                    if len(header) < 9 or header[3] != SETTINGS_FRAME:
                        raise ConnectionError("the server there is not Ray's")
        except TimeoutError:
            return
        except OSError as error:
            failures[0] = error
            return
        failures.clear()

    asking = threading.Thread(target=ask, daemon=True)  # name resolution has no timeout of its own
    asking.start()
    asking.join(ANSWER_SECONDS)
    if failures:
        raise failures[0]


def _cluster_address(address: str) -> str | None:
    """Return host:port of a cluster. Ray's own function resolves 'auto'; the result is None if this Ray lacks the function."""
    try:
        from ray._private.services import canonicalize_bootstrap_address_or_die
    except ImportError:
        return None if address == "auto" else address
    found: str = canonicalize_bootstrap_address_or_die(address)
    return found


def compiled_modules(source: str) -> dict[str, str | None]:
    """Return the environment variables with which workers keep compiled modules in the user's cache folder.

    The result is {} unless the environment forbids compiled modules beside the sources and the installer wrote no compiled
    modules. Without these variables every worker would compile a thousand modules, which takes most of its time to load.

    source : path of an installed module, whose compiled module the installer may have written. A value None in the result
        deletes a variable.
    """
    forbidden, elsewhere = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
    if not os.environ.get(forbidden) or os.environ.get(elsewhere) or Path(cache_from_source(source)).exists():
        return {}
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (base if base.is_absolute() else Path("~/.cache").expanduser()) / "vfl" / "modules"
    return {forbidden: None, elsewhere: str(folder)}


def import_path(source: str) -> dict[str, str | None]:
    """Return the environment variable with which workers import the packages of this process before they know its job.

    Ray sends workers the folder of this process only with a job. The result is {} for packages that an installer placed, which
    workers find; those in a checkout come first.

    source : path of this module.
    """
    root = Path(source).resolve().parents[3]
    if root.name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, delete the variables whose value is None, and restore all of them on exit."""
    before = {name: os.environ.pop(name, None) for name in variables}
    try:
        os.environ.update({name: value for name, value in variables.items() if value is not None})
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


_started: set[str] = set()
"""Addresses of the local Rays that vfl started in this process. At most one of them still runs."""


def connected_elsewhere() -> bool:
    """Return True if this process is connected to a Ray that vfl did not start."""
    ray = import_ray()
    return bool(ray.is_initialized()) and ray.get_runtime_context().gcs_address not in _started


def refill(ray: Any, processes: int) -> None:
    """Have a local Ray that vfl started replace the worker processes that ended with a run's actors.

    The next run's actors then start in processes that have imported POOL. Nothing of a run is left in them, since a process
    ends with its actor. Ray ends idle processes in excess of its CPUs, and all of them with this process.

    The request is private to Ray, and Ray may lack it or refuse it: then the next run's actors start processes themselves.
    """
    if os.environ.get(ONE_RUN) or connected_elsewhere():
        return
    with contextlib.suppress(Exception):
        from ray._private.grpc_utils import init_grpc_channel
        from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

        (node,) = ray.nodes()
        with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
            asked = node_manager_pb2.PrestartWorkersRequest(num_workers=processes)  # language 0, the default, is Python
            node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(asked, timeout=REFILL_SECONDS)


@contextlib.contextmanager
def connected(n_actors: int, address: str | None) -> Iterator[Any]:
    """Yield Ray, connected: keep this process's connection, else connect to `address`, else to a local Ray started here.

    The local Ray stays until the process ends, or until `ray.shutdown()`, so that later runs need not start another one. A
    run with an address ends the local Ray.
    """
    ray = import_ray()
    if address is not None and ray.is_initialized() and not connected_elsewhere():
        ray.shutdown()
    if ray.is_initialized():
        yield ray
        return
    own_handler = signal.getsignal(signal.SIGTERM)
    # The workers of a local Ray inherit these variables.
    with environment(ONE_THREAD | (compiled_modules(ray.__file__) | import_path(__file__) if address is None else {})):
        if address is None:
            ray.init(
                address="local",  # ignore RAY_ADDRESS and any other Ray on this machine
                num_cpus=n_actors,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _system_config={
                    "automatic_object_spilling_enabled": False,
                    "preload_python_modules": POOL,
                    "worker_maximum_startup_concurrency": n_actors,  # else `refill` starts no more than there are cores
                },
            )
            _started.add(ray.get_runtime_context().gcs_address)
        else:
            check_address(address)
            here = "without a cluster give --at ray" if address == "auto" else "on a node of the cluster give --at auto"
            remedy = f"{here}; to send the job to a cluster elsewhere: vfl submit JOB"
            try:
                if (named := _cluster_address(address)) is not None:
                    require_answer(named, rpc=True)
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                raise unreachable("Ray cluster", repr(address), error, remedy) from error
    # Ray replaces the handler with one that exits or aborts with a stack trace.
    if threading.current_thread() is threading.main_thread() and own_handler is not None:
        signal.signal(signal.SIGTERM, own_handler)
    try:
        yield ray
    finally:
        if address is not None:
            ray.shutdown()
