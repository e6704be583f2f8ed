"""Functions `tune` and `resume`: train candidate jobs and release the best one.

Order of the steps of a tuning run; the process may end after any step:

    check all candidates; reserve the whole charge; charge it, before the first query of the first trial
    train and score every candidate, each with fresh noise; keep the outcomes sealed
    settle the reservation; draw the random numbers
    write the winner into one sealed file; rename the file, which releases the winner
    write model, certificate, findings and job from that file; remove all sealed files

An interrupted trial (training of one candidate) starts again with fresh noise, since no value of the trial was released. A
tuning run that was interrupted before the rename draws again; after the rename it only finishes the files. The set of
considered candidates is never written down.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.charging.budget import Budget, Reserved
from coordinator.coordinator import Outcome
from vfl.apps.tuning.candidates import INCLUSION, Tuning, tuning_of
from vfl.apps.tuning.sealed import FOLDER, Trial, TrialOutcomes, chosen
from vfl.base import markup
from vfl.base.documents import read_json
from vfl.base.writing import write_whole
from vfl.crypto.signatures import signing_key
from vfl.errors import BudgetError, DataError, FederationError, LedgerError, OutputError, SpecificationError, VflError
from vfl.job import file as jobfile
from vfl.job.site import InProcess, Ray
from vfl.launch.run import checkpoint
from vfl.launch.run.execution import Settings, asked_sources, new_budget, running
from vfl.launch.run.folder import CERTIFICATE, FINDINGS, MODEL, TUNE, fresh_folder
from vfl.launch.run.model import numbers
from vfl.launch.run.result import Result, told
from vfl.launch.run.warnings import count_releases, warn_of_plan
from vfl.launch.sites.connection import connected
from vfl.launch.sites.open_site import require_fit, site_and_data
from vfl.launch.sources import of_environment
from vfl.launch.train import kept_of, of_log
from vfl.measures.estimates import Estimate, Findings
from vfl.measures.evaluations import NOISED
from vfl.measures.score import NAME as SCORE
from vfl.measures.score import lower_is_better, worst
from vfl.planning import Plan
from vfl.planning import check as check_job
from vfl.planning import plan as make_plan
from vfl.planning.certificate.issue import certify_selection
from vfl.privacy.events import ReleaseKey
from vfl.privacy.ledger import Accounting, DatasetBudget, FitBudget
from vfl.privacy.ledger.composition import epsilon_of as ledger_epsilon_of
from vfl.privacy.ledger.composition import plan_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vfl.apps.tuning.candidates import Change
    from vfl.crypto.signatures import SigningKey
    from vfl.job import Job
    from vfl.job.environment import Ledger
    from vfl.launch.sites.open_site import Arrangement, At, OpenSite
    from vfl.planning.certificate import Certificate
    from vfl.privacy.ledger import Reservation, Statement

    Watch = Callable[[object], None]

FORMAT = 1
NAME = TUNE
WINNER = "winner.json"
KEYS = (ReleaseKey(0, 0), ReleaseKey(0, 1))
"""Keys of the two charges of a tuning run: for the training records and for the held-out records."""
MOST_LOSSES = "skip"


@dataclass(frozen=True, slots=True)
class Begun:
    """Event: a trial is about to make its first query. Every candidate has a trial, so the event does not reveal the winner.

    number : number of the trial, from 1. of : number of candidates. plan : plan of the candidate in this trial.
    """

    number: int
    of: int
    plan: Plan


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tuned:
    """Outcome of a tuning run.

    result : the winner's model and its certificate. candidate : number of the winner, from 1.
    score : the winner's score, which is optimistic, since the best score wins; None if the winner's training failed.
    tuning : candidates, score and inclusion.
    """

    result: Result
    candidate: int
    score: Estimate | None
    tuning: Tuning

    @property
    def certificate(self) -> Certificate:
        """Certificate of the whole tuning run."""
        return self.result.certificate

    def _lines(self) -> list[str]:
        said = "its training failed" if self.score is None else "its score is optimistic, since the best wins"
        return [f"candidate {self.candidate} of {len(self.tuning.jobs)} was chosen: {said}"]

    def __repr__(self) -> str:
        return "\n".join([*self._lines(), repr(self.result)])

    def _repr_html_(self) -> str:
        return markup.whole(*map(markup.line, self._lines()), self.result._repr_html_())


def tune(
    job: Job,
    candidates: Sequence[Change | Job],
    data: Any = None,
    *,
    score: str | None = None,
    inclusion: int = INCLUSION,
    n_records: int | None = None,
    at: At = None,
    ledger: str | Path | Ledger | None = None,
    output: str | Path | None = None,
    key: str | Path | None = None,
    watch: Watch | None = None,
) -> Tuned:
    """Train all candidates and release the best. Model and score together are (ε, δ)-DP for every record, as the job asks.

    Every candidate is trained once, on the training records, with an equal share of the budget, and gets one noisy score on the
    held-out records. Then a secret draw leaves each candidate out with probability 1/(inclusion + 1), and the best of the
    others is released. The losers and the number of candidates left out stay secret (docs/tuning.md). The whole charge is made
    before the first query and is never refunded after that query. A party's own ledger counts all trials by composition.

    candidates : changes to the job, {"penalty.strength": 1e-3}, or jobs; {} is the job itself. Candidates may differ in loss,
        penalty, solver, intercept, the smoothness of privacy, and products of columns: {"columns.both.kind": "dropped"}. The
        first candidate is released if the draw leaves out all candidates.
    score : 'loss' or 'accuracy' with classes, 'mae' or 'mse' without, or 'deviance' for losses of counts and amounts; None is
        'loss' or 'mse'.
    inclusion : a whole number. A larger number considers the best candidate with higher probability, but adds noise to trials.
    n_records : n, to check all plans before any data are opened. If privacy.delta is left out, δ = 1/n². In that case
        n_records=None opens the data and aligns the records to find n, before anything is charged.
    watch : callback for a `Begun` event per trial; None issues the plan's warnings as vfl.PrivacyWarning.
    Other parameters : as for `vfl.train`. With an output folder, `resume` can continue an interrupted tuning run.

    Raises SpecificationError, DataError, BudgetError or FederationError (vfl.errors), before anything is charged if possible.
    """
    tuning = tuning_of(job, candidates, score=score, inclusion=inclusion)
    first = tuning.jobs[0]
    data, at, ledger, record = of_environment(first, data, at, ledger)
    site, data, arrangement = site_and_data(first.partition.parties, data, at)
    budget = new_budget(first, ledger)
    for each in tuning.jobs:
        budget.check(each)
    budget.find()
    settings = replace(_settings_of(first, site, data, arrangement), kept=record)
    for each in tuning.jobs:
        check_job(each)
    if tuning.delta is None:
        tuning = tuning.with_delta(n_records or _found(first, settings))
    for each in tuning.trials:
        check_job(each)
    if n_records is not None:
        tuning.plans(n_records)
    signer = None if key is None and output is None else signing_key(key)
    watch = watch or _warn
    if output is None:
        account = TuningBudget(tuning, budget)
        account.reserve()
        return _Tune(tuning, settings, account, TrialOutcomes(None), watch).run(signer, None)
    folder = fresh_folder(output)
    if budget.ledger is None:
        budget = replace(budget, ledger=str(folder.resolve() / checkpoint.LEDGER))
    account = TuningBudget(tuning, budget)
    kept = kept_of(replace(settings, budget=budget), at)
    state = {"run": budget.run, "ledger": budget.ledger, "environment": kept, **tuning.to_dict()}
    write_whole(folder / NAME, json.dumps({"format": FORMAT, **state}, indent=1, ensure_ascii=False))
    try:
        account.reserve()
        return _Tune(tuning, settings, account, TrialOutcomes(folder), watch).run(signer, folder)
    except VflError as error:
        _name_remedy(error, folder, account)
        raise


def resume(
    folder: str | Path, data: Any = None, *, at: At = None, key: str | Path | None = None, watch: Watch | None = None
) -> Tuned:
    """Continue an interrupted tuning run. Nothing is charged again, and finished trials are not repeated.

    If the winner was already released, no new draw is made: only the files are finished.
    """
    folder = Path(folder)
    tuning, run, ledger, kept = read_state(folder)
    if (folder / WINNER).exists():
        _unpack(folder)
    if (folder / MODEL).exists():
        TrialOutcomes(folder).remove()
        result = Result.load(folder)
        number = [job.digest for job in tuning.trials].index(result.job.digest) + 1
        found = result.findings.get(SCORE)
        return Tuned(result, number, found.measures[tuning.score] if found else None, tuning)
    signer = signing_key(key)
    budget = Budget(run, ledger, allow_network_file_system=bool(kept.get("allow_network_file_system")))
    site, data, arrangement = of_log(kept, tuning.jobs[0].partition.parties, data, at)
    settings = _settings_of(tuning.trials[0], site, data, arrangement)
    account = TuningBudget(tuning, budget)
    try:
        account.resume()
        return _Tune(tuning, settings, account, TrialOutcomes(folder), watch or _warn).run(signer, folder)
    except VflError as error:
        _name_remedy(error, folder, account, resumed=True)
        raise


def is_tune(folder: Path) -> bool:
    """Return True if the folder holds a tuning run, finished or not."""
    return (folder / NAME).exists()


def read_state(folder: Path) -> tuple[Tuning, str, str | None, dict[str, Any]]:
    """Return what a folder stores of a tuning run: candidates, run id, ledger and original environment."""
    try:
        plain = read_json(folder / NAME)
        if plain["format"] != FORMAT:
            raise OutputError(f"this vfl reads tunes of format {FORMAT}; {str(folder)!r} holds another")
        ledger = checkpoint.ledger_of(plain["ledger"], folder)
        return Tuning.from_dict(plain), plain["run"], ledger, plain["environment"]
    except OSError as error:
        raise OutputError(f"there is no tune in {str(folder)!r}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{str(folder / NAME)!r} is damaged: {error}") from error


class TuningBudget:
    """Privacy account of one tuning run, which is charged in full, once, before the first query.

    charged : True as soon as the charge may have been made.
    """

    def __init__(self, tuning: Tuning, budget: Budget) -> None:
        self._tuning = tuning
        self.budget = budget
        self.charged = False
        self._reservation: Reservation | None = None

    @property
    def _held(self) -> Reservation:
        if self._reservation is None:
            raise BudgetError("the tuning run has reserved nothing")
        return self._reservation

    @property
    def account(self) -> str:
        """Return the ledger account that is charged."""
        return self.budget.account(self._tuning.jobs[0])

    def reserve(self) -> None:
        """Reserve the whole charge. Raises BudgetExceeded if the data set's budget is too small for the charge."""
        events, delta = self._tuning.events, float(self._tuning.delta or 0.0)
        ledger = self.budget.open()
        if ledger is None:
            account: Any = FitBudget(self._tuning.epsilon, delta)
        else:
            if self._tuning.jobs[0].dataset is None:
                # A ledger adds up μ², by which a selection costs more than by its exact privacy curve: set the cap by μ².
                cost = ledger_epsilon_of(Accounting.GDP, plan_cost(events, Accounting.GDP), delta)
                ledger.set_cap(self.account, epsilon=cost * (1.0 + 1e-9), delta=delta)
            account = DatasetBudget(ledger, self.account, self._tuning.jobs[0].unit)
        self._reservation = account.reserve(events, job=self._tuning.digest, run=self.budget.run)

    def resume(self) -> None:
        """Continue the reservation that an earlier process made; if there is none, make a reservation."""
        ledger = self.budget.open()
        if ledger is None:
            raise OutputError("a tuning run without an output folder cannot be resumed")
        balances = ledger.show() if ledger.path.exists() else ()
        known = next((run for balance in balances for run in balance.runs if run.run == self.budget.run), None)
        if known is None or known.status == "refunded":
            self.reserve()
            return
        self.charged = known.releases > 0
        self._reservation = DatasetBudget(ledger, self.account).resume(self.budget.run, job=self._tuning.digest)

    def charge(self) -> None:
        """Charge the whole tuning run. A repeated call changes nothing."""
        self.charged = True
        self._held.charge([(key, event) for key, (event, _) in zip(KEYS, self._tuning.events, strict=True)])

    def refund(self) -> None:
        """Cancel the reservation if nothing was charged."""
        if self._reservation is not None and not self.charged:
            with contextlib.suppress(VflError):
                self._reservation.refund()

    def settle(self) -> Statement:
        """Close the reservation. A repeated call returns the same statement."""
        return self.budget.settle(self._tuning.jobs[0], self._held, stopped_early=False)


