"""Policies: every rule refuses by its name, before any data are opened."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import multiprocessing
import sqlite3
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vfl
import vfl.launch.predict
from parties import consent
from parties.consent import Demands, Limit, Policy, PredictionPolicy, policy_of
from parties.daily_count import CountedAhead, DailyCount, _today
from parties.prediction import ModelPart
from vfl.errors import BudgetError, ConsentRefused, DataError, JobFileError, SpecificationError, VflError
from vfl.job import file as jobfile
from vfl.job.start import Start

PARTITION = vfl.FeaturePartition({"bank": ["income", "age"], "telco": ["calls"]}, label=("bank", "default"))
BOUNDS = {"income": (0.0, 1.0), "age": (0.0, 1.0), "calls": (0.0, 1.0)}
TOTAL = "[total]\nepsilon = 4.0\ndelta = 1e-6\n"


def job(**options: Any) -> vfl.Job:
    options = {
        "privacy": vfl.Privacy(epsilon=1.0, delta=1e-9),
        "name": "credit",
        "solver": vfl.SkGD(passes=1),
    } | options
    return vfl.Job(**({"partition": PARTITION, "bounds": BOUNDS} | options))


def policy(**options: Any) -> Policy:
    return Policy(**{"ledger": Path("unused"), "total": Limit(4.0, 1e-6), "jobs": ("*",)} | options)


def refused(rule: str, chosen: Policy, spec: vfl.Job, party: str = "bank") -> str:
    with pytest.raises(ConsentRefused) as raised:
        chosen.check(spec, party)
    said = str(raised.value)
    assert said.startswith(f"party {party!r} refuses job {spec.name!r} by its policy's {rule}: ")
    return said


def test_a_refusal_is_a_budget_error() -> None:
    assert issubclass(ConsentRefused, BudgetError)
    assert ConsentRefused.exit_code == 4


class TestJobs:
    def test_jobs_are_listed_by_digest_by_name_or_any(self) -> None:
        for listed in (job().digest, "credit", "*"):
            policy(jobs=("other", listed)).check(job(), "bank")

    def test_an_unlisted_job_is_refused_and_its_digest_shown(self) -> None:
        assert job().digest in refused("jobs", policy(jobs=("credits",)), job())
        refused("jobs", policy(jobs=()), job())

    def test_a_digest_covers_every_option(self) -> None:
        refused("jobs", policy(jobs=(job().digest,)), job(intercept=False))

    def test_a_job_cannot_use_another_digest_as_its_name(self) -> None:
        refused("jobs", policy(jobs=(job().digest,)), job(name=job().digest, intercept=False))


def test_columns_of_this_party_and_its_label() -> None:
    chosen = policy(columns=("income", "age", "default"))
    chosen.check(job(), "bank")
    assert "'calls'" in refused("columns", chosen, job(), "telco")
    assert "'default'" in refused("columns", policy(columns=("income", "age")), job())
    said = refused("columns", policy(columns=("*",)), job())
    assert said.endswith("which is not allowed; '*' is not a wildcard for columns: list their names")


def test_trust() -> None:
    policy(trust=("trusted",)).check(job(), "bank")
    assert "allows only 'secure'" in refused("trust", policy(trust=("secure",)), job())


class TestThreatModel:
    """Section [secure] of a policy: a least k, and who may deal, for jobs on shares."""

    def on_shares(self, **options: Any) -> vfl.Job:
        """Return a job on shares of three parties, or of two without a dealer."""
        parties = {"bank": ["income", "age"], "telco": ["calls"], "shop": ["visits"]}
        if options.get("dealer") == "none":
            parties["telco"] += parties.pop("shop")
        return vfl.Job(
            partition=vfl.FeaturePartition(parties, label=("bank", "default")),
            bounds=BOUNDS | {"visits": (0.0, 1.0)},
            privacy=vfl.Privacy(epsilon=1.0, delta=1e-9),
            solver=vfl.SkGD(passes=1),
            name="credit",
            trust=vfl.federation.Secure(**options),
        )

    def test_a_least_number_of_colluding_parties(self) -> None:
        chosen = policy(secure=Demands(collude=2))
        chosen.check(self.on_shares(collude=2), "bank")
        said = refused("[secure] collude", chosen, self.on_shares(collude=1))
        assert said.endswith("protects against 1 colluding party, and protection against at least 2 is demanded")
        policy(secure=Demands(collude=1)).check(self.on_shares(collude=2), "bank")

    def test_a_separate_dealer(self) -> None:
        chosen = policy(secure=Demands(dealer="separate"))
        chosen.check(self.on_shares(), "bank")
        said = refused("[secure] dealer", chosen, self.on_shares(dealer="coordinator"))
        assert said.endswith("its dealer is 'coordinator', and 'separate' is demanded")
        policy(secure=Demands(collude=1)).check(self.on_shares(dealer="coordinator"), "bank")

    @pytest.mark.parametrize("dealer", ["coordinator", "separate", "none"])
    @pytest.mark.parametrize("demanded", ["", "'separate'", "'none'", "['none']", "['separate', 'none']"])
    def test_no_demand_is_satisfied_by_another(self, demanded: str, dealer: str, tmp_path: Path) -> None:
        """A policy file names one dealer, or both in a list."""
        line = demanded and f"dealer = {demanded}\n"
        (tmp_path / "bank.toml").write_text(f'format = 1\njobs = ["*"]\n[secure]\n{line}{TOTAL}')
        chosen, spec = Policy.read(tmp_path / "bank.toml"), self.on_shares(dealer=dealer)
        if not demanded or repr(dealer) in demanded:
            chosen.check(spec, "bank")
        else:
            said = refused("[secure] dealer", chosen, spec)
            assert said.endswith(f"its dealer is {dealer!r}, and {demanded.strip('[]')} is demanded")

    def test_a_job_without_a_dealer_protects_against_single_parties_alone(self) -> None:
        refused("[secure] collude", policy(secure=Demands(dealer="none", collude=2)), self.on_shares(dealer="none"))

    def test_demands_exclude_jobs_that_are_not_on_shares_unless_trust_lists_them(self) -> None:
        assert "allows only 'secure'" in refused("trust", policy(secure=Demands()), job())
        policy(secure=Demands(collude=2), trust=("trusted", "secure")).check(job(), "bank")

    def test_the_owner_is_asked_about_the_threat_model(self) -> None:
        asked: list[str] = []
        chosen = policy(jobs=(), interactive=True)
        chosen.check(self.on_shares(collude=2), "bank", lambda question: asked.append(question) or True)
        chosen.check(self.on_shares(dealer="none"), "bank", lambda question: asked.append(question) or True)
        assert "a separate dealer, up to 2 parties may pool" in asked[0]
        assert "homomorphic encryption between the two parties in place of a dealer" in asked[1]

    def test_the_section_is_read_and_refuses_before_any_file_is_opened(self, tmp_path: Path) -> None:
        (tmp_path / "bank.toml").write_text(
            'format = 1\njobs = ["*"]\n[secure]\ncollude = 2\ndealer = "separate"\n' + TOTAL
        )
        assert Policy.read(tmp_path / "bank.toml").secure == Demands(collude=2, dealer="separate")
        with pytest.raises(ConsentRefused, match=r"\[secure\] collude: .* 1 colluding"):
            vfl.train(
                self.on_shares(), vfl.Source("nowhere.csv", policy={"bank": tmp_path / "bank.toml"}), at="inprocess"
            )

    @pytest.mark.parametrize(
        ("section", "said"),
        [
            ("secure = 1\n", "secure must be a table, not 1"),
            ("[secure]\ncollude = 0\n", "secure.collude must be a whole number of at least 1, not 0"),
            ("[secure]\ncollude = true\n", "secure.collude must be a whole number, not True"),
            ('[secure]\ndealer = "coordinator"\n', "secure.dealer must be 'separate', 'none', or a list of both"),
            ('[secure]\ndealer = ["none", "anybody"]\n', "secure.dealer must be 'separate', 'none', or a list of both"),
            ("[secure]\ndealer = [1]\n", "secure.dealer must be text or a list of text"),
            ("[secure]\ncolude = 2\n", r"secure.colude is unknown .did you mean 'collude'"),
        ],
    )
    def test_an_invalid_section_is_refused(self, tmp_path: Path, section: str, said: str) -> None:
        (tmp_path / "bank.toml").write_text("format = 1\n" + section + TOTAL)
        with pytest.raises(SpecificationError, match=said):
            Policy.read(tmp_path / "bank.toml")


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": None},
        {"privacy": vfl.Privacy(epsilon=1.0, delta=1e-9, noise=vfl.SeededNoise(1))},
        {"privacy": vfl.Privacy(epsilon=1.0, delta=1e-9, smoothness="data")},
        {"start": Start(model="0" * 64, coefficients=dict.fromkeys((*BOUNDS, "(intercept)"), 0.5))},
    ],
    ids=["none", "seeded", "smoothness from data", "a start without a guarantee"],
)
def test_not_private_jobs_need_their_own_consent(changes: dict[str, Any]) -> None:
    refused("allow_non_private", policy(), job(**changes))
    policy(allow_non_private=True).check(job(**changes), "bank")


JOINT = vfl.SkGD(joint=True)
GRAM: dict[str, Any] = {"solver": vfl.solvers.NoisyGram(), "loss": "squared", "bounds": BOUNDS | {"default": (0, 1)}}


@pytest.mark.parametrize(
    "changes",
    [
        {"intervals": True},
        GRAM,
        {"solver": JOINT},
    ],
    ids=["intervals", "NoisyGram", "joint steps"],
)
def test_columns_shown_before_noise_need_their_own_consent(changes: dict[str, Any]) -> None:
    refused("products", policy(), job(**changes))
    policy(products=True).check(job(**changes), "bank")
    policy().check(job(**GRAM | {"solver": vfl.solvers.NoisyGram(constant=True)}), "bank")


def test_products_on_shares_show_no_column() -> None:
    policy(trust=("secure",)).check(job(**GRAM, trust="secure"), "bank")


def test_products_on_shares_can_be_declined() -> None:
    """A rule may decide for joint steps once the number of records is known, so the job has to say that it takes none."""
    chosen = policy(secure=Demands(products=False))
    for spec in (job(**GRAM, trust="secure"), *(job(solver=own, trust="secure") for own in (vfl.SkGD(), JOINT))):
        assert "joint = false" in refused("[secure] products", chosen, spec)
        policy(secure=Demands()).check(spec, "bank")
    for solver in (vfl.SkGD(joint=False), vfl.SkGD(passes=9), vfl.solvers.CD(), vfl.solvers.GD()):
        chosen.check(job(solver=solver, trust="secure"), "bank")


def test_limits_of_one_job_hold_for_either_number() -> None:
    chosen = policy(job=Limit(1.0, 1e-9))
    chosen.check(job(), "bank")
    assert "epsilon = 1.5, and at most 1" in refused("[job]", chosen, job(privacy=vfl.Privacy(epsilon=1.5, delta=1e-9)))
    assert "delta = 1e-08" in refused("[job]", chosen, job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-8)))


class TestAsking:
    def test_the_owner_is_asked_about_unlisted_jobs_only(self) -> None:
        asked: list[str] = []

        def ask(question: str) -> bool:
            asked.append(question)
            return True

        policy(jobs=("credit",), interactive=True).check(job(), "bank", ask)
        assert not asked
        policy(jobs=(), interactive=True).check(job(), "bank", ask)
        (question,) = asked
        for said in (job().digest, "'income', 'age', 'default'", "ε = 1 at δ = 1e-09", "'trusted'"):
            assert said in question

    def test_agreeing_does_not_override_other_rules(self) -> None:
        asked: list[str] = []
        with pytest.raises(ConsentRefused, match=r"\[job\]"):
            policy(jobs=(), interactive=True, job=Limit(0.5, 1e-9)).check(
                job(), "bank", lambda q: asked.append(q) or True
            )
        assert not asked

    def test_no_and_no_answer_both_refuse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConsentRefused, match="policy's interactive"):
            policy(jobs=(), interactive=True).check(job(), "bank", lambda _: False)
        refused("interactive", policy(jobs=(), interactive=True), job())  # pytest has no terminal

        class Terminal:
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr(consent.sys, "stdin", Terminal())
        for answer, agreed in (("y", True), ("YES", True), ("", False), ("no", False)):
            monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
            if agreed:
                policy(jobs=(), interactive=True).check(job(), "bank")
            else:
                refused("interactive", policy(jobs=(), interactive=True), job())


class TestFile:
    def test_a_policy_is_read_as_written(self, tmp_path: Path) -> None:
        (tmp_path / "bank.toml").write_text(
            'format = 1\njobs = ["credit"]\ncolumns = ["income"]\ntrust = ["trusted"]\ninteractive = true\n'
            'allow_non_private = true\nledger = "sub/log.db"\n[job]\nepsilon = 1\ndelta = 1e-9\n' + TOTAL
        )
        assert Policy.read(tmp_path / "bank.toml") == Policy(
            ledger=tmp_path / "sub/log.db",
            total=Limit(4.0, 1e-6),
            job=Limit(1.0, 1e-9),
            jobs=("credit",),
            columns=("income",),
            trust=("trusted",),
            interactive=True,
            allow_non_private=True,
        )

    def test_an_empty_policy_allows_no_job(self, tmp_path: Path) -> None:
        (tmp_path / "bank.toml").write_text("format = 1\n" + TOTAL)
        read = Policy.read(tmp_path / "bank.toml")
        assert read == Policy(ledger=tmp_path / "bank.ledger", total=Limit(4.0, 1e-6))
        refused("jobs", read, job())

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (TOTAL, "needs format = 1"),
            ("format = 2\n" + TOTAL, "needs format = 1"),
            ("format = true\n" + TOTAL, "needs format = 1"),
            ("format = 1.0\n" + TOTAL, "needs format = 1"),
            ("format = 1\n[total]\nepsilon = true\ndelta = 1e-6\n", "total.epsilon must be a number"),
            (f"format = 1\n{TOTAL}[secure]\ncollude = true\n", "secure.collude must be a whole number"),
            ("format = 1\n", "needs [total]"),
            ('format = 1\njob = ["credit"]\n' + TOTAL, "job must be a table"),
            ('format = 1\ncolumn = ["age"]\n' + TOTAL, "column is unknown (did you mean 'columns'?)"),
            ('format = 1\njobs = "credit"\n' + TOTAL, "jobs must be a list of text, not 'credit'"),
            ("format = 1\njobs = [1]\n" + TOTAL, "jobs must be a list of text, not [1]"),
            ('format = 1\ninteractive = "no"\n' + TOTAL, "interactive must be true or false, not 'no'"),
            ("format = 1\nledger = true\n" + TOTAL, "ledger must be text, not True"),
            ("format = 1\n[total]\nepsilon = 1.0\n", "total.delta is missing"),
            ('format = 1\n[total]\nepsilon = "1"\ndelta = 1e-6\n', "total.epsilon must be a number"),
            ("format = 1\n[total]\nepsilon = inf\ndelta = 1e-6\n", "needs epsilon > 0 and 0 < delta < 1"),
            ("format = 1\n[total]\nepsilon = 1\ndelta = 1\n", "needs epsilon > 0 and 0 < delta < 1"),
            ("format 1", "is not valid TOML"),
        ],
    )
    def test_unknown_entries_are_refused(self, tmp_path: Path, text: str, said: str) -> None:
        (tmp_path / "bank.toml").write_text(text)
        with pytest.raises(SpecificationError) as raised:
            Policy.read(tmp_path / "bank.toml")
        assert said in str(raised.value)

    def test_an_unreadable_file_is_a_refusal(self, tmp_path: Path) -> None:
        with pytest.raises(SpecificationError, match=r"there is no policy file 'bank\.toml'"):  # without its folder
            Policy.read(tmp_path / "bank.toml")
        (tmp_path / "bank.toml").write_bytes(b"\xff")
        with pytest.raises(SpecificationError, match="not text in UTF-8"):
            Policy.read(tmp_path / "bank.toml")

    def test_the_policy_of_the_nodes_owner_takes_precedence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "lax.toml").write_text('format = 1\njobs = ["*"]\n' + TOTAL)
        (tmp_path / "strict.toml").write_text("format = 1\n" + TOTAL)
        assert policy_of(None) is None
        assert policy_of(tmp_path / "lax.toml").jobs == ("*",)
        monkeypatch.setenv(consent.VARIABLE, str(tmp_path / "strict.toml"))
        assert policy_of(tmp_path / "lax.toml").jobs == ()
        assert policy_of(None).jobs == ()


def test_the_module_documents_every_entry() -> None:
    for kind in (Policy, PredictionPolicy, Demands):
        for entry in dataclasses.fields(kind):
            assert f"{entry.name} = " in consent.__doc__ or f"[{entry.name}]" in consent.__doc__


class TestBeforeTheData:
    """The party's process checks its policy first, even if the source cannot be opened."""

    def data(self) -> dict[str, Any]:
        return {"bank": "nowhere.csv", "telco": {"calls": np.zeros(4)}}

    def run(self, spec: vfl.Job, tmp_path: Path, text: str) -> VflError:
        (tmp_path / "bank.toml").write_text(text)
        with pytest.raises(VflError) as raised:
            vfl.train(spec, vfl.Source(self.data(), policy={"bank": tmp_path / "bank.toml"}), at="inprocess")
        return raised.value

    def test_refusals_precede_reading(self, tmp_path: Path) -> None:
        assert type(self.run(job(), tmp_path, "format = 1\n" + TOTAL)) is ConsentRefused
        assert type(self.run(job(), tmp_path, 'format = 1\njobs = ["*"]\n' + TOTAL)) is DataError
        assert not (tmp_path / "bank.ledger").exists()

    def test_a_policy_for_an_unknown_party(self) -> None:
        with pytest.raises(SpecificationError, match=r"'bnak'.*did you mean 'bank'"):
            vfl.train(job(), vfl.Source(self.data(), policy={"bnak": "x.toml"}), at="inprocess")

    def test_on_ray_the_actor_reads_it_and_its_refusal_arrives(self, tmp_path: Path, local_ray: Any) -> None:
        (tmp_path / "bank.toml").write_text("format = 1\n" + TOTAL)
        with pytest.raises(ConsentRefused, match=r"'bank' refuses .*policy's jobs"):
            vfl.train(job(), vfl.Source(self.data(), policy={"bank": tmp_path / "bank.toml"}), at="ray")

    def test_policies_named_beside_the_job_file(self, tmp_path: Path) -> None:
        jobfile.write(job(), tmp_path / "job.toml")
        plain = (tmp_path / "job.toml").read_text()
        (tmp_path / "job.toml").write_text(plain + '\n[policy]\nbank = "rules/bank.toml"\n')
        spec, environment = jobfile.read(tmp_path / "job.toml")
        assert spec.digest == job().digest
        assert environment.policies == {"bank": str(tmp_path / "rules/bank.toml")}
        for wrong, said in (('bnak = "x"', "unknown key 'bnak' in .policy."), ("bank = 1", "must be a path")):
            (tmp_path / "job.toml").write_text(plain + f"\n[policy]\n{wrong}\n")
            with pytest.raises(JobFileError, match=said):
                jobfile.read(tmp_path / "job.toml")


