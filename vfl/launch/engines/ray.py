"""Running a job on Ray: one actor per party, one for the coordinator; the driver starts them and watches.

A local Ray is started when no address is given and none is running, with as many CPUs as the job has actors, whatever
the machine has, and one thread for each. Nothing is carried out: usage statistics are off and no working directory is
uploaded. A Ray that is started here never spills vectors to disk; on a cluster that is its operator's to switch off, and
a certificate says where it was not. On a cluster that is named by an address every party is pinned to its node.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.budget import Reserved
from coordinator.recovery import LOSSES_A_QUERY
from vfl.errors import PlacementError
from vfl.job.faults import Faults
from vfl.job.placement import Placement
from vfl.launch.alignment import Arrangement
from vfl.launch.engines.readiness import CENTRE, asked_of, options_of, require_offered, require_ready
from vfl.launch.engines.spilling import flags_of_cluster, flags_of_stores
from vfl.security.psi import new_salt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coordinator.budget import Budget
    from coordinator.coordinator import Outcome
    from coordinator.rounds import Log, Lost, Made, Round
    from parties.prediction import ModelPart
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.types import Vector

QUIET = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Set before Ray is imported: it must not upload the working directory nor report usage."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

LOAD_SECONDS = 3600.0
START_SECONDS = 60.0
"""For the processes of actors that have a place: a node that is busy takes its time to import."""
ROUNDS_AHEAD = 16
"""Rounds that the coordinator may be ahead of the driver, which logs them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which cluster, where on it, and what becomes of a party that is lost there.

    address : None uses the Ray that this process is connected to, or starts a local one.
    """

    address: str | None = None
    placement: Placement = field(default_factory=Placement)
    faults: Faults = field(default_factory=Faults)


def import_ray() -> Any:
    """Import Ray with what it must not do switched off."""
    for name, value in QUIET.items():
        os.environ[name] = value
    import ray

    return ray


def unreachable(what: str, where: str, error: Exception, remedy: str) -> PlacementError:
    """Return the error for a cluster that does not let this process in: in one line, where Ray takes forty.

    what, where : that was asked. error : of Ray's. remedy : unless it is the token that is wrong, of which Ray does not
        always tell.
    """
    how = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the file that holds the cluster's token"
    if type(error).__name__ == "AuthenticationError" or "authenticat" in str(error).lower():
        path = os.environ.get("RAY_AUTH_TOKEN_PATH")
        return PlacementError(
            f"the {what} at {where} is closed to this process, whose token is wrong or missing: {how}"
            + (f" (now {path!r}; RAY_AUTH_TOKEN comes first where it is set)" if path else "")
        )
    said = next(iter(str(error).splitlines()), type(error).__name__)  # more is a paragraph on Ray Client
    return PlacementError(f"no {what} answers at {where}: {said} ({remedy}; where the cluster asks for a token, {how})")


def check_address(address: str | None) -> None:
    """Raise PlacementError where `address`, or RAY_ADDRESS for 'auto', cannot name a cluster to run on as its node."""
    named = os.environ.get("RAY_ADDRESS") if address == "auto" else None
    said = f"RAY_ADDRESS={named}, which 'auto' stands for," if named else repr(address)
    asked = named or address or ""
    if asked.startswith("ray://"):
        raise PlacementError(
            f"{said} is Ray Client, behind which this process is no node of the cluster and cannot keep a run: "
            "run on a node with --address auto, or send the job there with: vfl submit JOB"
        )
    if asked.startswith(("http://", "https://")):
        raise PlacementError(
            f"{said} is a job server's, to which a job is sent with: vfl submit JOB. To run here, on a node of the "
            "cluster, give --address HEAD:6379, or unset RAY_ADDRESS and give --address auto"
        )


@contextlib.contextmanager
def connected(n_actors: int, address: str | None) -> Iterator[Any]:
    """Yield Ray as this process is connected already, or to `address`, or to a local one that ends with the context."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # inherited by the workers of a local Ray
    try:
        if address is None:
            ray.init(
                address="local",  # whatever RAY_ADDRESS names, or somebody else has running on this machine
                num_cpus=n_actors,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _system_config={"automatic_object_spilling_enabled": False},
            )
        else:
            check_address(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                remedy = "on a node of the cluster give --address auto; elsewhere send the job, with: vfl submit JOB"
                raise unreachable("Ray cluster", repr(address), error, remedy) from error
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


def cores_of(place: Place, how: Arrangement, n_parties: int) -> int:
    """Return the cores of each party: its share of this machine, or on a cluster the CPUs that its actor takes there."""
    return how.cores_each(n_parties) if place.address is None else how.cores or max(1, int(place.placement.party_cpus))


def _this_node(ray: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


@contextlib.contextmanager
def _federation(
    job: Job | None,
    sources: Mapping[str, Any],
    place: Place,
    how: Arrangement,
    *,
    policies: Mapping[str, str] | None,
    run: str = "",
    here: bool = False,
) -> Iterator[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Start an actor for each party and one for the coordinator, where the job places them, and end them.

    Yields the parties' actors, the sources as they are handed to these, and the coordinator's actor.

    job : to train; None to predict. here : the coordinator runs on this machine or not at all.
    """
    with connected(len(sources) + 1, place.address) as ray:
        from coordinator.actor import CoordinatorActor
        from parties.actor import InMemory, PartyActor

        asked = asked_of(place.placement, sources, pinned=place.placement.pinned(place.address), here=here)
        require_offered(ray, asked, place.placement.ready_seconds)
        pinned = {"scheduling_strategy": _this_node(ray)} if here else {}
        once = {"max_restarts": 0, "max_task_retries": 0}
        again = once | ({"max_restarts": -1} if place.faults.on_party_lost != "abort" else {})
        # What lies in memory is held here for as long as the run lasts, since a restarted party asks for it again.
        handed = {
            name: source if isinstance(source, str | Path) else InMemory(ray.put(source))
            for name, source in sources.items()
        }
        threads = cores_of(place, how, len(sources))
        actors = {
            name: ray.remote(PartyActor)
            .options(**again, **options_of(asked[name]))
            .remote(job, name, (policies or {}).get(name), how.keeping(name), threads)
            for name in sources
        }
        coordinator = (
            ray.remote(CoordinatorActor)
            .options(**once, **options_of(asked[CENTRE]), **pinned)
            .remote(actors, handed, place.faults, "prediction" if job is None else job.name, run)
        )
        try:
            require_ready(ray, actors | {CENTRE: coordinator}, asked, max(place.placement.ready_seconds, START_SECONDS))
            yield actors, handed, coordinator
        finally:
            for actor in (coordinator, *actors.values()):
                ray.kill(actor)


def run(
    job: Job,
    sources: Mapping[str, Any],
    budget: Budget,
    log: Log,
    *,
    place: Place | None = None,
    policies: Mapping[str, str] | None = None,
    how: Arrangement | None = None,
) -> Iterator[Aligning | Aligned | Plan | Reserved | Round | Lost | Made | Outcome]:
    """Start the actors, let each party load its source where it runs, then yield the plan, the rounds and the outcome.

    A party that an earlier process of the run gave up is not started.

    how : the alignment is made before, if the job asks for one.
    """
    place, how = place or Place(), how or Arrangement()
    there = {name: source for name, source in sources.items() if name not in log.left.values()}
    # A ledger is a file on this machine: the coordinator, which writes it, runs here or not at all.
    here = budget.ledger is not None
    with _federation(job, there, place, how, policies=policies, run=budget.run, here=here) as (
        actors,
        handed,
        coordinator,
    ):
        import ray

        from coordinator.ray_transport import answer_of

        if job.id is not None:
            yield from _aligned(how, actors, handed, coordinator, place)
        loading = {name: actor.load.remote(handed[name]) for name, actor in actors.items()}
        for name, ref in loading.items():
            answer_of(name, ref, LOAD_SECONDS)
        beneath = {f"party {name!r}": actor for name, actor in actors.items()} | {"the coordinator": coordinator}
        flags = (*flags_of_cluster(), *flags_of_stores(ray, beneath))
        patience = place.faults.answer_seconds + (LOSSES_A_QUERY + 1) * place.faults.wait_seconds
        for event in answer_of("coordinator", coordinator.begin.remote(job, budget, log), patience):
            yield replace(event, flags=flags) if isinstance(event, Reserved) else event
        ahead = {"num_returns": "streaming", "_generator_backpressure_num_objects": ROUNDS_AHEAD}
        for ref in coordinator.rounds.options(**ahead).remote():
            yield answer_of("coordinator", ref, patience)
        yield answer_of("coordinator", coordinator.finish.remote(), patience)


def align_only(
    job: Job,
    sources: Mapping[str, Any],
    how: Arrangement,
    *,
    place: Place | None = None,
    policies: Mapping[str, str] | None = None,
) -> Iterator[Aligning | Aligned]:
    """Start the actors and yield the progress of an alignment, then its outcome."""
    place = place or Place()
    with _federation(job, sources, place, how, policies=policies) as (actors, handed, coordinator):
        yield from _aligned(how, actors, handed, coordinator, place)


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
    from parties.alignment.reading import all_hold_ids
    from parties.prediction import agreed
    from vfl.alignment import Keeping

    place, how = Place(address, faults=Faults(on_party_lost="abort")), Arrangement(cores=cores)
    with _federation(None, sources, place, how, policies=None) as (actors, handed, coordinator):
        from coordinator.ray_transport import answer_of

        asked = {name: actors[name].prepare_prediction.remote(parts[name], name, handed[name]) for name in sources}
        greetings = {name: answer_of(name, ref, LOAD_SECONDS) for name, ref in asked.items()}
        job = agreed(greetings)
        if len(actors) > 1 and job.ids and all_hold_ids(job, {name: said.ids for name, said in greetings.items()}):
            salt = new_salt()
            each = cores_of(place, how, len(actors))
            reading = {name: actor.prepare_ids.remote(salt, each, Keeping()) for name, actor in actors.items()}
            for name, ref in reading.items():
                answer_of(name, ref, LOAD_SECONDS)
            for ref in coordinator.align.options(num_returns="streaming").remote(required=False):
                yield answer_of("coordinator", ref, place.faults.answer_seconds)
        owner = job.partition.label_party
        first = owner if owner in actors else next(iter(actors))
        ordered = [name for name in job.partition.parties if name in actors]
        margins = [actors[name].margins.remote() for name in ordered]
        ids, total = answer_of(first, actors[first].receive.remote(*margins), LOAD_SECONDS)
        yield job, ids, total


def _aligned(
    how: Arrangement, actors: Mapping[str, Any], handed: Mapping[str, Any], coordinator: Any, place: Place
) -> Iterator[Aligning | Aligned]:
    from coordinator.ray_transport import answer_of

    # The salt goes to the parties and not to the coordinator.
    salt, cores = new_salt(), cores_of(place, how, len(actors))
    reading = {name: actor.prepare.remote(handed[name], salt, cores) for name, actor in actors.items()}
    for name, ref in reading.items():
        answer_of(name, ref, LOAD_SECONDS)
    for ref in coordinator.align.options(num_returns="streaming").remote(required=how.required):
        yield answer_of("coordinator", ref, place.faults.answer_seconds)