@dataclass(slots=True, eq=False, repr=False)
class _Tune:
    _tuning: Tuning
    _settings: Settings
    _account: TuningBudget
    _sealed: TrialOutcomes
    _watch: Watch
    _plans: tuple[Plan, ...] = ()
    _aligned: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self, signer: SigningKey | None, folder: Path | None) -> Tuned:
        """Run the remaining trials, then release the winner."""
        tuning, job = self._tuning, self._tuning.trials[0]
        try:
            left = [number for number in range(len(tuning.jobs)) if not self._sealed.has(number)]
            remaining = [tuning.trials[number] for number in left]  # may raise, so look them up before the charge
            sources = asked_sources(job, self._settings, *remaining) if left else {}
            self._sealed.open()
            with contextlib.ExitStack() as stack:
                if left and isinstance(self._settings.site, Ray):  # one connection for all trials
                    stack.enter_context(connected(len(job.partition.parties) + 1, self._settings.site.address))
                for number in left:
                    trial = self._trial(number, sources, again=number != left[0], last=number == left[-1])
                    self._sealed.keep(number, trial)
        except BaseException:
            self._account.refund()
            raise
        statement = self._account.settle()
        trials = [self._sealed.read(number) for number in range(len(tuning.jobs))]
        sign = 1.0 if lower_is_better(tuning.score) else -1.0
        winner = chosen([sign * trial.score for trial in trials], tuning.inclusion)
        tuned = self._released(winner, trials, statement, signer)
        if folder is not None:
            _commit(folder, tuned.result)
        for trial in trials:
            trial.wipe()
        self._sealed.remove()
        return tuned

    def _known_records(self) -> int | None:
        """Return n, which an earlier process stored with its finished trials; None if no trial is finished."""
        finished = next((number for number in range(len(self._tuning.jobs)) if self._sealed.has(number)), None)
        if finished is None:
            return None
        trial = self._sealed.read(finished)
        trial.wipe()
        return trial.n_records

    def _trial(self, number: int, sources: Mapping[str, Any], *, again: bool, last: bool) -> Trial:
        """Train and score one candidate. If training fails on the data, return the worst score and a fixed public model."""
        job, arrangement = self._tuning.trials[number], self._settings.arrangement
        if job.id is not None:
            arrangement = replace(arrangement, run=self._aligned, resumed=again, required=again, last=last)
        settings = replace(self._settings, budget=Budget(uuid.uuid4().hex, sealed=True), arrangement=arrangement)
        flags: dict[str, None] = {}
        begun: Plan | None = None
        try:
            with running(job, sources, settings) as events:
                for event in events:
                    if isinstance(event, Plan):
                        self._begin(event.n_records)
                        begun = event
                        self._watch(Begun(number + 1, len(self._tuning.jobs), event))
                    elif isinstance(event, Reserved):
                        flags |= dict.fromkeys(event.flags)
                    elif isinstance(event, Outcome):
                        return self._outcome(event, tuple(flags))
        except (BudgetError, FederationError, OutputError, LedgerError):
            raise  # a participant, a file or an account failed: this does not depend on the data
        except (VflError, ArithmeticError, ValueError):
            if begun is None:
                raise
        if begun is None:
            raise FederationError("a trial ended before its plan was made: resume the tuning run")
        return self._failed(begun, tuple(flags))

    def _begin(self, n_records: int) -> None:
        """Check every candidate's plan for n, then charge the whole tuning run; later calls only compare n."""
        known = self._plans[0].n_records if self._plans else self._known_records()
        if known not in (None, n_records):
            raise DataError(
                "the parties hold a different number of records from the first trial: start a new tuning run"
            )
        if self._plans:
            return
        plans = self._tuning.plans(n_records)
        if not self._account.charged:  # count first, since a filter may turn the warning into an error
            count_releases(self._tuning.jobs[0], self._tuning.events, float(self._tuning.delta or 0.0))
        self._account.charge()
        self._plans = plans

    def _outcome(self, outcome: Outcome, flags: tuple[str, ...]) -> Trial:
        measures = outcome.findings[SCORE].measures if SCORE in outcome.findings else {}
        score = measures.get(self._tuning.score)
        if score is None or not math.isfinite(score.value) or not np.isfinite(outcome.w).all():
            return self._failed(outcome.plan, flags)
        trial = Trial.of(outcome.plan, (score.value, score.error), outcome.w, flags, outcome.knots)
        if outcome.w.flags.writeable:
            outcome.w[:] = 0.0
        return trial

    def _failed(self, plan: Plan, flags: tuple[str, ...]) -> Trial:
        """Return the outcome of a trial that failed: the worst score, and the model that predicts 0 for all records."""
        w = np.zeros(plan.problem.layout.n_coordinates)
        return Trial.of(plan, (worst(self._tuning.score), 0.0), w, flags, {})

    def _released(self, winner: int, trials: Sequence[Trial], statement: Statement, signer: SigningKey | None) -> Tuned:
        tuning, trial = self._tuning, trials[winner]
        plan = make_plan(tuning.trials[winner], trial.n_records)
        score = Estimate(trial.score, trial.error) if math.isfinite(trial.score) else None
        measured = plan.n_records - plan.problem.n_records
        note = f"{NOISED}{getattr(plan.evaluations[0], 'clamped', '')}"
        findings = {} if score is None else {SCORE: Findings({tuning.score: score}, measured, note)}
        w, coordinates = trial.w.copy(), plan.problem.layout.names
        certificate = certify_selection(
            plan,
            statement,
            releases=tuning.events,
            epsilon=tuning.epsilon,
            candidates=[job.digest for job in tuning.trials],
            score=tuning.score,
            inclusion=tuning.inclusion,
            model=numbers(w, coordinates),
            findings=told(findings),
            run=self._account.budget.run,
            account=self._account.account,
            flags=tuple(dict.fromkeys((*tuning.flags, *(flag for each in trials for flag in each.flags)))),
            knots=trial.knots,
        )
        if signer is not None:
            certificate = certificate.signed(signer)
        result = Result(plan.job, certificate, w, coordinates, findings, knots=trial.knots)
        return Tuned(result, winner + 1, score, tuning)


