"""`vfl verify`: every check is reported in words, and every alteration is found."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import vfl
from tests.coordinator import shares
from vfl.apps import cli
from vfl.crypto.signatures import SigningKey
from vfl.errors import OutputError, SpecificationError
from vfl.launch.run.verification import verify_run
from vfl.launch.train import resume
from vfl.network.federation.file import read_federation, write_federation
from vfl.network.federation.identity import new_identity
from vfl.privacy.ledger import Accounting, SqliteLedger
from vfl.secure import homomorphic
from vfl.secure.homomorphic import library

if TYPE_CHECKING:
    from pathlib import Path

    from vfl.planning.certificate import Certificate

N = 60


def job(**options: Any) -> vfl.Job:
    options = {"privacy": vfl.Privacy(epsilon=1.0, delta=1e-6), "solver": vfl.SkGD(passes=2)} | options
    return vfl.Job(
        partition=vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c"]}, label=("bank", "y")),
        bounds=dict.fromkeys("abc", (-1.0, 1.0)),
        name="credit",
        **options,
    )


def data() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {name: rng.uniform(-1, 1, N) for name in "abc"}
    return columns | {"y": (columns["a"] > 0).astype(int)}


def trained(folder: Path, **options: Any) -> vfl.Result:
    keywords = {name: options.pop(name) for name in ("ledger", "key") if name in options}
    return vfl.train(job(**options), data(), at="inprocess", output=folder, **keywords)


def verify(*arguments: object) -> str:
    done = CliRunner().invoke(cli.vfl, ["verify", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def findings(run: Path, **options: Any) -> dict[str, bool | None]:
    return {check.name: check.holds for check in verify_run(run, **options).checks}


def wrong(run: Path, **options: Any) -> set[str]:
    return {name for name, holds in findings(run, **options).items() if holds is False}


def resigned(run: Path, **changes: Any) -> None:
    """Forge a run as an attacker with a key can: change the certificate and sign it anew."""
    path = run / "certificate.json"
    forged = dataclasses.replace(vfl.Certificate.load(path), **changes)
    path.write_text(forged.signed(SigningKey(Ed25519PrivateKey.generate())).to_json(), encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "out"
    trained(folder)
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in run.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_output(run: Path) -> None:
    said = verify(run)
    holds, leaves, empty, *checks = said.splitlines()
    assert "data of any one record" in holds
    assert re.search(r"2\.719.* 1,000,000 \(ε = 1, δ = 1e-06\)", holds)
    assert "this one training alone" in leaves
    assert "from one another during training" in leaves
    assert empty == ""
    assert [line.split()[0] for line in checks] == ["ok"] * len(checks)
    assert [line.split()[1] for line in checks][:4] == ["signature", "signer", "epsilon", "claims"]


def test_json_output(run: Path) -> None:
    said = json.loads(verify(run, "--json"))
    assert (said["verified"], said["private"], said["delta"]) == (True, True, 1e-6)
    assert 0.999 < said["epsilon"] <= 1.0
    assert {check["name"] for check in said["checks"]} >= {"signature", "epsilon", "model", "job", "plan", "ledger"}


def test_every_check_is_made(run: Path) -> None:
    assert all(findings(run).values())


def test_the_certificate_alone(run: Path) -> None:
    """Without other files, the report lists the checks that could not be made."""
    found = findings(run / "certificate.json")
    assert found["signature"]
    assert found["epsilon"]
    assert [found[name] for name in ("model", "job", "plan", "ledger")] == [None] * 4


def test_every_altered_byte_is_found(copy: Path) -> None:
    """Change or delete bytes of every field. The file is then unreadable, or its signature fails."""
    path = copy / "certificate.json"
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(0, len(content), 7):
        other = (content[at] + int(rng.integers(1, 256))) % 256
        for altered in (
            content[:at] + bytes([other]) + content[at + 1 :],
            content[:at] + content[at + 1 :],
        ):
            path.write_bytes(altered)
            try:
                report = verify_run(path)
            except OutputError:
                continue
            assert not report.ok, at


def certificate(run: Path) -> Certificate:
    return vfl.Certificate.load(run / "certificate.json")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"epsilon": 0.5}, "epsilon"),
        ({"delta": 1e-3}, "epsilon"),
        ({"private": False}, "claims"),
        ({"smoothness": "data"}, "claims"),
        ({"noise": "SeededNoise"}, "claims"),
        ({"clip": 1e-9}, "plan"),
        ({"n_records": 61}, "plan"),
        ({"clip": 1e-9, "code_version": "0.0.0"}, "plan"),  # another version is no excuse for skipping the plan
        ({"who_sees_what": dict.fromkeys(("outsider", "party", "coordinator"), "nothing")}, "plan"),
        ({"job_digest": "0" * 64}, "job"),
        ({"model_digest": "0" * 64}, "model"),
        ({"moments_digest": "0" * 64}, "moments"),
        ({"basis": "reserved"}, "ledger"),
    ],
)
def test_contradictions_within_the_certificate_or_with_the_run_are_found(
    copy: Path, changes: dict[str, Any], found: str
) -> None:
    """Even a forger who signs anew cannot change a value that can be recomputed."""
    resigned(copy, **changes)
    assert found in wrong(copy)


def test_omitted_releases_are_found(copy: Path) -> None:
    """The forged ε matches the forged list. The ledger still shows the releases, and without a ledger the reserved ε
    does."""
    (event, count), *others = certificate(copy).events
    kept = tuple(others)
    fewer = dataclasses.replace(certificate(copy), events=kept)
    from vfl.planning.certificate.verification import recomputed

    resigned(
        copy, events=kept, releases=fewer.releases - count, epsilon=recomputed("gdp", kept, certificate(copy).delta)
    )
    assert wrong(copy) == {"epsilon", "ledger"}
    (copy / "ledger.db").unlink()
    assert wrong(copy) == {"epsilon"}
    assert event.sigma > 0


def test_another_model_is_found(copy: Path) -> None:
    model = json.loads((copy / "model.json").read_text(encoding="utf-8"))
    for name, changed in (
        ("model", model | {"w": [math.nextafter(model["w"][0], 9), *model["w"][1:]]}),
        ("units", model | {"coef": dict.fromkeys(model["coef"], 1.0)}),
        ("units", model | {"intercept": model["intercept"] + 1e-6}),
    ):
        (copy / "model.json").write_text(json.dumps(changed), encoding="utf-8")
        assert name in wrong(copy)


def test_another_job_is_found(copy: Path) -> None:
    file = copy / "job.toml"
    file.write_text(file.read_text(encoding="utf-8").replace("epsilon = 1.0", "epsilon = 0.5"), encoding="utf-8")
    assert "job" in wrong(copy)


def test_a_broken_log_is_found(copy: Path) -> None:
    lines = (copy / "rounds.log").read_bytes().splitlines(keepends=True)
    (copy / "rounds.log").write_bytes(b"".join([*lines[:2], lines[2].replace(b"0", b"1", 1), *lines[3:]]))
    assert "log" in wrong(copy)


def test_exit_code_and_words_when_it_does_not_hold(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resigned(copy, epsilon=0.5)
    done = CliRunner().invoke(cli.vfl, ["verify", str(copy)])
    assert isinstance(done.exception, OutputError)
    assert "the certificate does not hold" in str(done.exception)
    assert "its releases have ε = " not in str(done.exception)  # the line of the check says so
    assert done.output.count("its releases have ε = ") == 1
    assert "replacing the data" not in done.output  # no guarantee is printed
    assert "FAIL  epsilon" in done.output


class TestSigner:
    def test_the_users_own_key_is_recognised(self, run: Path) -> None:
        (said,) = (check for check in verify_run(run).checks if check.name == "signer")
        assert "this user's own key" in said.finding

    def test_a_key_given_by_the_reader(self, run: Path, tmp_path: Path) -> None:
        signature = certificate(run).signature
        assert signature is not None
        assert findings(run, key=signature.public_key)["signer"]
        assert wrong(run, key="0" * 64) == {"signer"}
        with pytest.raises(SpecificationError, match="there is no public key"):
            verify_run(run, key=str(tmp_path / "none.pem"))

    def test_an_unknown_key(self, copy: Path) -> None:
        """The certificate holds, but only the reader can say whose key signed it."""
        resigned(copy)
        assert findings(copy)["signer"] is None
        assert verify_run(copy).ok

    def test_a_key_file_readable_by_others_is_refused(self, tmp_path: Path) -> None:
        from vfl.crypto.signatures import default_file, signing_key

        signing_key()
        loose = tmp_path / "loose.pem"
        loose.write_bytes(default_file().read_bytes())
        loose.chmod(0o644)
        with pytest.raises(SpecificationError, match="can be used by others"):
            trained(tmp_path / "out", key=loose)
        assert not (tmp_path / "out").exists()  # refused before anything was spent


class TestSharedLedger:
    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Path:
        path = tmp_path / "book.db"
        SqliteLedger(path).set_cap("credit-2026", epsilon=3.0, delta=1e-8, accounting=Accounting.ZCDP)
        return path

    def test_each_run_states_its_own_epsilon(self, tmp_path: Path, ledger: Path) -> None:
        """The run states its exact ε at the job's δ, although the ledger adds up ρ at another δ."""
        for number in range(2):
            trained(tmp_path / f"{number}", dataset="credit-2026", ledger=ledger)
        said = certificate(tmp_path / "1")
        assert (said.accounting, said.delta) == ("gdp", 1e-6)
        assert 0.999 < said.epsilon <= 1.0
        assert all(findings(tmp_path / "1", ledger=ledger).values())
        assert "'credit-2026' limits the total" in verify(tmp_path / "1", "--ledger", ledger)

    def test_damage_is_said_once(self, tmp_path: Path, ledger: Path) -> None:
        trained(tmp_path / "out", dataset="credit-2026", ledger=ledger)
        with contextlib.closing(sqlite3.connect(ledger)) as connection:
            connection.execute("DROP TRIGGER entries_are_not_changed")
            connection.execute("UPDATE entries SET body = replace(body, '0', '1') WHERE seq = 2")
            connection.commit()
        found = findings(tmp_path / "out", ledger=ledger)
        assert (found["ledger"], found["cap"]) == (False, None)
        done = CliRunner().invoke(cli.vfl, ["verify", str(tmp_path / "out"), "--ledger", str(ledger)])
        assert (done.output + str(done.exception)).count("the ledger is damaged at entry 2") == 1

    def test_without_the_ledger_it_says_so(self, tmp_path: Path, ledger: Path) -> None:
        trained(tmp_path / "out", dataset="credit-2026", ledger=ledger)
        assert findings(tmp_path / "out")["ledger"] is None
        assert re.search("'credit-2026'.*--ledger FILE", verify(tmp_path / "out"))

    def test_another_ledger(self, tmp_path: Path, ledger: Path) -> None:
        trained(tmp_path / "out", dataset="credit-2026", ledger=ledger)
        other = tmp_path / "other.db"
        SqliteLedger(other).set_cap("credit-2026", epsilon=3.0, delta=1e-8)
        trained(tmp_path / "two", dataset="credit-2026", ledger=other)
        assert wrong(tmp_path / "out", ledger=other) == {"ledger"}

    @pytest.mark.parametrize("name", ["missing.db", ".", "book.db/below"])
    def test_a_ledger_that_cannot_be_opened_does_not_refute(self, tmp_path: Path, ledger: Path, name: str) -> None:
        trained(tmp_path / "out", dataset="credit-2026", ledger=ledger)
        done = CliRunner().invoke(cli.vfl, ["verify", str(tmp_path / "out"), "--ledger", str(tmp_path / name)])
        assert isinstance(done.exception, OutputError)
        assert "cannot be opened" in str(done.exception)
        assert "FAIL" not in done.output


