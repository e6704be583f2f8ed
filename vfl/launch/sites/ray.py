"""Ray site: one actor per party and one for the coordinator. This process, the driver, starts and monitors the actors.

Without an address, a local Ray is started if this process is not connected to a Ray. The local Ray gets one CPU per actor of
the job, for any number of cores, and never writes vectors to disk (spilling). On a local Ray, the parties of a large
simulation share a few processes (vfl.Ray). On a cluster only the operator can switch spilling off; the certificate flags a
cluster that may write vectors to disk unencrypted. On a cluster with an address, every party is pinned to its node.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.charging.budget import Reserved
from coordinator.rounds import LOSSES_A_QUERY
from vfl.crypto.psi import new_salt
from vfl.errors import PlacementError
from vfl.job.site import ALONE, COORDINATOR, Ray
from vfl.launch.sites.bundles import CENTRE, cpus_of, layout_of, require_version, reserved
from vfl.launch.sites.connection import connected, connected_elsewhere, refill
from vfl.launch.sites.open_site import Arrangement, cores_each, usable_cores
from vfl.secure.roles import COORDINATOR as AT_COORDINATOR
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from coordinator.charging.budget import Budget
    from coordinator.rounds import Log
    from parties.sources.blocks import Blocks
    from vfl.crypto.alignment import Aligned, AlignmentProgress
    from vfl.job import Job
    from vfl.launch.sites.bundles import Spot
    from vfl.launch.sites.open_site import Application, ApplyEvent, RunEvent

SPILLS = (
    "the Ray cluster may spill its object store to disk: per-record vectors and ids may have been written in clear on its "
    "nodes; "
    """start its head with --system-config='{"automatic_object_spilling_enabled": false}'"""
)
UNKNOWN = "whether the Ray cluster spills its object store to disk in clear could not be found out"
STORED = (
    "the Ray object store of {who} lies on disk: per-record vectors and ids were written there in clear; start Ray there "
    "with a --object-store-memory that its /dev/shm can hold"
)
UNSEEN = "whether the Ray object store of {who} lies on disk in clear could not be found out"
MEMORY, DISK, UNCERTAIN = "memory", "disk", "uncertain"
IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
"""File systems that hold files in memory. The system may still swap them to disk, which is not detected."""
ASK_SECONDS = 60.0


def flags_of_cluster() -> tuple[str, ...]:
    """Return the certificate's flags for the cluster to which Ray is connected; () if spilling is switched off.

    The head node's setting applies to all nodes and overrides their environments. Ray has no public function that returns
    this setting. If this version of Ray lacks the private function that does, the flag says that the setting is unknown.
    """
    try:
        from ray._private.state import state

        config = state.get_system_config()
    except Exception:  # noqa: BLE001  # private to Ray, so anything may change
        return (UNKNOWN,)
    return () if config.get("automatic_object_spilling_enabled") is False else (SPILLS,)


def store_here(maps: str | None = None, mounts: str | None = None) -> str:
    """Return the medium of this node's object store: MEMORY, DISK or UNCERTAIN.

    If /dev/shm is too small, Ray puts the store into a file of its temporary folder and reports this only in its log. This
    process maps the file once an object is in the store.

    maps, mounts : contents of /proc/self/maps and /proc/self/mountinfo; None reads these files.
    """
    try:
        if maps is None:
            import ray

            ray.get(ray.put(b""))
            maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8") if mounts is None else mounts
        kinds = {
            tuple(map(int, line.split()[2].split(":"))): line.partition(" - ")[2].split()[0]
            for line in mounts.splitlines()
        }
        mapped = [line.split(maxsplit=5) for line in maps.splitlines()]
        # Address, permissions, offset, device, inode, path: shared memory has an s among the permissions.
        devices = [part[3] for part in mapped if "s" in part[1] and part[-1].rpartition("/")[2].startswith("plasma")]
        # A device without a mount of its own is taken for a disk below an overlay file system.
        found = {kinds.get(tuple(int(half, 16) for half in device.split(":")), "") for device in devices}
    except Exception:  # noqa: BLE001  # no /proc here, or none of this form
        return UNCERTAIN
    if not found:
        return UNCERTAIN
    return MEMORY if found <= set(IN_MEMORY) else DISK


def flags_of_stores(ray: Any, actors: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the certificate's flags for the object stores that these actors and this process use.

    actors : {name of the actor in the flag: handle of the actor}.
    """
    # __ray_call__ is Ray's own method to run a function in an actor.
    asked = {who: actor.__ray_call__.remote(_store_of) for who, actor in actors.items()}
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=ASK_SECONDS)
    found = {who: _answer(ray, ref) for who, ref in asked.items()} | {"the driver": store_here()}
    return tuple(
        said.format(who=" and of ".join(those))
        for said, kind in ((STORED, DISK), (UNSEEN, UNCERTAIN))
        if (those := [who for who, what in found.items() if what == kind])
    )