def _commit(folder: Path, result: Result) -> None:
    """Release the winner by renaming one file; all other files are then written from that file."""
    documents = {
        jobfile.NAME: result.job.to_toml(),
        CERTIFICATE: result.certificate.to_json(),
        MODEL: json.dumps(result.document(), indent=2, ensure_ascii=False),
    }
    if result.findings:
        documents[FINDINGS] = json.dumps(result.told(), indent=2, ensure_ascii=False)
    staged = folder / FOLDER / WINNER
    write_whole(staged, json.dumps(documents).encode())
    try:
        staged.replace(folder / WINNER)
    except OSError as error:
        raise OutputError(f"cannot write {str(folder / WINNER)!r}: {error.strerror}") from error
    _unpack(folder)


def _unpack(folder: Path) -> None:
    """Write the files of the released winner; the model's file comes last."""
    try:
        documents = read_json(folder / WINNER)
    except (OSError, ValueError) as error:
        raise OutputError(f"{str(folder / WINNER)!r} is damaged: {error}") from error
    for name in sorted(documents, key=lambda name: name == MODEL):
        write_whole(folder / name, documents[name])
    (folder / WINNER).unlink()


def _found(job: Job, settings: Settings) -> int:
    """Find n as a run of the job does: check the parties' policies and align the records, but reserve nothing."""
    counting = replace(settings, budget=Budget(uuid.uuid4().hex, sealed=True, counts=True))
    with running(job, asked_sources(job, settings), counting) as events:
        return next(event.n_records for event in events if isinstance(event, Plan))


def _settings_of(job: Job, site: OpenSite, data: Any, arrangement: Arrangement) -> Settings:
    """Return the settings of the trials, which charge no ledger themselves. Raises for a site that cannot run them."""
    require_fit(site, job)
    if not isinstance(site, InProcess) and site.faults.on_party_lost == MOST_LOSSES:
        raise SpecificationError(
            "tuning cannot continue without a party, since candidates would be trained on different columns: set [faults] "
            "on_party_lost to 'wait' or 'abort'"
        )
    budget = new_budget(replace(job, dataset=None), None)
    return Settings(budget=budget, site=site, data=data, arrangement=arrangement)


def _warn(event: object) -> None:
    if isinstance(event, Begun) and event.number == 1:
        warn_of_plan(event.plan)


def _name_remedy(error: Exception, folder: Path, account: TuningBudget, *, resumed: bool = False) -> None:
    if account.charged or resumed:  # an earlier process may have charged and finished trials
        charged = "the whole tuning run is charged; " if account.charged else ""
        error.add_note(f"{charged}once the cause is fixed, continue with: vfl resume {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)  # nothing was started: leave no folder that looks like a tuning run
