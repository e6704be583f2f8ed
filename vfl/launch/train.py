"""`train`, `stream` and `resume`: a job and its data in, a result out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.arguments import require
from vfl.errors import LedgerError, OutputError, PartyLost, PlacementError, VflError
from vfl.job import file as jobfile
from vfl.launch.engines.arrangement import Arrangement
from vfl.launch.engines.place import across, place_of
from vfl.launch.run import checkpoint
from vfl.launch.run.execution import Settings, events_of, finish, settings_of
from vfl.launch.run.folder import MODEL, TUNE, fresh_folder
from vfl.launch.run.result import Result
from vfl.launch.run.timing import Stopwatch
from vfl.launch.run.warnings import PrivacyWarning, warn_of_plan
from vfl.launch.warm_start import starting_from
from vfl.security.signatures import signing_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vfl.job import Job
    from vfl.job.faults import Faults
    from vfl.job.placement import Placement
    from vfl.launch.engines.place import Organisations
    from vfl.launch.run.execution import Event, Watch
    from vfl.security.signatures import SigningKey


def stream(
    job: Job,
    data: Any = None,
    *,
    engine: str = "ray",
    address: str | None = None,
    ledger: str | Path | None = None,
    policies: Mapping[str, str | Path] | None = None,
    indexes: Mapping[str, str | Path] | None = None,
    cores: int | None = None,
    placement: Placement | None = None,
    faults: Faults | None = None,
    allow_network_file_system: bool = False,
    federation: str | Path | Organisations | None = None,
    identity: str | Path | None = None,
    warm_start: Result | str | Path | None = None,
) -> Iterator[Event | Result]:
    """Train, and yield the plan, the reservation, a record of every round, and at last the result. See `train`.

    If the job aligns records, the progress and the outcome of the alignment come first.
    """
    job = starting_from(job, warm_start)
    settings = settings_of(
        job,
        engine=engine,
        address=address,
        ledger=ledger,
        policies=policies,
        indexes=indexes,
        cores=cores,
        placement=placement,
        faults=faults,
        allow_network_file_system=allow_network_file_system,
        federation=federation,
        identity=identity,
    )
    yield from events_of(job, data, settings)


def train(
    job: Job,
    data: Any = None,
    *,
    engine: str = "ray",
    address: str | None = None,
    ledger: str | Path | None = None,
    policies: Mapping[str, str | Path] | None = None,
    indexes: Mapping[str, str | Path] | None = None,
    cores: int | None = None,
    placement: Placement | None = None,
    faults: Faults | None = None,
    output: str | Path | None = None,
    key: str | Path | None = None,
    watch: Watch | None = None,
    environment: dict[str, Any] | None = None,
    allow_network_file_system: bool = False,
    federation: str | Path | Organisations | None = None,
    identity: str | Path | None = None,
    warm_start: Result | str | Path | None = None,
) -> Result:
    """Train the job's model; it is (ε, δ)-differentially private for every record as its certificate states.

    data : {party: source}, each loaded by its own party, or one table of all columns, to simulate. A source is a path to CSV,
        Parquet, Arrow or NumPy; vfl.Csv(path, delimiter=";"); a pandas, Polars or Arrow table; an array or SciPy sparse
        matrix whose columns are in the partition's order; or a function that returns one of these, which the party calls
        (parties.sources.opening.open_source).
    engine : 'ray' (one actor per party and one for the coordinator) or 'inprocess'. Both give the same model for the
        same seeded noise.
    address : a Ray cluster; None uses the Ray that this process is connected to, or starts a local one.
    ledger : file that keeps the budget of the job's data set.
    policies : {party: path of its owner's policy file}, read on the party's node (parties.consent). A policy may refuse the
        job before the data are opened, and keeps a book of the party's releases. A resumed run has the same policies.
    indexes : for a job with an id column. The run uses the index of an earlier `vfl.launch.align.align` if the files have
        not changed since. With an output, every party keeps the run's index in its own place for `vfl resume`.
    cores : of each party, for alignment and training; the number changes no result. None divides this machine's cores among
        the parties that work at the same time; on a cluster with an address, a party takes its placement's party_cpus.
    placement : nodes of the actors (vfl.job.placement). None pins each party to the node that offers 'party:NAME', on a
        cluster that is named by its address.
    faults : policy for lost parties (vfl.job.faults); None waits for them.
    output : a new folder for the model, the certificate and the log from which an interrupted run is resumed. A job without
        a data set keeps its budget there too. None leaves nothing on disk.
    key : file of the Ed25519 key that signs the certificate. None signs with this user's own key, made on first use
        (vfl.security.signatures), if there is an `output`; otherwise the certificate is unsigned.
    watch : called with the progress and outcome of the alignment, if there is one, the plan, the reservation, and every
        round. None issues the plan's warnings as vfl.PrivacyWarning.
    environment : plain values to keep in the log for `vfl resume`.
    federation : path of a federation file: the parties are in other organisations, which run `vfl.join`, and this process
        is the coordinator. `data` is then None or {party: the owner's name of its source}, and each party has its own
        policy, index folder and cores.
    identity : with a federation, the coordinator's key file; None takes the one beside the federation file.
    warm_start : a result, or the folder of a run, to start from instead of the constant model (vfl.launch.warm_start). A
        released model costs nothing; the records of this job are charged as without it.
    allow_network_file_system : True accepts a ledger on a network file system, where a charge may be lost and the
        guarantee with it; False raises LedgerError before the first release.

    From the second private run of a process that no ledger counts, a vfl.PrivacyWarning states the ε of all of them.

    Raises SpecificationError, DataError, BudgetError or FederationError (vfl.errors), before any release if they can.
    """
    job = starting_from(job, warm_start)
    settings = settings_of(
        job,
        engine=engine,
        address=address,
        ledger=ledger,
        policies=policies,
        indexes=indexes,
        cores=cores,
        placement=placement,
        faults=faults,
        allow_network_file_system=allow_network_file_system,
        federation=federation,
        identity=identity,
    )
    signer = None if key is None and output is None else signing_key(key)  # a missing key fails before any release
    watch = watch or warn_of_plan
    if output is None:
        return finish(job, data, settings, watches=(watch,), signer=signer)
    return _begin(job, data, settings, fresh_folder(output), environment=environment or {}, watch=watch, signer=signer)


def _begin(
    job: Job,
    data: Any,
    settings: Settings,
    folder: Path,
    *,
    environment: dict[str, Any],
    watch: Watch,
    signer: SigningKey | None,
) -> Result:
    """Train with a log in `folder`, from which an interrupted run is resumed, and save the result there."""
    budget, arrangement = settings.budget, settings.arrangement
    if budget.ledger is None and job.dataset is None:
        budget = replace(budget, ledger=str(folder.resolve() / checkpoint.LEDGER))
    settings = replace(settings, budget=budget, arrangement=replace(arrangement, run=budget.run))
    kept = {**environment, "policies": settings.policies, "indexes": arrangement.folders, "cores": arrangement.cores}
    kept["allow_network_file_system"] = budget.allow_network_file_system
    jobfile.write(job, folder / jobfile.NAME)
    with checkpoint.Checkpoint(folder, checkpoint.Start(job.digest, budget.run, budget.ledger, kept)) as log:
        try:
            result = finish(job, data, settings, watches=(log, Stopwatch(folder), watch), signer=signer)
        except (VflError, PrivacyWarning) as error:
            if log.reserved:
                _name_remedy(error, folder)
                raise
            shutil.rmtree(folder)  # nothing began: leave nothing that looks like a run
            if isinstance(error, PartyLost):
                error.add_note("nothing was charged and no run is kept: when the party is back, run or submit it again")
            raise
        result.save(folder)
    return result


def resume(
    folder: str | Path,
    data: Any = None,
    *,
    engine: str = "ray",
    address: str | None = None,
    key: str | Path | None = None,
    watch: Watch | None = None,
    placement: Placement | None = None,
    faults: Faults | None = None,
    federation: str | Path | Organisations | None = None,
    identity: str | Path | None = None,
) -> Result:
    """Go on with an interrupted run, from the releases in its log; a finished run is only loaded.

    Releases that were charged and lost stay charged: the run may end with fewer releases, never with more budget. It
    needs the same data and the same ledger. With seeded noise the model is the same to the bit.

    federation, identity : as for `train`; a run across organisations is resumed across them.
    """
    require("folder", folder, "the path of a run", fits=isinstance(folder, str | Path))
    folder = Path(folder)
    if (folder / MODEL).exists():
        return Result.load(folder)
    if (folder / TUNE).exists():
        raise OutputError(f"{str(folder)!r} holds a tune: continue it with vfl resume, or with vfl.tuning.run.resume")
    signer = signing_key(key)
    job, _ = jobfile.read(folder / jobfile.NAME)
    with checkpoint.Checkpoint(folder) as log:  # lock it before reading: another process may be adding to it
        start, budget, made = checkpoint.read(folder, job)
        kept = start.environment
        arrangement = Arrangement(
            folders=kept.get("indexes") or {},
            cores=kept.get("cores"),
            run=budget.run,
            resumed=True,
            required=made.n_records is not None,
        )
        settings = Settings(
            budget=budget,
            place=place_of(engine, address, placement, faults)
            if federation is None
            else across(federation, identity, faults, address=address, placement=placement),
            policies=kept.get("policies") or {},
            arrangement=arrangement,
            log=made,
            counted=False,
        )
        watches = (log, Stopwatch(folder), *(() if watch is None else (watch,)))
        try:
            result = finish(job, data, settings, watches=watches, signer=signer)
        except VflError as error:
            _name_remedy(error, folder)
            raise
        result.save(folder)
    return result


def _name_remedy(error: Exception, folder: Path) -> None:
    if isinstance(error, PartyLost | PlacementError | OutputError | LedgerError):
        error.add_note(f"the run keeps its releases; once the cause is fixed, continue with: vfl resume {folder}")
