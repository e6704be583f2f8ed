"""A tuning run in this process: its charge, its secrets, its failures, its certificate."""

from __future__ import annotations

import json
import logging
import stat

import numpy as np
import pytest
from sklearn.metrics import mean_poisson_deviance

import vfl
from coordinator.executor import Executor
from coordinator.rounds import Round
from tests.tuning.setting import CANDIDATES, job, table
from vfl.apps.tuning import run as tuning_run
from vfl.apps.tuning.candidates import tuning_of
from vfl.apps.tuning.forecast import TunePlan
from vfl.apps.tuning.run import Begun, resume, tune
from vfl.apps.tuning.sealed import TrialOutcomes
from vfl.errors import (
    BudgetExceeded,
    ConsentRefused,
    DataError,
    LedgerError,
    OutputError,
    PartyLost,
    PrivacyError,
    SpecificationError,
)
from vfl.job.flags import NOT_PRIVATE
from vfl.job.site import Faults
from vfl.launch.run.verification import verify_run
from vfl.launch.sites import inprocess
from vfl.privacy.accountants import SelectionAccountant, ZCdpAccountant
from vfl.privacy.events import Selection, bare
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.ledger.composition import Accounting, plan_cost
from vfl.privacy.private_selection import epsilon_of
from vfl.privacy.spending import UNIT_BITS


def quiet(event):
    """Watch without a warning."""


def tuned(base=None, data=None, **options):
    return tune(base or job(), CANDIDATES, table() if data is None else data, watch=quiet, **options)


def ledger_of(path, epsilon=10.0):
    ledger = vfl.Ledger(path).open()
    ledger.set_cap("small", epsilon=epsilon, delta=1e-6)
    return ledger


def charges(ledger):
    entries = json.loads(ledger.export())["entries"]
    return [entry["body"]["event"]["type"] for entry in entries if entry["kind"] == "charge"]


def test_the_winner_is_released_with_its_score_and_a_certificate():
    found = tuned()
    certificate = found.certificate
    assert found.candidate in (1, 2, 3)
    assert found.result.job.digest == found.tuning.trials[found.candidate - 1].digest
    assert certificate.private
    assert certificate.epsilon <= 1.0
    assert certificate.accounting == "selection"
    assert certificate.selection["winner"] == found.result.job.digest
    assert certificate.selection["candidates"] == [trial.digest for trial in found.tuning.trials]
    assert certificate.releases == 2
    assert set(found.result.findings) == {"score"}
    assert 0.0 < found.score.error < 1.0
    assert "losers included" in certificate.who_sees_what["coordinator"]
    assert "candidates by loss" in str(certificate)
    assert "was chosen" in repr(found)
    assert repr(found).count(str(found.score)) == 1
    assert "was chosen" in found._repr_html_()
    found.result.predict(table()[["a", "b", "c", "d"]])


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({}, "accuracy"),
        ({"loss": "squared", "bounds": {"*": (-1.0, 1.0), "y": (0.0, 1.0)}}, "mae"),
        ({"loss": "squared", "bounds": {"*": (-1.0, 1.0), "y": (0.0, 1.0)}}, "mse"),
        ({"loss": "poisson", "bounds": {"*": (-1.0, 1.0), "y": (0.0, 1.0)}}, "deviance"),
    ],
)
def test_every_score(changes, score):
    found = tuned(job(privacy=vfl.Privacy(epsilon=30.0, delta=1e-6), **changes), score=score)
    assert set(found.result.findings["score"].measures) == {score}
    exact = found.result.predict(table()[["a", "b", "c", "d"]])
    error = np.asarray(exact, float) - table()["y"].to_numpy()
    expected = {"accuracy": np.mean(error == 0), "mae": np.mean(abs(error)), "mse": np.mean(error**2)}
    if score == "deviance":
        expected[score] = mean_poisson_deviance(table()["y"], exact)
    assert found.score.value == pytest.approx(expected[score], abs=0.15)


