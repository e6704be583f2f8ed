"""`vfl identity` and `vfl federation`: output, exit codes, and one line per error."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from vfl.network.federation.file import read_federation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

    Call = Callable[..., Said]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def members(call: Call) -> dict[str, str]:
    """Make three identities here; return their fingerprints."""
    return {
        name: json.loads(call("identity", "new", name, "--json").out)["fingerprint"]
        for name in ("hub", "bank", "telco")
    }


NEW = ("federation", "new", "credit")
HEAD = ("--coordinator", "hub=hub.pem@vfl.example.org:8443")
PARTIES = ("--party", "bank=bank.pem", "--party", "telco=telco.pem")


class TestIdentity:
    def test_new(self, call: Call, folder: Path) -> None:
        said = call("identity", "new", "bank")
        assert said.code == 0
        key, certificate, fingerprint = said.out.splitlines()
        assert key.startswith("bank.key: private key")
        assert certificate.startswith("bank.pem: certificate, valid until 20")
        assert len(fingerprint.removeprefix("fingerprint ")) == 64
        assert stat.S_IMODE((folder / "bank.key").stat().st_mode) == 0o600
        assert "PRIVATE" not in said.out

    def test_a_path_as_name(self, call: Call, folder: Path) -> None:
        (folder / "keys").mkdir()
        made = json.loads(call("identity", "new", "keys/bank", "--json").out)
        assert (made["name"], made["key"]) == ("bank", "keys/bank.key")
        assert (folder / "keys" / "bank.pem").exists()

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (("new", "a b"), 2, "'a b' cannot name a participant"),
            (("new", "bank", "--days", "0"), 2, "valid for 1 to 3653 days, not 0"),
            (("new", "none/bank"), 6, "cannot write 'none/bank.key': No such file"),
            (("new", "taken"), 6, "'taken.pem' exists and is not replaced"),
        ],
    )
    def test_errors_are_one_line(self, call: Call, folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
        (folder / "taken.pem").write_text("x")
        done = call("identity", *words)
        assert done.code == code
        assert said in done.err
        assert done.err.count("\n") == 1


class TestFederation:
    def test_new_and_show(self, call: Call, members: dict[str, str]) -> None:
        said = call(*NEW, *HEAD, *PARTIES)
        assert said.code == 0, said.err
        assert said.out == call("federation", "show", "credit.toml").out
        first, *rows, digest = said.out.splitlines()
        assert first.split("; ")[0] == "federation credit, coordinator at vfl.example.org:8443"
        assert [row.split()[:3] for row in rows] == [
            ["coordinator", "hub", members["hub"]],
            ["party", "bank", members["bank"]],
            ["party", "telco", members["telco"]],
        ]
        assert digest == f"digest {read_federation('credit.toml').digest}"
        plain = json.loads(call("federation", "show", "credit.toml", "--json").out)
        assert plain["digest"] in digest
        assert plain["members"]["bank"]["fingerprint"] == members["bank"]

    def test_a_dealer(self, call: Call, members: dict[str, str], folder: Path) -> None:
        own = json.loads(call("identity", "new", "notary", "--json").out)["fingerprint"]
        said = call(*NEW, *HEAD, *PARTIES, "--dealer", "notary=notary.pem")
        assert said.code == 0, said.err
        assert ["dealer", "notary", own] in [row.split()[:3] for row in said.out.splitlines()]
        plain = json.loads(call("federation", "show", "credit.toml", "--json").out)
        assert (plain["dealer"], list(plain["members"])) == ("notary", ["hub", "bank", "telco", "notary"])

    def test_output(self, call: Call, members: dict[str, str], folder: Path) -> None:
        (folder / "shared").mkdir()
        words = ("federation", "new", "shared/credit", *HEAD, *PARTIES)
        assert call(*words).code == 0
        assert read_federation(folder / "shared" / "credit.toml").name == "credit"
        again = call(*words)
        assert again.code == 6
        assert "'shared/credit.toml' exists" in again.err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--coordinator", "hub.pem@h:1", *PARTIES), "--coordinator takes NAME=FILE@HOST:PORT, not 'hub.pem@h:1'"),
            (("--coordinator", "hub=hub.pem", *PARTIES), "--coordinator takes NAME=FILE@HOST:PORT"),
            (("--coordinator", "hub=hub.pem@host", *PARTIES), "'host' is not an address: write HOST:PORT"),
            ((*HEAD, "--party", "bank.pem"), "--party takes NAME=FILE, not 'bank.pem'"),
            ((*HEAD, "--party", "bank=bank.pem", "--party", "bank=bank.pem"), "--party names 'bank' twice"),
            ((*HEAD, "--party", "bank=telco.pem"), "the certificate given for 'bank' is that of 'telco'"),
            ((*HEAD, "--party", "bank=bank.key"), "contains a private key"),
            ((*HEAD, "--party", "bank=none.pem"), "there is no certificate at 'none.pem'"),
            ((*HEAD, "--party", "hub=hub.pem"), "names two members 'hub'"),
            ((*HEAD, *PARTIES, "--dealer", "notary.pem"), "--dealer takes NAME=FILE, not 'notary.pem'"),
            ((*HEAD, *PARTIES, "--dealer", "bank=bank.pem"), "names two members 'bank'"),
        ],
    )
    def test_errors_are_one_line(
        self, call: Call, members: dict[str, str], folder: Path, words: tuple[str, ...], said: str
    ) -> None:
        done = call(*NEW, *words)
        assert done.code == 2
        assert said in done.err
        assert done.err.count("\n") == 1
        assert not (folder / "credit.toml").exists()