class TestChangedCap:
    """A cap that was changed after releases is flagged in every later certificate and reported by `vfl verify`."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Path:
        path = tmp_path / "book.db"
        SqliteLedger(path).set_cap("credit-2026", epsilon=1.5, delta=1e-6)
        trained(tmp_path / "before", dataset="credit-2026", ledger=path)
        SqliteLedger(path).set_cap("credit-2026", epsilon=3.0, delta=1e-6)
        trained(tmp_path / "after", dataset="credit-2026", ledger=path)
        return path

    def test_it_is_reported(self, tmp_path: Path, ledger: Path) -> None:
        before, after = certificate(tmp_path / "before"), certificate(tmp_path / "after")
        (flag,) = after.flags
        assert before.flags == ()
        assert "was changed after" in flag
        assert "from ε = 1.5 at δ = 1e-06 to ε = 3 at δ = 1e-06" in flag
        assert after.private
        assert f"flag: {flag}" in verify(tmp_path / "after")  # works without the ledger too
        for run in ("before", "after"):
            assert all(findings(tmp_path / run, ledger=ledger).values())
            assert flag in verify(tmp_path / run, "--ledger", ledger)

    def test_a_certificate_without_the_flag_does_not_hold(self, tmp_path: Path, ledger: Path) -> None:
        resigned(tmp_path / "after", flags=())
        assert wrong(tmp_path / "after", ledger=ledger) == {"cap"}


def test_a_cap_that_was_never_changed(tmp_path: Path) -> None:
    trained(tmp_path / "out")
    assert re.search("cap +not changed", verify(tmp_path / "out"))


def test_both_sentences_state_the_lack_of_privacy(tmp_path: Path) -> None:
    trained(tmp_path / "open", privacy=None)
    said = verify(tmp_path / "open")
    assert "no privacy guarantee: trained with" in said
    assert "must not be cited" in said


def test_an_adaptive_solver_states_what_was_reserved(tmp_path: Path) -> None:
    """Importance sampling chooses blocks by released constants, so the run is accounted for by a privacy filter.

    A filter bounds ε only by what was reserved."""
    trained(tmp_path / "out", solver=vfl.SkGD(passes=2, sampling="importance"))
    assert certificate(tmp_path / "out").basis == "reserved"
    assert all(findings(tmp_path / "out").values())


class _Stop(Exception):
    pass


def test_a_run_that_exceeded_its_budget_and_was_cut_off_again(tmp_path: Path) -> None:
    """The log holds the refusal, so a later process and the verifier repeat the same schedule."""
    folder = tmp_path / "out"

    def stop_at(number: int) -> Any:
        def watch(event: object) -> None:
            if getattr(event, "number", -1) == number:
                raise _Stop

        return watch

    spec = job(
        solver=vfl.SkGD(passes=4, details=vfl.solvers.Details(message="block"), clip="coordinate"),
        evaluation=vfl.Evaluation(holdout=0.3),
    )
    with pytest.raises(_Stop):
        vfl.train(spec, data(), at="inprocess", output=folder, watch=stop_at(3))
    log = folder / "rounds.log"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))  # lost, and charged all the same
    with pytest.raises(_Stop):
        resume(folder, data(), at="inprocess", watch=stop_at(17))
    rounds: list[Any] = []
    result = resume(folder, data(), at="inprocess", watch=rounds.append)
    lines = [json.loads(line.split(" ", 1)[1]) for line in log.read_text(encoding="utf-8").splitlines()]
    refused = [line["round"] for line in lines if "round" in line and line["released"] is None]
    assert refused
    assert max(refused) < 17
    assert result.certificate.basis == "reserved"
    assert result.findings["held out"].measures
    assert not wrong(folder)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no saved model"):
        verify_run(tmp_path)


def test_findings_are_certified_too(tmp_path: Path) -> None:
    trained(tmp_path / "out", evaluation=vfl.Evaluation(holdout=0.4))
    assert findings(tmp_path / "out")["findings"]
    path = tmp_path / "out" / "findings.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    told["held out"]["n_records"] += 1  # all measures were drowned in noise, so there is none to alter
    path.write_text(json.dumps(told), encoding="utf-8")
    assert wrong(tmp_path / "out") == {"findings"}
    path.unlink()
    assert wrong(tmp_path / "out") == {"findings"}
    assert "findings.json" in str(verify_run(tmp_path / "out"))


def test_a_forged_option_is_found(tmp_path: Path) -> None:
    """The job leaves the clip open, but its releases and the field `clip` follow from it."""
    trained(tmp_path / "out", solver=vfl.solvers.GD())
    solver = certificate(tmp_path / "out").solver
    resigned(tmp_path / "out", solver={**solver, "clip": solver["clip"] / 2})
    assert wrong(tmp_path / "out") == {"plan"}


def test_another_plan_names_the_version_that_issued_the_certificate(tmp_path: Path) -> None:
    trained(tmp_path / "out", solver=vfl.solvers.GD(passes=3))
    solver = certificate(tmp_path / "out").solver
    resigned(tmp_path / "out", solver={**solver, "passes": 4}, code_version="0.0.0")
    plan = next(check for check in verify_run(tmp_path / "out").failed if check.name == "plan")
    assert "vfl 0.0.0" in plan.finding


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of three runs on shares, by loss; 'pair' has no dealer."""
    made = {}
    for name, parties, solver in (
        ("logistic", 3, vfl.SkGD),
        ("squared", 3, vfl.solvers.NoisyGram),
        ("pair", 2, vfl.SkGD),
    ):
        loss = "squared" if name == "squared" else "logistic"
        bounds = {"*": (-2, 2)} | ({"y": (-1, 2)} if loss == "squared" else {})
        trust = vfl.federation.Secure(dealer="none" if name == "pair" else "separate")
        options = {"solver": solver(**({} if loss == "squared" else {"passes": 1})), "bounds": bounds, "trust": trust}
        spec = shares.job(parties, privacy=vfl.Privacy(epsilon=8.0), loss=loss, **options)
        made[name] = tmp_path_factory.mktemp("shared") / name
        vfl.train(spec, shares.table(), at="inprocess", output=made[name])
    return made