@pytest.mark.parametrize("id", [None, "id"])
def test_a_choice_of_pairs_hands_on_the_winners_knots(id, tmp_path, monkeypatch):  # noqa: A002
    """The first process ends after one trial."""
    rng = np.random.default_rng(3)
    data = table(2000).assign(id=np.arange(2000))
    data["y"] = (4.0 * np.sign(data["a"] * data["b"]) + rng.logistic(size=2000) > 0).astype(int)
    sources = {"bank": data[["id", "a", "b", "y"]], "telco": data[["id", "c", "d"]].iloc[:: -1 if id else 1]}
    base = job(
        partition=vfl.FeaturePartition({"bank": ["a", "b", "ab"], "telco": ["c", "d"]}, label=("bank", "y")),
        columns={"*": vfl.Curve(), "ab": vfl.columns.Pair("a", "b")},
        privacy=vfl.Privacy(epsilon=8.0, delta=1e-6, noise=vfl.SeededNoise(5)),
        id=id,
    )
    keep = TrialOutcomes.keep

    def stopped(self, number, trial):
        keep(self, number, trial)
        monkeypatch.setattr(TrialOutcomes, "keep", keep)
        raise KeyboardInterrupt

    monkeypatch.setattr(TrialOutcomes, "keep", stopped)
    monkeypatch.setattr(tuning_run, "chosen", lambda scores, _: int(np.argmin(scores)))
    choice = [{"columns.ab.kind": "dropped"}, {}]
    with pytest.raises(KeyboardInterrupt):
        tune(base, choice, sources, watch=quiet, at="inprocess", output=tmp_path / "tune")
    found = resume(tmp_path / "tune", sources, watch=quiet)
    assert found.candidate == 2
    assert found.certificate.epsilon <= 8.0
    assert list(found.result.knots) == ["a", "b", "c", "d"]
    assert {c: tuple(own) for c, own in found.certificate.knots.items()} == found.result.knots
    assert any(found.result.knots.values())
    report = verify_run(tmp_path / "tune")
    assert report.ok, str(report)
    again = vfl.Result.load(tmp_path / "tune")
    assert (again.decision_function(data) == found.result.decision_function(data)).all()
    assert (found.result.predict(data) == data["y"]).mean() > 0.85


def test_the_whole_is_charged_once_and_before_the_first_query(tmp_path, monkeypatch):
    ledger = ledger_of(tmp_path / "budget.db")
    asked = []
    ask = Executor.__call__

    def spied(self, query):
        asked.append(charges(ledger))
        return ask(self, query)

    monkeypatch.setattr(Executor, "__call__", spied)
    found = tuned(job(dataset="small"), ledger=tmp_path / "budget.db", output=tmp_path / "run")
    assert len(asked) > 10
    assert asked == [["selection", "selection"]] * len(asked)
    assert charges(ledger) == ["selection", "selection"]
    (balance,) = ledger.show()
    assert balance.runs[0].status == "settled"
    cost = plan_cost(found.tuning.events, Accounting.GDP)
    assert ledger.replay("small", SelectionAccountant()).epsilon(1e-6) == found.certificate.epsilon
    assert ledger.replay("small", ZCdpAccountant()).rho == pytest.approx(cost / 2**UNIT_BITS / 2)
    assert balance.spent > found.certificate.epsilon  # μ² adds up to more than the curve
    ledger.verify()
    report = verify_run(tmp_path / "run", ledger=tmp_path / "budget.db")
    assert report.ok, report


def test_a_second_tune_adds_up_with_the_first_and_the_cap_stops_it(tmp_path):
    ledger = ledger_of(tmp_path / "budget.db", epsilon=1.7)
    tuned(job(dataset="small"), ledger=tmp_path / "budget.db")
    head = ledger.head()
    with pytest.raises(BudgetExceeded, match="the plan asks for"):
        tuned(job(dataset="small"), ledger=tmp_path / "budget.db", output=tmp_path / "run")
    assert ledger.head() == head
    assert not (tmp_path / "run").exists()
    assert BudgetExceeded("").exit_code == 4


