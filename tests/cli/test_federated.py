"""--at FILE.toml on the coordinator's commands: refusals, each in one line and before a folder is made."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from vfl.apps.cli.options.site import LINKS, Where, watched
from vfl.errors import OutputError, SpecificationError
from vfl.network.federation.file import write_federation
from vfl.network.federation.identity import load_identity, new_identity

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

    Call = Callable[..., Said]

JOB = """format = 1
name = "credit"
id = "customer"
partition = { parties = { bank = ["income"], telco = ["calls"] }, label = ["bank", "default"] }
bounds = { income = [0, 100], calls = [0, 500] }
privacy = { epsilon = 2.0, delta = 1e-5 }
[data]
bank = "nowhere.csv"
telco = "nowhere.csv"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    members = {name: new_identity(name, tmp_path) for name in ("hub", "bank", "telco")}
    write_federation(
        tmp_path / "credit.toml",
        name="credit",
        coordinator=("hub", members["hub"].certificate_pem),
        address="127.0.0.1:1",
        parties={name: members[name].certificate_pem for name in ("bank", "telco")},
    )
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "other.toml").write_text(JOB.replace("telco", "clinic"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VFL_INDEX", str(tmp_path / "indexes"))
    return tmp_path


ACROSS = ("--at", "credit.toml")


@pytest.mark.parametrize("dealer", ["separate", "coordinator", "none"])
def test_a_plan_names_a_dealer_only_if_an_organisation_of_its_own_deals(call: Call, folder: Path, dealer: str) -> None:
    """In a federation without such an organisation, a job that needs one is refused before anybody is awaited."""
    words = ("plan", "job.toml", *ACROSS, "--records", "30000", "--set", f"trust.dealer={dealer}")
    done = call(*words)
    if dealer == "separate":
        assert done.code == 2
        assert "'credit' names none" in done.err
        assert "'none' if there are two parties" in done.err
        members = {name: load_identity(folder / f"{name}.key").certificate_pem for name in ("hub", "bank", "telco")}
        write_federation(
            folder / "shares.toml",
            name="credit",
            coordinator=("hub", members.pop("hub")),
            address="127.0.0.1:1",
            parties=members,
            dealer=("notary", new_identity("notary", folder).certificate_pem),
        )
        assert "bank, telco; dealer notary\n" in call(*(w.replace("credit.toml", "shares.toml") for w in words)).out
        assert "bank, telco\n" in call(*(w.replace("credit", "shares") for w in words[:-1]), "trust.dealer=none").out
    else:
        assert "bank, telco\n" in done.out


def test_text_in_place_of_a_table_is_removed_first(call: Call) -> None:
    words = ("plan", "job.toml", "--records", "30000", "--set", "trust=secure", "--set", "trust.dealer=none")
    assert "'trust' is not a table; remove it first with --set trust=" in call(*words).err


class TestRefusals:
    @pytest.mark.parametrize("command", ["run", "align"])
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ((*ACROSS, "--data", "bank.csv"), "with a federation, --data takes PARTY=NAME, not 'bank.csv'"),
            ((*ACROSS, "--data", "bnk=x"), "--data bnk=x: there is no party 'bnk' (did you mean 'bank'?)"),
            ((*ACROSS, "--data", "bank=x", "--data", "bank=y"), "--data names 'bank' twice"),
            (("--at", "none.toml"), "there is no federation file 'none.toml'"),
            (("--at", "job.toml"), "the federation file 'job.toml': id is unknown"),
        ],
    )  # fmt: skip
    def test_one_line(self, call: Call, folder: Path, command: str, words: tuple[str, ...], said: str) -> None:
        done = call(command, "job.toml", *words)
        assert done.code == 2
        assert said in done.err
        assert done.err.count("\n") == 1
        assert not (folder / "runs").exists()

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--data", "bank=x"), "--data needs a federation: --at FILE.toml"),
            (("--metrics", "127.0.0.1:9464"), "No such option '--metrics': it is the environment variable VFL_METRICS"),
            (("--log", "log"), "No such option '--log': it is the environment variable VFL_LOG"),
            (("--at", "rey"), "unknown site at='rey' (did you mean 'ray'?)"),
            (("--federation", "credit.toml"), "No such option '--federation': it is --at"),
            (("--shards", "2"), "a value of the job is given as --set ray.shards=..."),
        ],
    )
    def test_options_that_do_not_fit(self, call: Call, folder: Path, words: tuple[str, ...], said: str) -> None:
        done = call("run", "job.toml", *words)
        assert done.code == 2
        assert said in " ".join(done.err.split())
        assert not (folder / "runs").exists()

    def test_metrics_at_no_address(self, call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFL_METRICS", "9464")
        (folder / "candidates.toml").write_text("candidates = [{}]\n")
        for words in (("run",), ("align",), ("tune", "--candidates", "candidates.toml")):
            done = call(words[0], "job.toml", *words[1:], *ACROSS)
            assert (done.code, "the address of the metrics: '9464' is not an address" in done.err) == (2, True)
        assert not list(folder.glob("runs/*/job.toml"))

    def test_a_party_that_is_not_in_the_federation(self, call: Call) -> None:
        for command in (("run", *ACROSS), ("align", *ACROSS), ("plan", *ACROSS, "--records", "100")):
            done = call(command[0], "other.toml", *command[1:])
            assert done.code == 2
            assert "'clinic' is not a party of the federation" in done.err
            assert "its parties are bank, telco" in done.err

    @pytest.mark.parametrize(
        ("key", "said"),
        [
            ("bank.key", "the identity 'bank.key' belongs to 'bank', not to 'hub'"),
            ("none.key", "there is no key at 'none.key'"),
        ],
    )
    def test_a_key_of_somebody_else(self, call: Call, monkeypatch: pytest.MonkeyPatch, key: str, said: str) -> None:
        monkeypatch.setenv("VFL_IDENTITY", key)
        done = call("run", "job.toml", *ACROSS)
        assert (done.code, said in done.err) == (2, True)

    def test_the_coordinators_key_is_private(self, call: Call, folder: Path) -> None:
        (folder / "hub.key").chmod(0o644)
        done = call("run", "job.toml", *ACROSS)
        assert done.code == 2
        assert "(mode 0644)" in done.err

    def test_a_run_that_began_elsewhere(self, call: Call) -> None:
        done = call("resume", "none", *ACROSS)
        assert done.code == 6


class TestModels:
    """A run that is not there: the federation's options are checked first for predict, since it reads the run afterwards."""

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("run", *ACROSS, "--policy", "bank=x"), "--policy does not go with a federation"),
            (("bank=x", *ACROSS), "a party's part does not go with a federation"),
            (ACROSS, "Missing argument 'RUN | PARTY=PART...'"),
            (("run",), "Missing option '--data'"),
        ],
    )
    def test_predict(self, call: Call, words: tuple[str, ...], said: str) -> None:
        done = call("predict", *words)
        assert done.code == 2
        assert said in " ".join(done.err.split())


