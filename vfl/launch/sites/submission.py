"""Submission of a job to a cluster's job server (Ray Jobs). Only the job file is sent: no data.

The driver (the process of `vfl run`) runs on the node that offers the resource 'coordinator'. That node keeps ledger and run.
"""

from __future__ import annotations

import logging
import os
import shlex
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import FederationError, PlacementError
from vfl.job.site import COORDINATOR
from vfl.launch.sites.bundles import PIN
from vfl.launch.sites.connection import environment, import_ray, require_answer, unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SENT = "job.toml"
"""Name of the job file in the package that carries it."""
RUNS = "runs"
ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Environment variables that would override the address given to Ray's client."""
NO_FOLDER = 6
"""Exit code of a job whose folder is missing. It is the exit code of an OutputError."""


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
            logging.getLogger("ray").setLevel(logging.WARNING)  # so that the client prints no messages about its upload
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

    def submit(self, name: str, text: str, *, folder: str, arguments: Sequence[str] = ()) -> str:
        """Send a job file. Return the id of the job on the server, at once.

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

    def resume(self, run: str, *, folder: str) -> str:
        """Resume an interrupted run on the node that holds its folder. Return the id of the job on the server."""
        ident = f"resume-{uuid.uuid4().hex[:8]}"
        return self._start(ident, folder, f"exec {shlex.join(['vfl', 'resume', run])}", {})

    def _start(self, ident: str, folder: str, command: str, environment: Mapping[str, Any]) -> str:
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
        return ident


def _ending_without(folder: str) -> str:
    """Return a shell command that prints an error and exits, for a node that lacks the folder."""
    said = (
        f"error: there is no folder {folder!r} that can be entered where the coordinator runs; nothing was charged: "
        "make it there, or name another with --folder"
    )
    return f"{{ echo {shlex.quote(said)} >&2; exit {NO_FOLDER}; }}"