def test_refusals_charge_nothing(tmp_path):
    ledger = ledger_of(tmp_path / "budget.db")
    head = ledger.head()
    named = {"ledger": tmp_path / "budget.db", "at": "inprocess", "watch": quiet}
    data = table()
    with pytest.raises(SpecificationError, match="candidate 2 plans"):
        tune(job(dataset="small"), [{}, {"solver": {"kind": "GCD"}}], data, **named)
    assert charges(ledger) == []
    with pytest.raises(SpecificationError, match="names none"):
        tune(job(), CANDIDATES, data, **named)
    with pytest.raises(SpecificationError, match="but no ledger"):
        tuned(job(dataset="small"))
    with pytest.raises(SpecificationError, match="'wait' or 'abort'"):
        tuned(at=vfl.Ray(faults=Faults(on_party_lost="skip")))
    with pytest.raises(DataError):
        tune(job(dataset="small"), CANDIDATES, data.assign(y=7), **named)
    assert charges(ledger) == []
    assert {run.status for balance in ledger.show() for run in balance.runs} <= {"refunded"}
    assert head.seq <= ledger.head().seq


TAKEN_FROM_DATA = {"privacy": {"smoothness": "data"}, "penalty.strength": 0.2}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("wins", [True, False])
def test_a_candidate_without_a_guarantee_leaves_every_winner_without_one(tmp_path, monkeypatch, first, wins):
    # The choice compares the winner with a score that rests on uncharged moments, whether or not that candidate wins.
    candidates = [TAKEN_FROM_DATA, {}] if first else [{}, TAKEN_FROM_DATA]
    flagged = 0 if first else 1
    monkeypatch.setattr(tuning_run, "chosen", lambda scores, inclusion: flagged if wins else 1 - flagged)
    found = tune(job(), candidates, table(), at="inprocess", watch=quiet, output=tmp_path / "run")
    assert not found.certificate.private
    assert any(flag.startswith(NOT_PRIVATE) and "smoothness" in flag for flag in found.certificate.flags)
    assert "NOT" in found.certificate.who_sees_what["outsider"]
    report = verify_run(tmp_path / "run")
    assert report.ok, report
    planned = TunePlan(found.tuning, 400)
    assert planned.to_dict()["flags"]
    assert NOT_PRIVATE in str(planned)


@pytest.mark.parametrize("refused", [TAKEN_FROM_DATA, {}])
def test_every_candidate_is_checked_before_anything_is_charged(tmp_path, refused):
    # The ledger refuses a candidate without a guarantee, and an owner's policy one that it does not list.
    ledger = ledger_of(tmp_path / "budget.db")
    spec = job(dataset="small")
    first = tuning_of(spec, [{"penalty.strength": 0.05}, refused]).with_delta(400).trials[0]
    text = f'format = 1\njobs = ["{first.digest}"]\n[total]\nepsilon = 99\ndelta = 1e-3\n'
    (tmp_path / "bank.toml").write_text(text)
    with pytest.raises((PrivacyError, ConsentRefused)):
        tune(
            spec,
            [{"penalty.strength": 0.05}, refused],
            vfl.Source(table(), policy={"bank": tmp_path / "bank.toml"}),
            watch=quiet,
            ledger=tmp_path / "budget.db",
        )
    assert charges(ledger) == []
    (balance,) = ledger.show()
    assert balance.spent == 0.0


def test_all_trials_are_made_and_their_rounds_hold_no_release(monkeypatch):
    seen, run = [], inprocess.run

    def spied(*args, **options):
        for event in run(*args, **options):
            seen.append(event)
            yield event

    monkeypatch.setattr(inprocess, "run", spied)
    begun = []
    tune(job(), CANDIDATES, table(), at="inprocess", watch=begun.append)
    assert [(event.number, event.of) for event in begun if isinstance(event, Begun)] == [(1, 3), (2, 3), (3, 3)]
    rounds = [event for event in seen if isinstance(event, Round)]
    assert len(rounds) > 10
    assert {event.released for event in rounds} == {()}


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def kept(folder):
    """Return all that a finished tune leaves behind, without the winner's own files and without random names and times."""
    entries = [
        {name: value for name, value in entry.items() if name not in ("recorded", "hash", "run", "dataset")}
        for entry in json.loads(vfl.Ledger(folder / "ledger.db").open().export())["entries"]
    ]
    state = json.loads((folder / "tune.json").read_text())
    return files(folder), entries, {name: state[name] for name in state if name not in ("run", "ledger")}