class TestPlan:
    def test_it_needs_no_key_and_names_the_digest(self, call: Call, folder: Path) -> None:
        (folder / "hub.key").unlink()
        digest = json.loads(call("federation", "show", "credit.toml", "--json").out)["digest"]
        said = call("plan", "job.toml", *ACROSS, "--records", "1000")
        assert said.code == 0, said.err
        assert f"federation credit, digest {digest}: bank, telco" in said.out

    def test_it_asks_for_an_alignment_across(self, call: Call) -> None:
        said = call("plan", "job.toml", *ACROSS)
        assert said.code == 2
        assert "--at credit.toml" in " ".join(said.err.split())


class TestWatched:
    def test_connections_are_printed(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VFL_LOG", str(folder / "log.jsonl"))
        with watched(Where(at=str(folder / "credit.toml")), ("bank", "telco")):
            for line in (
                {"event": "connected", "party": "bank"},
                {"event": "disconnected", "party": "bank", "why": "the connection broke"},
                {"event": "refused", "peer": "ab" * 32, "why": "no"},
                {"event": "disconnected", "party": "telco", "why": "the coordinator has ended"},
            ):
                logging.getLogger(LINKS).info(json.dumps(line))
        assert capsys.readouterr().err.splitlines() == [
            "waiting for bank, telco: each runs vfl join credit.toml",
            "bank is connected",
            "bank disconnected: the connection broke",
            f"a peer with the certificate {'ab' * 32} is refused: no",
        ]
        kept = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        assert [line["event"] for line in kept] == ["connected", "disconnected", "refused", "disconnected"]
        assert all(line["time"] > 1.7e9 for line in kept)

    def test_quiet(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with watched(Where(at=str(folder / "credit.toml")), (), quiet=True):
            logging.getLogger(LINKS).info(json.dumps({"event": "connected", "party": "bank"}))
        assert capsys.readouterr() == ("", "")

    def test_refusals(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFL_LOG", str(folder / "no" / "log"))
        with (
            pytest.raises(OutputError, match="cannot write the log"),
            watched(Where(at=str(folder / "credit.toml")), ()),
        ):
            pass
        monkeypatch.delenv("VFL_LOG")
        monkeypatch.setenv("VFL_METRICS", "x")
        with (
            pytest.raises(SpecificationError, match="write HOST:PORT"),
            watched(Where(at=str(folder / "credit.toml")), ()),
        ):
            pass
