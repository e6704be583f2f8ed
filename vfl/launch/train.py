"""Functions `train`, `stream` and `resume`: train a job on its data and return the result."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.base.arguments import require
from vfl.base.losses import loss_of
from vfl.crypto.signatures import signing_key
from vfl.errors import LedgerError, OutputError, PartyLost, PlacementError, SpecificationError, VflError
from vfl.job import file as jobfile
from vfl.job.job import require_job
from vfl.job.site import Federated, plain_site, site_of_log
from vfl.job.start import Start
from vfl.launch.run import checkpoint
from vfl.launch.run.execution import Settings, events_of, finish, settings_of
from vfl.launch.run.folder import MODEL, TUNE, Stopwatch, fresh_folder
from vfl.launch.run.result import Result
from vfl.launch.run.warnings import PrivacyWarning, warn_of_plan
from vfl.launch.sites.open_site import Organisations, site_and_data
from vfl.planning.certificate import verify
from vfl.planning.certificate.issue import cost_behind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from vfl.job import Job
    from vfl.job.environment import Ledger
    from vfl.launch.run.execution import Event, Watch
    from vfl.launch.sites.open_site import Arrangement, At, OpenSite


def stream(
    job: Job,
    data: Any = None,
    *,
    at: At = None,
    ledger: str | Path | Ledger | None = None,
    warm_start: Result | str | Path | None = None,
) -> Iterator[Event | Result]:
    """Train as `train` does. Yield the plan, the reservation, an event per round, and finally the result.

    If the job aligns records, the progress and the outcome of the alignment come first.
    """
    job = starting_from(job, warm_start)
    yield from events_of(job, settings_of(job, data, at=at, ledger=ledger))


def train(
    job: Job,
    data: Any = None,
    *,
    at: At = None,
    ledger: str | Path | Ledger | None = None,
    output: str | Path | None = None,
    key: str | Path | None = None,
    watch: Watch | None = None,
    warm_start: Result | str | Path | None = None,
) -> Result:
    """Train the job's model. The model is (ε, δ)-differentially private for every record, as its certificate states.

    data : {party: source}, each loaded by its own party; or one table of all columns, to simulate the parties. A source is a
        path to CSV, Parquet, Arrow or NumPy; vfl.Csv(path, delimiter=";"); a pandas, Polars or Arrow table; an array or SciPy
        sparse matrix whose columns are in the partition's order; or a function that returns one of these and that the party
        calls (parties.sources.opening.open_source). vfl.Source(source, policy, index) adds the owner's policy file, and the
        folder of the party's index: the run uses the index of an earlier `vfl.align` if the files have not changed since.
        The environment that `Job.from_toml` returns stands for the data, site and ledger of the job file.
    at : site of the run: vfl.InProcess(...) or 'inprocess', vfl.Ray(...) or 'ray', or vfl.Federated(FILE). None keeps
        tables in memory in this process, and opens other sources in actors on a local Ray. With the same seeded noise, all
        sites give the same model.
    ledger : file that keeps the budget of the job's data set, or vfl.Ledger(...) for a file on a network file system.
    output : new folder for the model, the certificate and the log from which an interrupted run is resumed. A job without
        a data set keeps its budget there too. None writes nothing to disk.
    key : file of the Ed25519 key that signs the certificate. With an `output`, None signs with this user's own key, which is
        made on first use (vfl.crypto.signatures). Without an `output`, None leaves the certificate unsigned.
    watch : function that is called with each event: the progress and outcome of an alignment, the plan, the reservation, and
        every round. None issues the plan's warnings as vfl.PrivacyWarning.
    warm_start : a result, or the folder of a run, from whose model training starts instead of the constant model
        (`starting_from`). A released model costs no budget, and the charges of this job do not change.

    If a process makes several private runs without a ledger, a vfl.PrivacyWarning states the total ε of these runs.

    Raises SpecificationError, DataError, BudgetError or FederationError (vfl.errors), before any release if possible.
    """
    job = starting_from(job, warm_start)
    settings = settings_of(job, data, at=at, ledger=ledger)
    signer = None if key is None and output is None else signing_key(key)  # a missing key fails before any release
    watch = watch or warn_of_plan
    if output is None:
        return finish(job, settings, watches=(watch,), signer=signer)
    kept, folder, budget = kept_of(settings, at), fresh_folder(output), settings.budget
    if budget.ledger is None and job.dataset is None:
        budget = replace(budget, ledger=str(folder.resolve() / checkpoint.LEDGER))
    settings = replace(settings, budget=budget, arrangement=replace(settings.arrangement, run=budget.run))
    jobfile.write(job, folder / jobfile.NAME)
    with checkpoint.Checkpoint(folder, checkpoint.Start(job.digest, budget.run, budget.ledger, kept)) as log:
        try:
            result = finish(job, settings, watches=(log, Stopwatch(folder), watch), signer=signer)
        except (VflError, PrivacyWarning) as error:
            if log.reserved:
                _name_remedy(error, folder)
                raise
            shutil.rmtree(folder)  # the run has not begun: leave no folder that looks like a run
            if isinstance(error, PartyLost):
                error.add_note("nothing was charged and no run is kept: once the party is back, run the job again")
            raise
        result.save(folder)
    return result


def starting_from(job: Job, model: Result | str | Path | None) -> Job:
    """Return the job with a start from a result, or from the run in a folder; if `model` is None, return the job itself.

    A start costs no budget of this run. For records of both runs, the starting model's cost is added (`Start`). Its
    coefficients are in original units, so bounds may differ.

    Raises SpecificationError if the model has other columns or another loss, and OutputError if the model's certificate does
    not fit the model.
    """
    if model is None:
        return job
    require_job(job)
    fits = isinstance(model, Result | str | Path)
    require("warm_start", model, "a vfl.Result, or the folder of a run", fits=fits)
    result = model if isinstance(model, Result) else Result.load(model)
    result.require_unaltered("training cannot start from this model")
    own, other = loss_of(job.loss).name, loss_of(result.job.loss).name
    if own != other:
        raise SpecificationError(
            f"the model to start from was trained with {other} loss, and the job has {own} loss: "
            "start from a model of the job's loss"
        )
    certificate = result.certificate
    report = verify(certificate, model=result.document(), findings=result.told())
    wrong = "; ".join(str(check) for check in report.failed if check.name != "signature")  # a result may be unsigned
    if certificate.start != ({} if result.job.start is None else result.job.start.stated()):
        wrong = wrong or "its certificate and its job name different starting models"
    if wrong:
        raise OutputError(f"training cannot start from this model, since its certificate does not hold: {wrong}")
    return replace(
        job,
        start=Start(
            model=certificate.model_digest,
            coefficients=result.original,
            dataset=certificate.dataset or None,
            **(cost_behind(certificate) if certificate.private else {}),
        ),
    )


def kept_of(settings: Settings, at: At) -> dict[str, Any]:
    """Return the settings of a run that the run's log keeps, besides the budget.

    A federation that was passed as an open object has no file from which `vfl resume` could read it again.
    """
    kept: dict[str, Any] = {"policies": settings.arrangement.policies, "indexes": settings.arrangement.folders}
    kept |= {"sources": settings.data} if isinstance(settings.site, Organisations) else settings.kept
    kept["allow_network_file_system"] = settings.budget.allow_network_file_system
    site = at if isinstance(at, Federated) else settings.site
    return kept if isinstance(site, Organisations) else kept | {"at": plain_site(site)}


def of_log(kept: Mapping[str, Any], parties: Collection[str], data: Any, at: At) -> tuple[OpenSite, Any, Arrangement]:
    """Return site, data and arrangement of a resumed run: those in the run's log, unless the arguments replace them."""
    site, data, own = site_and_data(parties, data, site_of_log(kept) if at is None else at)
    policies, folders = {**(kept.get("policies") or {}), **own.policies}, {**(kept.get("indexes") or {}), **own.folders}
    return site, data, replace(own, policies=policies, folders=folders)