def test_everything_but_the_winner_is_alike_under_opposite_coins(tmp_path, monkeypatch, caplog):
    """Only the draw differs between the two tunes: all are included, or none is."""
    caplog.set_level(logging.DEBUG)
    seeded = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, noise=vfl.SeededNoise(1)))
    outcomes = []
    for coins, draw in (("all", lambda losses, _: int(np.argmin(losses))), ("none", lambda losses, _: 0)):
        monkeypatch.setattr(tuning_run, "chosen", draw)
        events = []
        caplog.clear()
        found = tune(
            seeded,
            CANDIDATES,
            table(),
            at="inprocess",
            output=tmp_path / coins,
            watch=lambda e, events=events: events.append(repr(e)),
        )
        outcomes.append((kept(tmp_path / coins), events, [record.getMessage() for record in caplog.records]))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / coins).iterdir()}
        assert "sealed" not in modes
        assert "rounds.log" not in modes
        assert "timing.csv" not in modes
        outcomes[-1] += (modes,)
        assert found.certificate.events == found.tuning.events
    assert outcomes[0] == outcomes[1]


def test_sealed_files_are_for_their_owner_alone_and_zeroed_before_they_go(tmp_path, monkeypatch):
    seen = {}
    settle = tuning_run.TuningBudget.settle

    def spied(self):
        folder = tmp_path / "run" / "sealed"
        seen["folder"] = stat.S_IMODE(folder.stat().st_mode)
        seen["files"] = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        seen["open"] = [path.open("rb") for path in folder.iterdir()]
        return settle(self)

    monkeypatch.setattr(tuning_run.TuningBudget, "settle", spied)
    tuned(output=tmp_path / "run")
    assert seen["folder"] == 0o700
    assert seen["files"] == {f"trial-{k}": 0o600 for k in range(3)}
    for file in seen["open"]:
        content = file.read()
        assert content
        assert not any(content)
        file.close()


def test_losers_are_wiped_from_memory(monkeypatch):
    held = []
    keep = TrialOutcomes.keep

    def spied(self, number, trial):
        held.append(trial)
        keep(self, number, trial)

    monkeypatch.setattr(TrialOutcomes, "keep", spied)
    found = tuned()
    assert len(held) == 3
    assert not any(trial.values.any() for trial in held)
    assert found.result.w.any()


def failing(monkeypatch, numbers, error):
    """Let the trials of these numbers fail after their first query."""
    run, made = inprocess.run, []

    def spied(*args, **options):
        made.append(None)
        for event in run(*args, **options):
            if isinstance(event, Round) and len(made) in numbers:
                raise error
            yield event

    monkeypatch.setattr(inprocess, "run", spied)


@pytest.mark.parametrize("error", [DataError("a cell"), ZeroDivisionError("x"), np.linalg.LinAlgError("singular")])
def test_a_trial_that_fails_for_a_reason_in_the_data_loses(monkeypatch, error):
    failing(monkeypatch, (1, 3), error)
    monkeypatch.setattr(tuning_run, "chosen", lambda losses, _: int(np.argmin(losses)))
    assert tuned().candidate == 2


def test_if_all_trials_fail_a_fixed_public_model_is_released(tmp_path, monkeypatch):
    failing(monkeypatch, (1, 2, 3), DataError("a cell"))
    found = tuned(output=tmp_path / "run")
    assert not found.result.w.any()
    assert found.score is None
    assert found.result.findings == {}
    assert verify_run(tmp_path / "run").ok
    assert "its training failed" in repr(found)