class TestTrust:
    """The threat model of training on shares is checked within the certificate, without the job."""

    def altered(self, run: Path, folder: Path, **changes: Any) -> Path:
        path = folder / "certificate.json"
        path.write_bytes((run / "certificate.json").read_bytes())
        resigned(folder, trust={**certificate(folder).trust, **changes})
        return path

    @pytest.mark.parametrize("loss", ["logistic", "squared"])
    def test_a_true_one_holds_and_is_said(self, shared: dict[str, Path], loss: str) -> None:
        for place in (shared[loss], shared[loss] / "certificate.json"):
            (check,) = (check for check in verify_run(place).checks if check.name == "trust")
            price = "1.15" if loss == "logistic" else "1.22"
            assert check.holds
            assert check.finding.startswith(
                f"up to 1 of 3 parties may pool what they saw, a separate dealer, {price} times the noise charged to ε"
            )
        assert all(holds is not False for holds in findings(shared[loss]).values())

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"collude": 2}, "the shares are held by"),
            ({"collude": 3}, "its roles contradict one another"),
            ({"price": 1.0}, "an opened sum has 1.155 times the noise"),
            ({"bits": 60}, "outside the range from 34 to 40"),
            ({"products": 1.5**0.5}, "for products of columns"),
            ({"holders": ["q2"]}, "the shares are held by 'q2', 'q0', not by 'q2'"),
            ({"holders": ["q9", "q0"]}, "its roles contradict one another"),
            ({"contributors": ["q0", "q1", "q2"]}, "has to be drawn by 'q0', 'q1', 'q2', 'dealer'"),
            ({"contributors": ["q0", "q0", "q2", "dealer"]}, "its roles contradict one another"),
        ],
    )
    def test_a_contradiction_fails(
        self, shared: dict[str, Path], tmp_path: Path, changes: dict[str, Any], said: str
    ) -> None:
        path = self.altered(shared["logistic"], tmp_path, **changes)
        (check,) = (check for check in verify_run(path).checks if check.name == "trust")
        assert check.holds is False
        assert said in check.finding

    def test_a_run_without_a_dealer_holds_and_names_what_takes_its_place(self, shared: dict[str, Path]) -> None:
        for place in (shared["pair"], shared["pair"] / "certificate.json"):
            (check,) = (check for check in verify_run(place).checks if check.name == "trust")
            assert check.holds
            assert f"(BFV by {library()}; RLWE, at least 192 bits), 1.41 times the noise" in check.finding
            assert check.finding.endswith("nor the library's version")
        assert all(holds is not False for holds in findings(shared["pair"]).values())

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"scheme": "CKKS"}, "states the encryption"),
            ({"assumption": "none"}, "states the encryption"),
            ({"bits": 256}, "states the encryption"),
            ({"statistical_bits": 128}, "states the encryption"),
            ({"library": "OpenFHE 1.2"}, "encrypted with 'OpenFHE 1.2', which vfl does not use"),
            ({"library": "TenSEAL"}, "which vfl does not use"),
            ({"library": ""}, "which vfl does not use"),
        ],
    )
    def test_lies_about_the_encryption(
        self, shared: dict[str, Path], tmp_path: Path, changes: dict[str, Any], said: str
    ) -> None:
        encryption = certificate(shared["pair"]).trust["encryption"] | changes
        path = self.altered(shared["pair"], tmp_path, encryption=encryption)
        (check,) = (check for check in verify_run(path).checks if check.name == "trust")
        assert check.holds is False
        assert said in check.finding

    def test_lies_about_the_dealer(self, shared: dict[str, Path], tmp_path: Path) -> None:
        path = self.altered(shared["pair"], tmp_path)
        trust, seen = certificate(tmp_path).trust, certificate(tmp_path).who_sees_what
        encryption = trust["encryption"]
        without = {name: value for name, value in trust.items() if name != "encryption"}
        for changed in (
            without,
            trust | {"price": 1.5**0.5},
            trust | {"contributors": [*trust["contributors"], "dealer"]},
            trust | {"contributors": [*trust["contributors"], "q2"]},
            trust | {"collude": 2},
        ):
            resigned(tmp_path, trust=changed)
            assert "trust" in wrong(path)
        dealt = without | {"dealer": "separate", "contributors": [*trust["contributors"], "dealer"], "price": 1.5**0.5}
        resigned(tmp_path, trust=dealt | {"encryption": encryption}, who_sees_what=seen | {"dealer": "nothing"})
        assert wrong(path) == {"trust"}
        resigned(tmp_path, trust=dealt, who_sees_what=seen | {"dealer": "nothing"})
        assert (
            wrong(path) == set()
        )  # it agrees with itself: the job, not the certificate alone, tells that nobody dealt
        federation = {"name": "credit", "digest": "0" * 64}
        for told in ({"who_sees_what": seen | {"dealer": ""}}, {"federation": federation | {"dealer": "notary"}}):
            resigned(path := self.altered(shared["pair"], tmp_path).parent, **told)
            with pytest.raises(OutputError, match="not a certificate"):
                verify_run(path / "certificate.json")

    def test_a_certificate_that_claims_a_dealer_contradicts_the_job(
        self, shared: dict[str, Path], tmp_path: Path
    ) -> None:
        copied = shutil.copytree(shared["pair"], tmp_path / "run")
        trust = {name: value for name, value in certificate(copied).trust.items() if name != "encryption"}
        trust |= {"dealer": "separate", "contributors": [*trust["contributors"], "dealer"], "price": 1.5**0.5}
        resigned(copied, trust=trust, who_sees_what=certificate(copied).who_sees_what | {"dealer": "nothing"})
        assert wrong(copied) == {"plan"}

    def test_another_version_of_the_library_at_the_reader_is_no_contradiction(
        self, shared: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert certificate(shared["pair"]).trust["encryption"]["library"] == library()
        monkeypatch.setattr(homomorphic, "version", lambda name: "9.9")
        assert library() == "TenSEAL 9.9"
        assert all(holds is not False for holds in findings(shared["pair"]).values())

    def test_products_are_held_by_all_parties(self, shared: dict[str, Path], tmp_path: Path) -> None:
        assert "trust" in wrong(self.altered(shared["squared"], tmp_path, holders=["q2", "q0"]))
        assert "trust" in wrong(self.altered(shared["squared"], tmp_path, price=1.0))

    def test_a_solver_that_does_not_work_on_shares(self, shared: dict[str, Path], tmp_path: Path) -> None:
        path = self.altered(shared["logistic"], tmp_path)
        resigned(tmp_path, solver={**certificate(tmp_path).solver, "name": "SGD"})
        assert "trust" in wrong(path)

    def test_runs_that_are_not_on_shares_have_no_such_check(self, run: Path) -> None:
        assert "trust" not in findings(run)


class TestFederation:
    """A certificate names the federation of its run, and a reader compares it with the file of its members."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        members = ("hub", "bank", "telco", "notary")
        identities = {name: new_identity(name, tmp_path).certificate_pem for name in members}
        write_federation(
            tmp_path / "credit.toml",
            name="credit",
            coordinator=("hub", identities.pop("hub")),
            address="127.0.0.1:8443",
            dealer=("notary", identities.pop("notary")),
            parties=identities,
        )
        return tmp_path / "credit.toml"

    @staticmethod
    def marked(run: Path, file: Path, **changes: str) -> None:
        read = read_federation(file)
        resigned(run, federation={"name": read.name, "digest": read.digest} | changes)

    def test_it_is_named_and_compared(self, copy: Path, file: Path) -> None:
        self.marked(copy, file)
        assert findings(copy)["federation"] is None
        assert "--federation FILE" in verify(copy)
        assert findings(copy, federation=file)["federation"]
        assert "'credit', digest" in verify(copy, "--federation", file)
        assert "of federation 'credit'" in str(certificate(copy))

    def test_other_members_fail(self, copy: Path, file: Path) -> None:
        self.marked(copy, file, digest="0" * 64)
        assert wrong(copy, federation=file) == {"federation"}
        self.marked(copy, file, name="other")
        assert wrong(copy, federation=file) == {"federation"}

    def test_the_organisation_that_dealt_is_compared(self, shared: dict[str, Path], tmp_path: Path, file: Path) -> None:
        path = tmp_path / "certificate.json"
        path.write_bytes((shared["logistic"] / "certificate.json").read_bytes())
        for dealer, holds in (("notary", True), ("bank", False), ("hub", False)):
            self.marked(tmp_path, file, dealer=dealer)
            assert wrong(path, federation=file) == (set() if holds else {"federation"})
        assert "'hub' dealt" in str(certificate(tmp_path))
        self.marked(tmp_path, file)  # it names nobody
        assert wrong(path, federation=file) == {"federation"}

    def test_other_runs_have_no_dealer(self, copy: Path, file: Path) -> None:
        self.marked(copy, file, dealer="notary")
        with pytest.raises(OutputError, match="dealer"):
            verify_run(copy)

    def test_a_run_of_one_operator(self, copy: Path, file: Path) -> None:
        assert "federation" not in findings(copy)
        assert wrong(copy, federation=file) == {"federation"}