def _store_of(_: Any) -> str:
    return store_here()


def _answer(ray: Any, ref: Any) -> str:
    try:
        said: str = ray.get(ref, timeout=0)
    except ray.exceptions.RayError:  # the run itself reports a lost or late actor
        return UNCERTAIN
    return said


LOAD_SECONDS = 3600.0
ONE_CLUSTER = (
    "trust='secure' on one Ray cluster, whose operator can run code at every participant: the shares protect the participants "
    "from one another as far as they trust that operator"
)
ROUNDS_AHEAD = 16
"""Largest number of rounds by which the coordinator may be ahead of the driver, which logs the rounds."""


def cores_of(site: Ray, n_parties: int) -> int:
    """Return the cores per party or shard: an equal share of this machine; on a cluster, the CPUs of the party's actor."""
    if site.address is None:
        return cores_each(site.num_cpus, n_parties * site.shards)
    return site.num_cpus or max(1, int(cpus_of(site, apart=True)))


def _blocks_of(party: str, dataset: Any) -> Blocks:
    """Return references to the blocks of a Ray dataset, and the blocks' row counts from metadata. This process reads no block.

    The rows have the order of dataset.take_all(). Raises DataError for a dataset that is not computed yet, because Ray may
    then return the rows in a different order each time.
    """
    from ray.data.dataset import MaterializedDataset

    from parties.actor import InStore
    from parties.sources.base import Origin
    from parties.sources.blocks import Blocks

    if not isinstance(dataset, MaterializedDataset):
        raise Origin(party, "the Ray dataset").error(
            "not computed yet, so its rows may come in another order each time: give dataset.materialize(), which fixes "
            "their order"
        )
    references, counts = [], []
    for entry in (entry for bundle in dataset.iter_internal_ref_bundles() for entry in bundle.blocks):
        # Before Ray 2.50 an entry is a pair.
        reference, metadata = (entry.ref, entry.metadata) if hasattr(entry, "ref") else entry
        references.append(reference)
        counts.append(metadata.num_rows)
    return Blocks(InStore(tuple(references)), tuple(counts))


def _handed(ray: Any, source: Any) -> Any:
    """Return a source as its party's actor receives it: a path, references to blocks, or a reference to the table.

    The table stays in memory for the whole run, since a restarted party asks for it again.
    """
    from parties.actor import InMemory
    from parties.sources.blocks import Blocks

    if isinstance(source, str | Path | Blocks):
        return source
    return InMemory(source if isinstance(source, ray.ObjectRef) else ray.put(source))


