"""Submission of a job to a cluster's job server (Ray Jobs). Only the job file is sent: no data.

The driver (the process of `vfl run`) runs on the node that offers the resource 'coordinator'. That node keeps ledger and run.
"""

from __future__ import annotations

import logging
import os
import shlex
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import FederationError, PlacementError
from vfl.job.site import COORDINATOR
from vfl.launch.engines.bundles import PIN
from vfl.launch.engines.connection import environment, import_ray, require_answer, unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SENT = "job.toml"
"""Name of the job file in the package that carries it."""
RUNS = "runs"
ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Environment variables that would override the address given to Ray's client."""
NO_FOLDER = 6
"""Exit code of a job whose folder is missing. It is the exit code of an OutputError."""


@dataclass(frozen=True, slots=True)
class Submission:
    """State of a job on the cluster's job server.

    id : name of the job on the server. status : PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED. message : the server's message.
    """

    id: str
    status: str
    message: str = ""

    @property
    def brief(self) -> str:
        """First line of the message, without the logs that the server appends. `ray job logs` shows the logs."""
        return next(iter(self.message.splitlines()), "").partition(", last available logs")[0]


class JobServer:
    """Client of the job server of one cluster.

    address : http://HEAD:8265; None takes the address from RAY_ADDRESS. A given address takes precedence over the environment.

    Raises PlacementError if no server answers, or if the cluster's token is missing or wrong.
    """

    def __init__(self, address: str | None) -> None:
        ray = import_ray()
        try:
            from ray.job_submission import JobSubmissionClient

            named = address or next((os.environ[name] for name in ADDRESSES if os.environ.get(name)), None)
            if named is not None and named.startswith(("http://", "https://")):
                require_answer(named)
            logging.getLogger("ray").setLevel(logging.WARNING)  # else the client reports its upload
            with environment(dict.fromkeys(ADDRESSES) if address else {}):
                self._client: Any = JobSubmissionClient(address)
        except (ImportError, ModuleNotFoundError) as error:
            raise PlacementError(
                f"Ray's job client is not installed here ({error}): pip install 'vfl[cluster]'"
            ) from error
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise unreachable(
                "job server", named or "this machine", error, "give the dashboard's address, --address http://HEAD:8265"
            ) from error

    def submit(self, name: str, text: str, *, folder: str, arguments: Sequence[str] = ()) -> Submission:
        """Send a job file and return at once.

        name : name of the job. text : text of the job file. folder : folder on the cluster's nodes, from which relative paths
            in the file start. The coordinator's node writes the job file and the run's folder into this folder.
        arguments : further arguments of `vfl run` on the cluster.
        """
        ident = f"{name}-{uuid.uuid4().hex[:8]}"
        run = ["vfl", "run", f"{ident}.toml", "--at", "auto", "--output", f"{RUNS}/{ident}", *arguments]
        # Ray puts the folder of each package on PYTHONPATH. Unlike an environment variable, a package may exceed 128 KiB.
        own = shlex.quote(ident)
        copy = f'IFS=:; for place in $PYTHONPATH; do cp "$place"/{own}/{SENT} {own}.toml 2>/dev/null && break; done; unset IFS'
        with tempfile.TemporaryDirectory() as place:
            package = Path(place, ident)
            package.mkdir()
            (package / SENT).write_text(text, encoding="utf-8")
            return self._start(ident, folder, f"{copy}; exec {shlex.join(run)}", {"py_modules": [str(package)]})

    def resume(self, run: str, *, folder: str) -> Submission:
        """Resume an interrupted run on the node that holds its folder."""
        ident = f"resume-{uuid.uuid4().hex[:8]}"
        return self._start(ident, folder, f"exec {shlex.join(['vfl', 'resume', run])}", {})

    def status(self, ident: str) -> Submission:
        """Return the state of a job."""
        return _said(ident, self._known(self._client.get_job_info, ident))

    def follow(self, ident: str) -> Iterator[str]:
        """Yield the output of a job's driver until it ends."""
        import asyncio

        tail = self._known(self._client.tail_job_logs, ident)
        loop = asyncio.new_event_loop()
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(tail))
                except StopAsyncIteration:
                    return
        finally:
            loop.close()

    def _start(self, ident: str, folder: str, command: str, environment: Mapping[str, Any]) -> Submission:
        try:
            self._client.submit_job(
                entrypoint=f"cd {shlex.quote(folder)} 2>/dev/null || {_ending_without(folder)}; {command}",
                submission_id=ident,
                runtime_env=dict(environment),
                entrypoint_num_cpus=0,
                entrypoint_resources={COORDINATOR: PIN},
            )
        except (RuntimeError, ValueError) as error:
            raise FederationError(f"the cluster does not take the job: {error}") from error
        return Submission(ident, "PENDING")

    def _known(self, ask: Any, ident: str) -> Any:
        try:
            return ask(ident)
        except RuntimeError as error:
            if "does not exist" in str(error):
                raise FederationError(f"the cluster knows no job {ident!r}; list them with: ray job list") from error
            raise FederationError(f"the cluster does not answer for job {ident!r}: {error}") from error


def _ending_without(folder: str) -> str:
    """Return a shell command that prints an error and exits, for a node that lacks the folder."""
    said = (
        f"error: there is no folder {folder!r} that can be entered where the coordinator runs; nothing was charged: "
        "make it there, or name another with --folder"
    )
    return f"{{ echo {shlex.quote(said)} >&2; exit {NO_FOLDER}; }}"


def _said(ident: str, job: Any) -> Submission:
    return Submission(ident, str(getattr(job.status, "value", job.status)), job.message or "")