@pytest.mark.parametrize("error", [PartyLost("gone", "bank"), OutputError("the disk is full"), KeyboardInterrupt()])
def test_a_failure_of_a_participant_ends_the_tune_and_it_is_resumed(tmp_path, monkeypatch, error):
    failing(monkeypatch, (2,), error)
    with pytest.raises(type(error)):
        tuned(output=tmp_path / "run")
    assert files(tmp_path / "run" / "sealed") == ["trial-0"]
    monkeypatch.undo()
    with pytest.raises(OutputError, match=r"holds a tuning run.*vfl resume"):
        vfl.resume(tmp_path / "run", table(), at="inprocess")
    done = []
    found = resume(tmp_path / "run", table(), at="inprocess", watch=done.append)
    assert [event.number for event in done if isinstance(event, Begun)] == [2, 3]
    assert len(charges(vfl.Ledger(tmp_path / "run" / "ledger.db").open())) == 2
    assert found.certificate.epsilon <= 1.0
    assert verify_run(tmp_path / "run").ok


def test_a_resumed_tune_keeps_its_trials_where_its_ledger_cannot_be_read(tmp_path, monkeypatch):
    failing(monkeypatch, (2,), OutputError("the disk is full"))
    with pytest.raises(OutputError):
        tuned(output=tmp_path / "run")
    monkeypatch.undo()

    def locked(*_args, **_options):
        raise LedgerError("the ledger is locked")

    with monkeypatch.context() as broken:
        broken.setattr(SqliteLedger, "show", locked)
        with pytest.raises(LedgerError) as caught:
            resume(tmp_path / "run", table(), at="inprocess", watch=quiet)
    assert any("vfl resume" in note for note in caught.value.__notes__)
    assert files(tmp_path / "run" / "sealed") == ["trial-0"]
    assert resume(tmp_path / "run", table(), at="inprocess", watch=quiet).certificate.epsilon <= 1.0