@dataclass(frozen=True, slots=True)
class _Options:
    """Ray's options for the actors of one run.

    site : the run's site, with the CPUs of a party. title : name of the run. spot : options that place an actor (`reserved`).
    """

    site: Ray
    title: str
    spot: Spot

    def once(self, who: str, placed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of an actor that is never started again. placed : what the actor takes, and where it runs."""
        return {"max_restarts": 0, "max_task_retries": 0, **placed, "name": f"{self.title}: {who}"}

    def again(self, who: str, placed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of an actor that Ray starts again if it is lost, unless the run ends then."""
        return self.once(who, placed) | {"max_restarts": 0 if self.site.faults.on_party_lost == "abort" else -1}

    def shards(self, who: str, cpus: float | None) -> tuple[dict[str, Any], ...]:
        """Return the options of the shards of a party, or of the margins; () for a site without shards."""
        return tuple(
            self.again(f"shard {k} of {who or 'the margins'}", {"num_cpus": cpus, **self.spot(who, k)})
            for k in range(self.site.shards if self.site.shards > 1 else 0)
        )


def _parties(
    ray: Any, processes: Sequence[Sequence[str]], given: Mapping[str, tuple[Any, ...]], options: _Options
) -> dict[str, Any]:
    """Start the parties' processes. Return {party: handle of the party's actor, or of its place in a shared process}.

    given : {party: arguments of the party's actor}.
    """
    from coordinator.cluster.ray_transport import Seat
    from parties.actor import PartyActor, SharedActor

    actors: dict[str, Any] = {}
    for number, hosted in enumerate(processes):
        cpus = options.site.party_cpus if options.site.shards == 1 else 0
        who = f"{'party' if len(hosted) == 1 else 'parties'} {', '.join(hosted)}"
        own = options.again(who, {"num_cpus": cpus, **options.spot(hosted[0], 0)})
        if len(hosted) == 1:
            actors[hosted[0]] = ray.remote(PartyActor).options(**own).remote(*given[hosted[0]])
        else:
            process = ray.remote(SharedActor).options(**own).remote({name: given[name] for name in hosted})
            actors |= {name: Seat(process, number, name) for name in hosted}
    return actors


@contextlib.contextmanager
def _federation(
    job: Job | None,
    sources: Mapping[str, Any],
    site: Ray,
    arrangement: Arrangement,
    *,
    run: str = "",
    here: bool = False,
) -> Iterator[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Start an actor for each party and one for the coordinator, on the nodes that the job names. End the actors on exit.

    Yields {party: actor}, {party: source as the actor receives it}, and the coordinator's actor.

    job : job to train; None for predictions and measures. here : True if the coordinator has to run on this machine.
    """
    dealer = None if job is None else job.dealer
    if site.pinned and site.shares_processes:
        raise PlacementError(ALONE)
    if job is not None:
        site.require_fit(job.trust_name)
    # A connected Ray may be a cluster with room for one process per party. Parties with policies never share a process.
    if site.address is None and not arrangement.policies and not connected_elsewhere():
        site = site.for_simulation(sources, "trusted" if job is None else job.trust_name, usable_cores())
    processes = site.processes(sources)
    cpus = len(processes) * site.shards + 1 + (dealer is not None)
    with connected(cpus, site.address) as ray, contextlib.ExitStack() as groups:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from coordinator.cluster.actor import CoordinatorActor
        from coordinator.cluster.ray_transport import process_of
        from parties.actor import DealerActor, handed_on
        from parties.sources.blocks import is_dataset

        nodes = sum(node["Alive"] for node in ray.nodes())
        site = replace(site, party_cpus=cpus_of(site, apart=nodes > 1))
        found = {name: _blocks_of(name, it) if is_dataset(it) else it for name, it in sources.items()}
        label_party = None if job is None else job.partition.label_party
        offers = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        layout = layout_of(site, processes, label_party, here=here, dealer=dealer, offers=offers)
        name = "prediction" if job is None else job.name
        title = " ".join(filter(None, (name, run[:8], secrets.token_hex(3))))
        spot = groups.enter_context(reserved(ray, layout, site.ready_timeout_s, title))
        options = _Options(site, title, spot)
        this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        central = {"num_cpus": 0, **({"scheduling_strategy": this_node} if here else spot(CENTRE, 0))}
        handed = {name: _handed(ray, source) for name, source in found.items()}
        spec = None if job is None else handed_on(job)
        alone = job is not None and not job.secure and job.solver.sequential
        threads = cores_of(site, 1 if alone else len(processes))
        given = {
            name: (
                *(spec, name, arrangement.policies.get(name), arrangement.keeping(name), threads),
                options.shards(name, site.party_cpus),
            )
            for name in sources
        }
        actors, dealing = _parties(ray, processes, given, options), {}
        if dealer is not None:
            cpus_beside = 0 if site.pinned else site.party_cpus
            beside = central if dealer == AT_COORDINATOR else {"num_cpus": cpus_beside, **spot(DEALER, 0)}
            dealing[DEALER] = ray.remote(DealerActor).options(**options.again("dealer", beside)).remote(spec)
        margins = () if label_party is None else options.shards(CENTRE, 0)
        coordinator = (
            ray.remote(CoordinatorActor)
            .options(**options.once(COORDINATOR, central))
            .remote(actors, handed, site.faults, name, run, dealing.get(DEALER), margins)
        )
        apart = {CENTRE: coordinator, **dealing}
        try:
            require_version(actors | apart)
            yield actors, handed, coordinator
        finally:
            for actor in (*apart.values(), *(process_of(actors[head]) for head, *_ in processes)):
                ray.kill(actor)
            refill(ray, cpus)


def run(
    job: Job, sources: Mapping[str, Any], budget: Budget, log: Log, *, site: Ray, arrangement: Arrangement
) -> Iterator[RunEvent]:
    """Start the actors, let each party load its source on its node, then yield the plan, the rounds and the outcome.

    A party that an earlier process of the run left out is not started.
    """
    there = {name: source for name, source in sources.items() if name not in log.left.values()}
    # A ledger is a file on this machine, so the coordinator, which writes it, has to run here.
    here = budget.ledger is not None
    with _federation(job, there, site, arrangement, run=budget.run, here=here) as (actors, handed, coordinator):
        import ray

        from coordinator.cluster.ray_transport import process_of
        from vfl.network.shards.ray_transport import answer_of

        if job.id is not None:
            yield from _aligned(job, arrangement, actors, handed, coordinator, site)
        loading = {name: actor.load.remote(handed[name]) for name, actor in actors.items()}
        for name, ref in loading.items():
            answer_of(name, ref, LOAD_SECONDS)
        beneath = {f"party {name!r}": process_of(actor) for name, actor in actors.items()} | {
            "the coordinator": coordinator
        }
        flags = (*flags_of_cluster(), *flags_of_stores(ray, beneath), *((ONE_CLUSTER,) if job.secure else ()))
        patience = site.faults.answer_timeout_s + (LOSSES_A_QUERY + 1) * site.faults.wait_timeout_s
        for event in answer_of("coordinator", coordinator.begin.remote(job, budget, log), patience):
            yield replace(event, flags=flags) if isinstance(event, Reserved) else event
        rounds = coordinator.rounds.options(num_returns="streaming")
        with contextlib.suppress(TypeError, ValueError):  # a private option of Ray, which some versions may lack
            rounds = coordinator.rounds.options(
                num_returns="streaming", _generator_backpressure_num_objects=ROUNDS_AHEAD
            )
        for ref in rounds.remote():
            yield answer_of("coordinator", ref, patience)
        yield answer_of("coordinator", coordinator.finish.remote(), patience)


def align_only(
    job: Job, sources: Mapping[str, Any], arrangement: Arrangement, *, site: Ray
) -> Iterator[AlignmentProgress | Aligned]:
    """Start the actors. Yield the progress of an alignment, then its outcome."""
    with _federation(job, sources, site, arrangement) as (actors, handed, coordinator):
        yield from _aligned(job, arrangement, actors, handed, coordinator, site)


def apply(asked: Application, *, site: Ray) -> Iterator[ApplyEvent]:
    """Have every party apply its part on its node (vfl.launch.sites.open_site.module_of).

    The label party adds up the parts of the scores; if that party has no part, the first party does. The other parties send
    their parts to the adding party through the object store. When a model is measured, scores and labels stay in the adding
    party's shards.
    """
    from parties.alignment.reading import all_hold_ids
    from parties.prediction import agreed

    site = replace(site, faults=replace(site.faults, on_party_lost="abort"))
    opened, measured = asked.opened(), asked.w is not None
    with _federation(None, opened, site, Arrangement(policies=asked.policies)) as (actors, handed, coordinator):
        from vfl.network.shards.ray_transport import answer_of

        # Send the salt to the parties and never to the coordinator.
        names, salt, each = list(opened), new_salt(), cores_of(site, len(actors))
        prepared = {
            name: actor.prepare_prediction.remote(asked.parts[name], name, handed[name], names, measured, salt, each)
            for name, actor in actors.items()
        }
        greetings = {name: answer_of(name, ref, LOAD_SECONDS) for name, ref in prepared.items()}
        agreement = agreed(greetings)
        job, cut = agreement.job, asked.cut(agreement.threshold)
        ids = bool(job.ids) and all_hold_ids(job.ids, {name: said.ids for name, said in greetings.items()})
        aligns = ids and len(names) > 1
        yield from _events(coordinator.apply, site, job, aligns=aligns, ids=ids, threshold=cut, w=asked.w)


def _events(method: Any, site: Ray, *arguments: Any, **named: Any) -> Iterator[Any]:
    from vfl.network.shards.ray_transport import answer_of

    for ref in method.options(num_returns="streaming").remote(*arguments, **named):
        yield answer_of("coordinator", ref, site.faults.answer_timeout_s)


def _aligned(
    job: Job,
    arrangement: Arrangement,
    actors: Mapping[str, Any],
    handed: Mapping[str, Any],
    coordinator: Any,
    site: Ray,
) -> Iterator[AlignmentProgress | Aligned]:
    from vfl.network.shards.ray_transport import answer_of

    # Send the salt to the parties and never to the coordinator.
    salt, cores = new_salt(), cores_of(site, len(actors))
    reading = {name: actor.prepare.remote(handed[name], salt, cores) for name, actor in actors.items()}
    for name, ref in reading.items():
        answer_of(name, ref, LOAD_SECONDS)
    yield from _events(coordinator.align, site, required=arrangement.required, base=job.base(tuple(actors)))