def resume(
    folder: str | Path, data: Any = None, *, at: At = None, key: str | Path | None = None, watch: Watch | None = None
) -> Result:
    """Continue an interrupted run from the releases in its log. For a finished run, load the result.

    Releases that were charged and lost stay charged: the run may end with fewer releases, but never uses more budget. The
    data and the ledger must be the same as before. With seeded noise the model is the same to the bit.

    at : as for `train`; None takes the site at which the run began. The run keeps its policies and index folders, unless `data`
        names others.
    """
    require("folder", folder, "the path of a run", fits=isinstance(folder, str | Path))
    folder = Path(folder)
    if (folder / MODEL).exists():
        return Result.load(folder)
    if (folder / TUNE).exists():
        raise OutputError(
            f"{str(folder)!r} holds a tuning run: continue it with vfl resume, or with vfl.apps.tuning.run.resume"
        )
    signer = signing_key(key)
    job, _ = jobfile.read(folder / jobfile.NAME)
    with checkpoint.Checkpoint(folder) as log:  # lock it before reading: another process may be adding to it
        start, budget, made = checkpoint.read(folder, job)
        site, data, arrangement = of_log(start.environment, job.partition.parties, data, at)
        arrangement = replace(arrangement, run=budget.run, resumed=True, required=made.n_records is not None)
        settings = Settings(budget=budget, site=site, data=data, arrangement=arrangement, log=made, counted=False)
        watches = (log, Stopwatch(folder), *(() if watch is None else (watch,)))
        try:
            result = finish(job, settings, watches=watches, signer=signer)
        except VflError as error:
            _name_remedy(error, folder)
            raise
        result.save(folder)
    return result


def _name_remedy(error: Exception, folder: Path) -> None:
    if isinstance(error, PartyLost | PlacementError | OutputError | LedgerError):
        error.add_note(f"the run keeps its releases; once the cause is fixed, continue with: vfl resume {folder}")