ROWS = {"income": [0.25, 0.5, 1.0], "age": [0.0, 0.5, 1.0], "calls": [0.0, 1.0, 0.5], "default": [0, 1, 1]}


def part(**weights: float) -> ModelPart:
    spec = vfl.Job(partition=PARTITION, bounds=BOUNDS, privacy=None, scaling="none", intercept=False)
    w = {"income": 0.0, "age": 0.0} | weights
    return ModelPart(spec, "bank", "0" * 64, tuple(w), np.array(list(w.values())), 0.0)


@pytest.fixture(scope="module")
def result() -> Any:
    return vfl.train(vfl.Job(partition=PARTITION, bounds=BOUNDS, privacy=None), ROWS, at="inprocess")


class TestPrediction:
    """Without consent in the policy's [prediction], no model is applied to an owner's records and no id is read."""

    def policy(self, folder: Path, section: str = "") -> Path:
        (folder / "bank.toml").write_text("format = 1\n" + TOTAL + section)
        return folder / "bank.toml"

    def predict(self, folder: Path, section: str, made: ModelPart, source: Any = None, **options: Any) -> Any:
        """Apply a part to the bank's records alone, or together with a telco part without effect."""
        folder.joinpath("bank.part.json").write_text(made.to_json())
        folder.joinpath("telco.part.json").write_text(
            dataclasses.replace(made, party="telco", coordinates=("calls",), w=np.zeros(1)).to_json()
        )
        source = {name: ROWS[name] for name in ("income", "age")} if source is None else source
        return vfl.predict(
            {party: folder / f"{party}.part.json" for party in ("bank", "telco")},
            vfl.Source(
                {"bank": source, "telco": {"calls": ROWS["calls"]}}, policy={"bank": self.policy(folder, section)}
            ),
            **options,
        )

    def refused(self, rule: str, folder: Path, section: str, *arguments: Any, **options: Any) -> str:
        with pytest.raises(ConsentRefused) as raised:
            self.predict(folder, section, *arguments, **options)
        said = str(raised.value)
        assert said.startswith(f"party 'bank' refuses a prediction by its policy's [prediction]{rule}: ")
        return said

    @pytest.mark.parametrize("source", [None, "nowhere.csv"])
    def test_a_handmade_part_reads_no_column_without_consent(self, tmp_path: Path, source: str | None) -> None:
        """Such a part would return the raw column, because predictions are not noised."""
        raw = {"bank": {"income": ROWS["income"], "age": ROWS["age"]}, "telco": {"calls": ROWS["calls"]}}
        self.refused("", tmp_path, "", part(income=1.0), source)
        (tmp_path / "bank.toml").unlink()
        parts = {"bank": tmp_path / "bank.part.json", "telco": tmp_path / "telco.part.json"}
        assert vfl.predict(parts, raw).scores.tolist() == ROWS["income"]

    def test_on_ray_the_actor_checks_the_policy(self, tmp_path: Path, local_ray: Any) -> None:
        self.refused("", tmp_path, "", part(income=1.0), "nowhere.csv", at="ray")

    def test_a_digest_covers_every_weight(self, tmp_path: Path) -> None:
        chosen = part(income=0.5)
        section = f'[prediction]\nmodels = ["{chosen.digest}"]\n'
        assert self.predict(tmp_path, section, chosen).scores.tolist() == [0.125, 0.25, 0.5]
        for other in (part(income=1.0), dataclasses.replace(chosen, intercept=1.0), part(income=0.5, age=1e-9)):
            assert other.digest in self.refused(" models", tmp_path, section, other)
        other = dataclasses.replace(chosen, job=dataclasses.replace(chosen.job, bounds=BOUNDS | {"income": (0, 2)}))
        assert other.digest in self.refused(" models", tmp_path, section, other)

    def test_receivers_are_limited(self, tmp_path: Path) -> None:
        chosen = part(income=0.5)
        moved = dataclasses.replace(
            chosen,
            job=vfl.Job(
                partition=vfl.FeaturePartition({"bank": ["income", "age"], "telco": ["calls"]}, label=("telco", "y")),
                bounds=BOUNDS,
                privacy=None,
                scaling="none",
                intercept=False,
            ),
        )
        section = '[prediction]\nmodels = ["*"]\nparties = []\n'
        self.predict(tmp_path, section, chosen)
        assert "'telco' would add up" in self.refused(" parties", tmp_path, section, moved)
        self.predict(tmp_path, '[prediction]\nmodels = ["*"]\nparties = ["telco"]\n', moved)

    def test_sources_are_limited_by_the_owner(self, tmp_path: Path) -> None:
        (tmp_path / "new").mkdir()
        for name in ("new/march.csv", "train.csv"):
            (tmp_path / name).write_text("income,age\n0.5,1\n1,0\n0,0\n")
        section = '[prediction]\nmodels = ["*"]\nsources = ["new/*.csv"]\n'
        self.predict(tmp_path, section, part(), str(tmp_path / "new/march.csv"))
        for source in (str(tmp_path / "train.csv"), str(tmp_path / "new/../train.csv"), None, "acme://train"):
            self.refused(" sources", tmp_path, section, part(), source)
        (tmp_path / "new/link.csv").symlink_to(tmp_path / "train.csv")
        self.refused(" sources", tmp_path, section, part(), str(tmp_path / "new/link.csv"))
        self.predict(tmp_path, '[prediction]\nmodels = ["*"]\nsources = ["memory"]\n', part())

    def test_records_per_day_are_limited(self, tmp_path: Path) -> None:
        section = '[prediction]\nmodels = ["*"]\nrecords = 7\n'
        for _ in range(2):
            self.predict(tmp_path, section, part())
        assert "left today of the 7" in self.refused(" records", tmp_path, section, part())
        self.predict(tmp_path, section.replace("7", "9"), part())
        (tmp_path / "bank.predictions").write_bytes(b"damaged" * 999)
        with pytest.raises(ConsentRefused, match=r"'bank.predictions', cannot be kept"):
            self.predict(tmp_path, section, part())

    def test_predictions_of_a_result_and_measures_check_policies(
        self, tmp_path: Path, result: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file of all parties is not opened before all owners have agreed."""
        path = self.policy(tmp_path)
        for data in (ROWS, "nowhere.csv"):
            for opens in (vfl.predict, vfl.launch.predict.evaluate):
                with pytest.raises(ConsentRefused, match="there is no such section"):
                    opens(result, vfl.Source(data, policy={"bank": path}))
            with pytest.raises(ConsentRefused, match="there is no such section"):
                result.decision_function(vfl.Source(data, policy={"bank": path}))
        with pytest.raises(ConsentRefused, match="there is no such section"):
            vfl.launch.predict.evaluate(result, vfl.Source("nowhere.csv", policy={"bank": path}), at=vfl.Ray())
        self.policy(tmp_path, '[prediction]\nmodels = ["*"]\nrecords = 6\n')
        vfl.predict(result, vfl.Source(ROWS, policy={"bank": path}))
        with pytest.raises(ConsentRefused, match=r"\[prediction\] labels"):
            vfl.launch.predict.evaluate(result, vfl.Source(ROWS, policy={"bank": path}))
        monkeypatch.setenv(consent.VARIABLE, str(path))
        result.decision_function(ROWS)
        with pytest.raises(ConsentRefused, match="left today"):
            vfl.predict(result, ROWS)

    def test_training_and_alignment_check_policies_before_opening_a_common_table(self, tmp_path: Path) -> None:
        path = self.policy(tmp_path)
        for opens in (vfl.train, vfl.align):
            with pytest.raises(ConsentRefused, match=r"'bank' refuses .*policy's jobs"):
                opens(job(id="who"), vfl.Source("nowhere.csv", policy={"bank": path}), at="inprocess")
        own = {"bank": "nowhere.csv", "telco": "nowhere.csv"}
        with pytest.raises(ConsentRefused, match="by its policy's jobs"):
            vfl.align(job(id="who"), vfl.Source(own, policy={"bank": path}), at="inprocess")

    @pytest.mark.parametrize(
        ("section", "said"),
        [
            ('models = "x"', "prediction.models must be a list of text"),
            ("records = true", "prediction.records must be a whole number"),
            ("rate = true", "prediction.rate must be a number"),
            ("labels = 1", "prediction.labels must be true or false"),
            ("model = []", r"prediction.model is unknown .did you mean 'models'"),
        ],
    )
    def test_an_invalid_section_is_refused(self, tmp_path: Path, section: str, said: str) -> None:
        with pytest.raises(SpecificationError, match=said):
            Policy.read(self.policy(tmp_path, f"[prediction]\n{section}\n"))


class TestDailyCount:
    def test_processes_stay_within_the_limit_together(self, tmp_path: Path) -> None:
        with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
            taken = list(pool.map(DailyCount(tmp_path / "count").take, ["bank"] * 40, [1] * 40, [25] * 40))
        assert sum(taken) == 25
        assert DailyCount(tmp_path / "count").take("telco", 25, 25)

    def test_a_new_day_resets_the_count_but_a_clock_set_back_does_not(self, tmp_path: Path) -> None:
        count = DailyCount(tmp_path / "count")
        assert count.take("bank", 3, 3)
        with contextlib.closing(sqlite3.connect(tmp_path / "count")) as file, file:
            file.execute("UPDATE predicted SET day = '1999-01-01'")
        assert count.take("bank", 3, 3)
        with contextlib.closing(sqlite3.connect(tmp_path / "count")) as file, file:
            file.execute("DELETE FROM predicted")
            file.execute("INSERT INTO predicted VALUES ('bank', ?, 3)", (_today(1),))
        assert not count.take("bank", 1, 3)

    def test_a_clock_that_was_ahead_uses_up_one_day_and_blocks_no_later_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        day = dt.date(2026, 11, 28)
        monkeypatch.setattr("parties.daily_count._today", lambda later=0: (day + dt.timedelta(later)).isoformat())
        count = DailyCount(tmp_path / "count")
        assert count.take("bank", 1, 3)
        assert count.take("caller x", 1, 3)
        day = dt.date(2036, 1, 1)
        assert count.take("bank", 2, 3)
        assert count.take("telco", 3, 3)
        day = dt.date(2026, 11, 28)
        assert not count.take("bank", 1, 3)  # all three count for today
        assert not count.take("telco", 1, 3)
        assert not count.take("caller x", 3, 3)
        assert count.take("caller x", 2, 3)
        day = dt.date(2026, 11, 29)
        assert all(count.take(name, 3, 3) for name in ("bank", "telco", "caller x"))

    def test_a_service_counts_ahead_and_never_below_what_it_answered(self, tmp_path: Path) -> None:
        def on_disk() -> int:
            with contextlib.closing(sqlite3.connect(tmp_path / "count")) as file:
                return int(file.execute("SELECT records FROM predicted WHERE party = 'bank'").fetchone()[0])

        answered = 0
        for _ in range(3):  # each time a process that is killed
            ahead = CountedAhead(DailyCount(tmp_path / "count"))
            for records in (1, 3, 12, 5):
                assert ahead.take_all("bank", {"bank": (records, 500), "caller x": (records, 90)}) == ""
                answered += records
                assert answered <= on_disk() <= answered + 3 * 5
        assert ahead.take_all("bank", {"bank": (1, 500), "caller x": (28, 90)}) == "caller x"  # counted exactly
        exact = sum(1 for _ in range(500) if not ahead.take_all("bank", {"bank": (1, 500)}))
        assert 500 - 3 * 5 <= answered + exact <= 500
