"""`train` and `resume`: a job and its data in, a result out."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.budget import Budget
from coordinator.coordinator import Outcome
from coordinator.rounds import Log, Made
from vfl.errors import LedgerError, OutputError, PartyLost, PlacementError, SpecificationError, VflError
from vfl.job import file as jobfile
from vfl.job.faults import Faults
from vfl.job.placement import Placement
from vfl.launch.alignment import Arrangement
from vfl.launch.engines import ray as cluster
from vfl.launch.run import checkpoint
from vfl.launch.run import warnings as running
from vfl.launch.run.result import MODEL, Result, fresh_folder
from vfl.launch.run.timing import Stopwatch
from vfl.launch.run.warnings import PrivacyWarning
from vfl.launch.run.witness import Witness
from vfl.launch.sources import paths_of, sources_of
from vfl.planning import check
from vfl.security.signatures import signing_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coordinator.budget import Reserved
    from coordinator.rounds import Lost, Round
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.security.signatures import SigningKey

    Event = Aligning | Aligned | Plan | Reserved | Round | Lost
    Watch = Callable[[Event], None]

ENGINES = ("ray", "inprocess")


def stream(
    job: Job,
    data: Any,
    *,
    engine: str = "ray",
    address: str | None = None,
    ledger: str | None = None,
    policies: Mapping[str, str | Path] | None = None,
    indexes: Mapping[str, str | Path] | None = None,
    cores: int | None = None,
    placement: Placement | None = None,
    faults: Faults | None = None,
) -> Iterator[Event | Result]:
    """Train, and yield the plan, what was reserved, a record for every round, and at last the result. See `train`.

    Where the job aligns records, the progress and the outcome of that come first.
    """
    budget = Budget(uuid.uuid4().hex, ledger_path(job, ledger))
    how = Arrangement(folders=paths_of(job.partition, indexes, "index"), cores=cores)
    agreed = paths_of(job.partition, policies, "policy")
    where = place_of(engine, address, placement, faults)
    yield from _events(job, data, budget, Log(), where, agreed, how)


def train(
    job: Job,
    data: Any,
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
) -> Result:
    """Train the job's model; it is (ε, δ)-differentially private for every record as its certificate states.

    data : {party: source}, each loaded by its own party (a path to CSV, Parquet, Arrow or NumPy; vfl.Csv(path,
        delimiter=";"); a pandas, Polars or Arrow table; an array or SciPy sparse matrix whose columns are in the
        partition's order; a function of these, called by the party; see parties.sources.opening.open_source), or one
        table of all columns, to simulate.
    engine : 'ray' (one actor per party and one for the coordinator) or 'inprocess'. Both give the same model for the
        same seeded noise.
    address : a Ray cluster; None uses the Ray that this process is connected to, or starts a local one.
    ledger : file in which the budget of the job's data set is kept.
    policies : {party: path of its owner's policy file}, read where the party runs (see parties.consent): it refuses the
        job before the data are opened, and keeps a book of the party's releases. A resumed run has the same policies.
    indexes : for a job with an id column; see `vfl.launch.alignment.align`, whose outcome is used if its files have not
        changed since. With an output, every party keeps the run's index in its own place, for `vfl resume`.
    cores : of each party, to align and to compute; their number changes no result. None divides this machine's among
        those that work at once; on a cluster that is named by its address a party takes its placement's party_cpus.
    placement : where on the cluster the actors run (vfl.job.placement); None pins each party to the node that offers
        'party:NAME', on a cluster that is named by its address.
    faults : what becomes of a party that is lost (vfl.job.faults); None waits for it.
    output : a new folder for model, certificate and the log from which a run that was cut off is resumed; the budget of
        a job without a data set is then kept in that folder too. None leaves nothing on disk.
    key : file of the Ed25519 key that signs the certificate. None signs what goes to `output` with this user's own key,
        made on first use (vfl.security.signatures), and leaves unsigned what goes nowhere.
    watch : called with the progress and outcome of the alignment if there is one, the plan, what was reserved, and
        every round, as they go by. None: what the plan warns of is raised as vfl.PrivacyWarning.
    environment : plain values kept in the log for `vfl resume`.

    From the second private run of a process on that no ledger counts, a vfl.PrivacyWarning states ε of all of them.

    Raises SpecificationError, DataError, BudgetError or FederationError (vfl.errors), before any release if they can.
    """
    path = ledger_path(job, ledger)
    agreed = paths_of(job.partition, policies, "policy")
    how = Arrangement(folders=paths_of(job.partition, indexes, "index"), cores=cores)
    where = place_of(engine, address, placement, faults)
    signer = None if key is None and output is None else signing_key(key)  # a run without one should fail here
    watch = watch or running.aloud
    if output is None:
        return arranged(job, data, how, where, ledger=path, policies=agreed, signer=signer, watch=watch)
    folder = fresh_folder(output)
    if path is None and job.dataset is None:
        path = str(folder.resolve() / checkpoint.LEDGER)
    budget = Budget(uuid.uuid4().hex, path)
    jobfile.write(job, folder / jobfile.NAME)
    kept = {**(environment or {}), "policies": agreed, "indexes": how.folders, "cores": cores}
    start = checkpoint.Start(job.digest, budget.run, budget.ledger, kept)
    how = replace(how, run=budget.run)
    with checkpoint.Checkpoint(folder, start) as log:
        try:
            result = _finished(
                _events(job, data, budget, Log(), where, agreed, how), _all(log, Stopwatch(folder), watch)
            )
        except (VflError, PrivacyWarning) as error:
            if not log.reserved:  # nothing began: leave nothing that looks like a run
                shutil.rmtree(folder)
                if isinstance(error, PartyLost):
                    error.add_note(
                        "nothing was charged and no run is kept: when the party is back, run or submit it again"
                    )
            else:
                _say_how_to_go_on(error, folder)
            raise
        result = _signed(result, signer)
        result.save(folder)
    return result


def arranged(
    job: Job,
    data: Any,
    how: Arrangement,
    where: cluster.Place | None,
    *,
    ledger: str | None,
    policies: Mapping[str, str],
    signer: SigningKey | None,
    watch: Watch | None,
    counted: bool = True,
) -> Result:
    """Train without an output, as `train` does, on the alignment that `how` says, at `place_of`; paths are absolute.

    counted : whether it is a run of its own in this process's total (vfl.launch.run.warnings), or part of one that is counted.
    """
    budget = Budget(uuid.uuid4().hex, ledger)
    return _signed(_finished(_events(job, data, budget, Log(), where, policies, how, counted=counted), watch), signer)


def resume(
    folder: str | Path,
    data: Any,
    *,
    engine: str = "ray",
    address: str | None = None,
    key: str | Path | None = None,
    watch: Watch | None = None,
    placement: Placement | None = None,
    faults: Faults | None = None,
) -> Result:
    """Go on with a run that was cut off, from what its log says was released; a finished one is only loaded.

    Releases that were charged and lost stay charged, so the run may end with fewer of them, never with more budget. It
    needs the same data and the same ledger; with seeded noise the model is the same to the bit.
    """
    folder = Path(folder)
    if (folder / MODEL).exists():
        return Result.load(folder)
    signer = signing_key(key)
    job, _ = jobfile.read(folder / jobfile.NAME)
    with checkpoint.Checkpoint(folder) as log:  # locked before it is read: another process may be adding to it
        start, budget, made = checkpoint.read(folder, job)
        kept = start.environment
        how = Arrangement(
            folders=kept.get("indexes") or {},
            cores=kept.get("cores"),
            run=budget.run,
            resumed=True,
            required=made.n_records is not None,
        )
        where = place_of(engine, address, placement, faults)
        events = _events(job, data, budget, made, where, kept.get("policies") or {}, how, counted=False)
        try:
            result = _finished(events, _all(log, Stopwatch(folder), watch))
        except VflError as error:
            _say_how_to_go_on(error, folder)
            raise
        result = _signed(result, signer)
        result.save(folder)
    return result


def _say_how_to_go_on(error: Exception, folder: Path) -> None:
    if isinstance(error, PartyLost | PlacementError | OutputError | LedgerError):
        error.add_note(f"what was released is kept; once the cause is mended, go on with: vfl resume {folder}")


def ledger_path(job: Job, ledger: str | Path | None) -> str | None:
    """Return the absolute path of a ledger; SpecificationError where the job names no data set to keep in it."""
    if ledger is not None and job.dataset is None:
        raise SpecificationError(
            "a ledger keeps the budget of data sets, and the job names none: set dataset in the job, or leave the ledger out"
        )
    return None if ledger is None else str(Path(ledger).resolve())


def place_of(
    engine: str, address: str | None, placement: Placement | None, faults: Faults | None
) -> cluster.Place | None:
    """Return where on which cluster a run takes place; None in this process."""
    if engine not in ENGINES:
        raise SpecificationError(f"unknown engine {engine!r}; give one of: {', '.join(ENGINES)}")
    if engine == "ray":
        cluster.check_address(address)
        return cluster.Place(address, placement or Placement(), faults or Faults())
    if address is not None:
        raise SpecificationError("an address names a Ray cluster: leave it out, or use engine='ray'")
    return None


def _events(
    job: Job,
    data: Any,
    budget: Budget,
    log: Log,
    where: cluster.Place | None,
    policies: Mapping[str, str],
    how: Arrangement,
    *,
    counted: bool = True,
) -> Iterator[Event | Result]:
    budget.check(job)
    sources = sources_of(job.partition, data, ids=job.ids)
    if job.id is not None and not how.required:
        check(job)
    if where is not None:
        events = cluster.run(job, sources, budget, log, place=where, policies=policies, how=how)
    else:
        from vfl.launch.engines import inprocess

        events = inprocess.run(job, sources, budget, log, policies=policies, how=how)
    witness = Witness(budget, log)
    with contextlib.closing(events) as watched:  # type: ignore[type-var]
        for event in watched:
            if counted:
                running.count(job, event)
            witness.note(event)
            if not isinstance(event, Made):
                yield witness.result(event) if isinstance(event, Outcome) else event


def _signed(result: Result, signer: SigningKey | None) -> Result:
    return result if signer is None else replace(result, certificate=result.certificate.signed(signer))


def _finished(events: Iterator[Event | Result], watch: Watch | None) -> Result:
    with contextlib.closing(events) as watched:  # type: ignore[type-var]
        for event in watched:
            if isinstance(event, Result):
                return event
            if watch is not None:
                watch(event)
    raise AssertionError("a run ended without its outcome")


def _all(*watches: Watch | checkpoint.Checkpoint | Stopwatch | None) -> Watch:
    def note(event: Event) -> None:
        for watch in watches:
            if watch is not None:
                watch(event)

    return note