def test_a_resumed_tune_refuses_another_number_of_records(tmp_path, monkeypatch):
    failing(monkeypatch, (2,), OutputError("the disk is full"))
    with pytest.raises(OutputError):
        tuned(output=tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(DataError, match="different number of records"):
        resume(tmp_path / "run", table(396), at="inprocess", watch=quiet)
    assert files(tmp_path / "run" / "sealed") == ["trial-0"]


def test_a_certificate_does_not_tell_whether_a_losers_training_failed(tmp_path, monkeypatch):
    policy = 'format = 1\njobs = ["small"]\n[total]\nepsilon = 5.0\ndelta = 1e-6\n'
    monkeypatch.setattr(tuning_run, "chosen", lambda losses, _: 0)
    found = []
    for name, failed in (("all", ()), ("one", (3,))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bank.toml").write_text(policy, encoding="utf-8")
        with monkeypatch.context() as context:
            failing(context, failed, DataError("a cell"))
            found.append(tuned(data=vfl.Source(table(), policy={"bank": tmp_path / name / "bank.toml"})))
    assert found[0].certificate.party_ledgers == found[1].certificate.party_ledgers


def test_an_interrupted_tune_names_the_command_that_continues_it(tmp_path, monkeypatch):
    failing(monkeypatch, (2,), OutputError("the disk is full"))
    with pytest.raises(OutputError) as caught:
        tuned(output=tmp_path / "run")
    assert any("vfl resume" in note for note in caught.value.__notes__)


def test_a_finished_tune_is_only_loaded(tmp_path, monkeypatch):
    found = tuned(output=tmp_path / "run")
    monkeypatch.setattr(tuning_run, "chosen", None)
    monkeypatch.setattr(inprocess, "run", None)
    again = resume(tmp_path / "run", table(), at="inprocess")
    assert again.candidate == found.candidate
    assert again.result.w == pytest.approx(found.result.w, abs=0)
    assert again.score == found.score


@pytest.mark.parametrize(
    ("field", "change", "check"),
    [
        ("inclusion", lambda s: s | {"inclusion": 9}, "choice"),
        ("candidates", lambda s: s | {"candidates": s["candidates"][:2]}, "choice"),
        ("candidates", lambda s: s | {"candidates": [*s["candidates"][:2], "0" * 64]}, "choice|ledger"),
        ("winner", lambda s: s | {"winner": "0" * 64}, "choice"),
        ("all", lambda s: {}, "choice"),
    ],
)
def test_an_altered_statement_of_the_choice_is_found(tmp_path, field, change, check):
    import dataclasses

    from vfl.launch.run.result import Result

    found = tuned(output=tmp_path / "run")
    certificate = found.certificate
    altered = dataclasses.replace(certificate, selection=change(dict(certificate.selection)))
    result = dataclasses.replace(Result.load(tmp_path / "run"), certificate=altered)
    with pytest.raises(OutputError, match=check):
        result.verify(ledger=tmp_path / "run" / "ledger.db")


def test_a_smaller_mu_in_the_charge_is_found(tmp_path):
    import dataclasses

    found = tuned(output=tmp_path / "run")
    events = tuple(
        (dataclasses.replace(event, event=dataclasses.replace(bare(event), mu=bare(event).mu / 2)), count)
        for event, count in found.certificate.events
    )
    smaller = epsilon_of(max(bare(event).mu for event, _ in events), 1e-6, 3, 4)
    altered = dataclasses.replace(found.certificate, events=events, reserved=events, epsilon=smaller)
    result = dataclasses.replace(found.result, certificate=altered)
    with pytest.raises(OutputError, match="spends more"):
        result.verify()


def test_the_certificate_is_read_back_and_its_events_are_selections(tmp_path):
    found = tuned(output=tmp_path / "run")
    certificate = vfl.Certificate.load(tmp_path / "run" / "certificate.json")
    assert certificate.selection == found.certificate.selection
    assert {type(bare(event)) for event, _ in certificate.events} == {Selection}
    report = verify_run(tmp_path / "run")
    assert report.ok, report
    assert "candidate" in {check.name: check for check in report.checks}["choice"].finding


def test_a_tune_finds_n_as_a_run_does_where_delta_stands_for_it(tmp_path):
    spec = job(privacy=vfl.Privacy(epsilon=1.0), id="id")
    whole = table().assign(id=range(400))
    sources = {"bank": whole[["id", "a", "b", "y"]][:390], "telco": whole[["id", "c", "d"]][10:]}
    opened = {party: vfl.Source(sources[party], policy=tmp_path / f"{party}.toml") for party in sources}
    for party in sources:
        policy = 'format = 1\njobs = ["small"]\n[total]\nepsilon = 5.0\ndelta = 1e-5\n'
        (tmp_path / f"{party}.toml").write_text(policy)
    found = tuned(spec, opened, at=vfl.InProcess(), output=tmp_path / "out")
    assert found.certificate.n_records == 380
    assert found.certificate.delta == pytest.approx(1 / 380**2)
    (account,) = vfl.Ledger(tmp_path / "bank.ledger").open().show()
    assert [run.status for run in account.runs] == ["settled"] * 3  # finding n has reserved nothing


def test_owners_that_hold_no_budget_for_all_trials_refuse_before_the_charge(tmp_path):
    trial = tuning_of(job(), CANDIDATES).trial_epsilon
    policy = f'format = 1\njobs = ["small"]\n[total]\nepsilon = {1.2 * trial}\ndelta = 1e-6\n'
    (tmp_path / "bank.toml").write_text(policy)
    data = vfl.Source(table(), policy={"bank": tmp_path / "bank.toml"})
    ledger = ledger_of(tmp_path / "ledger.db")
    with pytest.raises(ConsentRefused, match=r"\[total\]"):
        tuned(job(dataset="small"), data, at=vfl.InProcess(), ledger=tmp_path / "ledger.db")
    assert charges(ledger) == []
