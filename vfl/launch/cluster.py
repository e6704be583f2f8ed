"""Running a job on Ray: one actor per party, one for the coordinator; the driver starts them and watches.

A local Ray is started when no address is given and none is running, with as many CPUs as the job has actors, whatever
the machine has, and one thread for each. Nothing is carried out: usage statistics are off and no working directory is
uploaded. A Ray that is started here never spills vectors to disk; on a cluster that is its operator's to switch off.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from vfl.errors import PlacementError
from vfl.launch.alignment import Arrangement
from vfl.security.psi import new_salt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coordinator.budget import Budget, Reserved
    from coordinator.coordinator import Outcome
    from coordinator.rounds import Log, Made, Round
    from parties.prediction import ModelPart
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.types import Vector

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
ROUNDS_AHEAD = 16
"""Rounds that the coordinator may be ahead of the driver, which logs them."""


def import_ray() -> Any:
    """Import Ray with what it must not do switched off."""
    for name, value in QUIET.items():
        os.environ[name] = value
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


def _this_node(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


@contextlib.contextmanager
def _federation(names: Iterable[str], address: str | None, *, here: bool) -> Iterator[tuple[dict[str, Any], Any]]:
    """Start an actor for each party and one for the coordinator, and end them.

    here : the coordinator runs on this machine or not at all.
    """
    names = tuple(names)
    with connected(len(names) + 1, address) as ray:
        from coordinator.actor import CoordinatorActor
        from parties.actor import PartyActor

        once = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0}
        actors = {name: ray.remote(PartyActor).options(**once).remote() for name in names}
        pinned = {"scheduling_strategy": _this_node(ray)} if here else {}
        coordinator = ray.remote(CoordinatorActor).options(**once, **pinned).remote(actors, ANSWER_SECONDS)
        try:
            yield actors, coordinator
        finally:
            for actor in (coordinator, *actors.values()):
                ray.kill(actor)


def run(
    job: Job,
    sources: Mapping[str, Any],
    budget: Budget,
    log: Log,
    *,
    address: str | None = None,
    policies: Mapping[str, str] | None = None,
    how: Arrangement | None = None,
) -> Iterator[Aligning | Aligned | Plan | Reserved | Round | Made | Outcome]:
    """Start the actors, let each party load its source where it runs, then yield the plan, the rounds and the outcome.

    how : the alignment is made before, if the job asks for one.
    """
    # A ledger is a file on this machine: the coordinator, which writes it, runs here or not at all.
    with _federation(sources, address, here=budget.ledger is not None) as (actors, coordinator):
        from coordinator.actor import answer_of

        if job.id is None:
            loading = {
                name: actors[name].load.remote(job, name, source, (policies or {}).get(name))
                for name, source in sources.items()
            }
        else:
            yield from _aligned(job, sources, how or Arrangement(), actors, coordinator, policies or {}, address)
            loading = {name: actor.load_aligned.remote() for name, actor in actors.items()}
        for name, ref in loading.items():
            answer_of(name, ref, LOAD_SECONDS)
        yield from answer_of("coordinator", coordinator.begin.remote(job, budget, log), ANSWER_SECONDS)
        ahead = {"num_returns": "streaming", "_generator_backpressure_num_objects": ROUNDS_AHEAD}
        for ref in coordinator.rounds.options(**ahead).remote():
            yield answer_of("coordinator", ref, ANSWER_SECONDS)
        yield answer_of("coordinator", coordinator.finish.remote(), ANSWER_SECONDS)


def align_only(
    job: Job,
    sources: Mapping[str, Any],
    how: Arrangement,
    *,
    address: str | None = None,
    policies: Mapping[str, str] | None = None,
) -> Iterator[Aligning | Aligned]:
    """Start the actors and yield the progress of an alignment, then its outcome."""
    with _federation(sources, address, here=False) as (actors, coordinator):
        yield from _aligned(job, sources, how, actors, coordinator, policies or {}, address)


def predict(
    parts: Mapping[str, ModelPart | str],
    sources: Mapping[str, Any],
    *,
    address: str | None = None,
    cores: int | None = None,
) -> Iterator[Aligning | Aligned | tuple[Job, list[Any] | None, Vector]]:
    """Have every party apply its part of a model where its data lie; yield the alignment, then job, ids and margins.

    The label party adds up (the first, where it takes no part): the others' parts go to it through the object store, and
    the driver gets the sum alone, in the order of that party's rows.
    """
    from parties.aligned import all_hold_ids
    from parties.prediction import agreed
    from vfl.alignment import Keeping

    with _federation(sources, address, here=False) as (actors, coordinator):
        from coordinator.actor import answer_of

        asked = {name: actors[name].prepare_prediction.remote(parts[name], name, sources[name]) for name in sources}
        greetings = {name: answer_of(name, ref, LOAD_SECONDS) for name, ref in asked.items()}
        job = agreed(greetings)
        if len(actors) > 1 and job.ids and all_hold_ids(job, {name: said.ids for name, said in greetings.items()}):
            salt = new_salt()
            each = Arrangement(cores=cores).cores_each(len(actors)) if address is None else cores or 1
            reading = {name: actor.prepare_ids.remote(salt, each, Keeping()) for name, actor in actors.items()}
            for name, ref in reading.items():
                answer_of(name, ref, LOAD_SECONDS)
            for ref in coordinator.align.options(num_returns="streaming").remote(required=False):
                yield answer_of("coordinator", ref, ANSWER_SECONDS)
        owner = job.partition.label_party
        first = owner if owner in actors else next(iter(actors))
        ordered = [name for name in job.partition.parties if name in actors]
        margins = [actors[name].margins.remote() for name in ordered]
        ids, total = answer_of(first, actors[first].receive.remote(*margins), LOAD_SECONDS)
        yield job, ids, total


def _aligned(
    job: Job,
    sources: Mapping[str, Any],
    how: Arrangement,
    actors: Mapping[str, Any],
    coordinator: Any,
    policies: Mapping[str, str],
    address: str | None,
) -> Iterator[Aligning | Aligned]:
    from coordinator.actor import answer_of

    # The salt goes to the parties and not to the coordinator. On a cluster an actor has the one CPU that it asks for.
    salt, cores = new_salt(), how.cores_each(len(actors)) if address is None else how.cores or 1
    reading = {
        name: actors[name].prepare.remote(job, name, source, policies.get(name), salt, cores, how.keeping(name))
        for name, source in sources.items()
    }
    for name, ref in reading.items():
        answer_of(name, ref, LOAD_SECONDS)
    for ref in coordinator.align.options(num_returns="streaming").remote(required=how.required):
        yield answer_of("coordinator", ref, ANSWER_SECONDS)
