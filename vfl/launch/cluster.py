"""Running a job on Ray: one actor per party, one for the coordinator; the driver starts them and watches.

A local Ray is started when no address is given and none is running, with as many CPUs as the job has actors, whatever
the machine has, and one thread for each. Nothing is carried out: usage statistics are off, no working directory is
uploaded, and vectors are never spilled to disk in clear.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from vfl.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coordinator.budget import Budget, Reserved
    from coordinator.coordinator import Outcome
    from coordinator.rounds import Log, Round
    from vfl.job import Job
    from vfl.planning import Plan

QUIET = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
}
"""Set before Ray is imported: it must not upload the working directory nor report usage."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

LOAD_SECONDS = 3600.0
ANSWER_SECONDS = 600.0


def import_ray() -> Any:
    """Import Ray with what it must not do switched off."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    return ray


@contextlib.contextmanager
def connected(n_actors: int, address: str | None) -> Iterator[Any]:
    """Yield Ray, connected to `address`, to what is running already, or to a local one that ends with the context."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # inherited by the workers of a local Ray
    try:
        if address is None:
            ray.init(
                num_cpus=n_actors,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _system_config={"automatic_object_spilling_enabled": False},
            )
        else:
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except ConnectionError as error:
                raise PlacementError(f"no Ray cluster answers at {address!r}: {error}") from error
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    try:
        yield ray
    finally:
        ray.shutdown()


def run(
    job: Job,
    sources: Mapping[str, Any],
    budget: Budget,
    log: Log,
    *,
    address: str | None = None,
    policies: Mapping[str, str] | None = None,
) -> Iterator[Plan | Reserved | Round | Outcome]:
    """Start the actors, let each party load its source where it runs, then yield the plan, the rounds and the outcome."""
    with connected(len(sources) + 1, address) as ray:
        from coordinator.actor import CoordinatorActor, answer_of
        from parties.actor import PartyActor

        once = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        actors = {name: ray.remote(PartyActor).options(**once).remote() for name in sources}
        coordinator = ray.remote(CoordinatorActor).options(**once).remote(actors, ANSWER_SECONDS)
        try:
            loading = {
                name: actors[name].load.remote(job, name, source, (policies or {}).get(name))
                for name, source in sources.items()
            }
            for name, ref in loading.items():
                answer_of(name, ref, LOAD_SECONDS)
            for ref in coordinator.run.options(num_returns="streaming").remote(job, budget, log):
                yield answer_of("coordinator", ref, ANSWER_SECONDS)
        finally:
            for actor in (coordinator, *actors.values()):
                ray.kill(actor)
