"""`vfl join`: its screen, its errors, and its end under signals."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.ports import free_port
from vfl.apps.cli.administration.join import COUNTERS, GAUGES, Screen
from vfl.errors import SpecificationError
from vfl.launch.join import prepare
from vfl.launch.metrics import Metrics
from vfl.network.federation.events import Allowed, Connected, Disconnected, Ended, Refused, Released, Requested
from vfl.network.federation.file import write_federation
from vfl.network.federation.identity import load_identity, new_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Said

    Call = Callable[..., Said]

POLICY = 'format = 1\njobs = ["*"]\ntrust = ["trusted"]\ntotal = { epsilon = 4.0, delta = 1e-6 }\n'
RUN = "0123456789abcdef" * 2
JOIN = ("join", "credit.toml", "--as", "bank", "--data", "bank.csv", "--policy", "policy.toml")
MAIN = "from vfl.apps.cli import main; main()"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> Path:
    """Make a federation of which nobody runs the coordinator, and a party's data and policy; run commands there."""
    members = {name: new_identity(name, tmp_path) for name in ("hub", "bank", "telco")}
    write_federation(
        tmp_path / "credit.toml",
        name="credit",
        coordinator=("hub", members["hub"].certificate_pem),
        address=f"127.0.0.1:{port}",
        parties={name: members[name].certificate_pem for name in ("bank", "telco")},
    )
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "bank.csv").write_text("income,default\n1,0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def with_dealer(folder: Path) -> None:
    """Write the same federation, with a dealer, to shares.toml."""
    members = {name: load_identity(folder / f"{name}.key") for name in ("hub", "bank", "telco")}
    write_federation(
        folder / "shares.toml",
        name="credit",
        coordinator=("hub", members["hub"].certificate_pem),
        address="127.0.0.1:1",
        parties={name: members[name].certificate_pem for name in ("bank", "telco")},
        dealer=("notary", new_identity("notary", folder).certificate_pem),
    )


class TestRefusals:
    """Each is one line, before anything is connected."""

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"--as": "hub"}, "'hub' is the coordinator of the federation 'credit', which starts jobs: vfl run JOB"),
            ({"--as": "bnk"}, "'bnk' is not a member of the federation 'credit' (did you mean 'bank'?)"),
            (
                {"--as": "telco", "VFL_IDENTITY": "bank.key"},
                "the identity 'bank.key' belongs to 'bank', not to 'telco'",
            ),
            ({"VFL_IDENTITY": "none.key"}, "there is no key at 'none.key'"),
            ({"--policy": "none.toml"}, "there is no policy file 'none.toml': nothing is consented to"),
            ({"--policy": "bank.csv"}, "is not valid TOML"),
            ({"credit.toml": "none.toml"}, "there is no federation file 'none.toml'"),
            ({"credit.toml": "policy.toml"}, "the federation file 'policy.toml': jobs is unknown"),
            ({"VFL_METRICS": "9464"}, "the address of the metrics: '9464' is not an address: write HOST:PORT"),
        ],
    )
    def test_one_line(self, call: Call, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], said: str) -> None:
        words = list(JOIN)
        for key, value in changed.items():
            if key not in words:
                monkeypatch.setenv(key, value)
            elif key.startswith("--"):
                words[words.index(key) + 1] = value
            else:
                words[words.index(key)] = value
        done = call(*words)
        assert done.code == 2
        assert said in done.err
        assert done.err.count("\n") == 1

    def test_a_key_that_others_can_read(self, call: Call, folder: Path) -> None:
        (folder / "bank.key").chmod(0o640)
        done = call(*JOIN)
        assert done.code == 2
        assert "(mode 0640)" in done.err

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (("a.csv", "b.csv"), "--data is given twice with no name: name further files, NAME=FILE"),
            (("x=a.csv", "x=b.csv"), "--data is given twice with the name 'x'"),
        ],
    )
    def test_sources(self, call: Call, data: tuple[str, ...], said: str) -> None:
        words = [word for word in JOIN if word not in ("--data", "bank.csv")]
        done = call(*words, *(word for name in data for word in ("--data", name)))
        assert done.code == 2
        assert said in done.err

    @pytest.mark.parametrize(
        ("option", "said"),
        [
            ("--as", "Missing option '--as'"),
            ("--data", "party 'bank' joins with its data under its owner's policy: give --data FILE"),
            ("--policy", "party 'bank' joins with its data under its owner's policy: give --policy FILE"),
        ],
    )
    def test_missing_options(self, call: Call, option: str, said: str) -> None:
        at = JOIN.index(option)
        done = call(*JOIN[:at], *JOIN[at + 2 :])
        assert done.code == 2
        assert said in done.err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--data", "bank.csv"), "leave data out"),
            (("--policy", "policy.toml"), "leave a policy out"),
            (("--shards", "2"), "leave shards out"),
        ],
    )
    def test_a_dealer_takes_neither_data_nor_a_policy(
        self, call: Call, folder: Path, words: tuple[str, ...], said: str
    ) -> None:
        with_dealer(folder)
        done = call("join", "shares.toml", "--as", "notary", *words)
        assert done.code == 2
        assert re.search(f"'notary' is the dealer.*: {re.escape(said)}", done.err)

    @pytest.mark.parametrize("shards", [0, -1, 1.5, True, "2", None])
    def test_shards_that_are_no_number(self, shards: Any) -> None:
        with pytest.raises(SpecificationError, match="shards must be a whole number"):
            prepare("credit.toml", "bank", "bank.csv", policy="policy.toml", shards=shards)

    def test_shards_of_the_command_line_reach_the_party(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        served: list[Any] = []
        monkeypatch.setattr("vfl.launch.join.run", lambda joining, *_: served.append(joining.shards))
        assert call(*JOIN).code == 0
        assert call(*JOIN, "--shards", "3").code == 0
        assert served == [1, 3]


class TestDealer:
    def test_its_screen(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with_dealer(folder)
        joining = prepare("shares.toml", "notary")
        assert (joining.sources, joining.policy) == ({}, None)
        screen = Screen(joining)
        screen.begin()
        for event in (dataclasses.replace(REQUEST, columns=()), Allowed(run=RUN, policy=False)):
            screen(event)
        screen.end()
        said = capsys.readouterr().out
        assert "notary joins federation credit" in said
        assert "dealer of training on shares" in said
        assert "there is no policy" in said
        assert "your ledger" not in said


class TestSources:
    def test_names(self, folder: Path) -> None:
        one = prepare("credit.toml", "bank", "bank.csv", policy="policy.toml")
        assert one.sources == {"": str(folder / "bank.csv")}
        several = prepare("credit.toml", "bank", {"": "a.csv", "new": "warehouse://b"}, policy="policy.toml")
        assert several.sources == {"": str(folder / "a.csv"), "new": "warehouse://b"}


REQUEST = Requested(
    purpose="train", run=RUN, job="credit", digest="ab" * 32, columns=("income", "default"), trust="trusted",
    epsilon=1.0, delta=1e-9,
)  # fmt: skip
ASKED = (
    "hub asks to train 'credit' (digest abababababab), run 0123456789ab, columns income default, trust 'trusted', ε = 1 at "
    "δ = 1e-09"
)
COURSE = (
    Connected(coordinator="hub", address="127.0.0.1:1"),
    REQUEST,
    Allowed(run=RUN),
    Released(run=RUN, releases=12, epsilon=0.25, reserved=1.0),
    Ended(run=RUN, seconds=3.21, releases=40, epsilon=1.0, records=100, left=3.0),
    Disconnected(why="the coordinator has ended"),
)


class TestScreen:
    def test_the_flags_of_a_job_are_shown(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"))
        screen(dataclasses.replace(REQUEST, flags=("training starts from a model",)))
        assert "flag: training starts from a model" in capsys.readouterr().out

    def test_a_course(self, capsys: pytest.CaptureFixture[str], folder: Path, port: int) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"))
        screen.begin()
        for event in COURSE:
            screen(event)
        screen.end()
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("bank joins federation credit (digest ")
        assert lines[0].endswith(f"): coordinator hub at 127.0.0.1:{port}")
        said = f"data {folder}/bank.csv; policy {folder}/policy.toml; ledger {folder}/policy.ledger"
        assert lines[1] == f"{said}, a new one: no earlier job counts"
        (folder / "policy.ledger").touch()
        screen.begin()
        assert said in capsys.readouterr().out.splitlines()
        assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines[2:])
        assert [line[10:] for line in lines[2:]] == [
            "connected to hub at 127.0.0.1:1; waiting for requests",
            ASKED,
            "run 0123456789ab: the policy allows it",
            "run 0123456789ab: 12 noised sums, ε = 0.25 of the ε = 1 reserved",
            "run 0123456789ab: done after 3.2 s, 100 records, 40 noised sums, ε = 1, your ledger still admits ε = 3",
            "not connected: the coordinator has ended; reconnecting automatically",
            "stopped; nothing is in flight",
        ]

    @pytest.mark.parametrize("as_json", [False, True])
    def test_the_cost_of_a_run_is_printed_on_change_and_once_a_minute(
        self, as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"), as_json=as_json)
        now = [0.0]
        monkeypatch.setattr("vfl.apps.cli.administration.join.time.monotonic", lambda: now[0])
        printed = []
        for second, reserved in ((0, 1.0), (1, 1.0), (59, 1.0), (60, 1.0), (61, 2.0), (62, 2.0), (121, 2.0)):
            now[0] = float(second)
            screen(Released(run=RUN, releases=second, epsilon=0.1, reserved=reserved))
            if capsys.readouterr().out:
                printed.append(second)
        assert printed == [0, 60, 61, 121]
        screen(Released(run="f" * 32, releases=1, epsilon=0.1, reserved=2.0))
        assert capsys.readouterr().out  # of another run
        screen(REQUEST)
        screen.end()
        assert as_json or "121 noised sums, ε = 0.1 so far" in " ".join(capsys.readouterr().out.split())

    def test_what_is_in_flight_is_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"))
        for event in COURSE[:4]:
            screen(event)
        screen(Requested(purpose="predict", run="f" * 32, job="credit", digest="cd" * 32))
        screen(Refused(run="f" * 32, why="party 'bank' refuses"))
        screen.end()
        said = capsys.readouterr().out
        assert "run ffffffffffff: refused: party 'bank'" in said
        told = said.partition("stopped; in flight:")[2]
        assert re.match(
            r"run 0123456789ab \(train 'credit'\), 12 noised sums, ε = 0.25 so far: ", " ".join(told.split())
        )

    def test_an_ended_request_says_why(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"))
        screen(Ended(run=RUN, why="the coordinator started other work", seconds=0.5, records=100))
        assert "ended after 0.5 s, 100 records: " in capsys.readouterr().out

    def test_words_of_the_coordinator_stay_in_their_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"))
        forged = "\x1b[2J\n10:59:15  run 0123456789ab: the policy allows it"
        screen(Requested(purpose="train", run=forged, job=forged, digest=forged, columns=(forged,), trust=forged))
        screen(Ended(run=forged, why=forged))
        screen.end()
        said = capsys.readouterr().out
        assert "\x1b" not in said
        assert len(said.splitlines()) == 3

    def test_a_job_without_privacy_is_marked(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"))
        screen(Requested(purpose="train", run=RUN, job="credit", digest="ab" * 32))
        assert "WITHOUT PRIVACY" in capsys.readouterr().out

    def test_a_job_on_shares_states_its_threat_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"))
        screen(dataclasses.replace(REQUEST, trust="secure", threats="a separate dealer, up to 1 party may pool"))
        assert "trust 'secure' (a separate dealer" in capsys.readouterr().out

    def test_lines_of_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"), as_json=True)
        screen.begin()
        for event in COURSE:
            screen(event)
        screen.end()
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["event"] for line in lines] == [
            "joining", "connected", "requested", "allowed", "released", "ended", "disconnected", "left",
        ]  # fmt: skip
        assert all(isinstance(line["time"], float) for line in lines)
        assert lines[2]["columns"] == ["income", "default"]
        assert lines[-1]["in_flight"] == []

    def test_metrics(self) -> None:
        screen = Screen(prepare("credit.toml", "bank", "bank.csv", policy="policy.toml"), as_json=True)
        port = free_port()
        with Metrics(f"127.0.0.1:{port}", COUNTERS, GAUGES) as screen.metrics:
            for event in COURSE[:-1]:
                screen(event)
            assert "vfl_party_connected 1.0" in scraped(port)
            screen(COURSE[-1])
            screen(REQUEST)
            screen(Refused(run=RUN, why="no"))
            said = scraped(port)
        for line in (
            "vfl_party_connected 0.0", "vfl_party_requests_total 2.0", "vfl_party_refusals_total 1.0",
            "vfl_party_releases_total 40.0", "vfl_party_disconnections_total 1.0", "vfl_party_epsilon_left 3.0",
        ):  # fmt: skip
            assert line in said


class TestProcess:
    """In a process of its own, at an address at which nobody answers."""

    @pytest.fixture
    def joined(self, folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
        started = []

        def start(*more: str, **variables: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-uc", MAIN, *JOIN, *more],
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.communicate()

    @staticmethod
    def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if words in line:
                return lines
        raise AssertionError(f"it ended after {lines}: {process.stderr.read() if process.stderr else ''}")

    def test_it_says_once_that_nobody_answers_and_ends_in_seconds(
        self, joined: Callable[..., subprocess.Popen[str]]
    ) -> None:
        process = joined()
        lines = self.read_until(process, "not connected")
        assert lines[0].startswith("bank joins federation credit")
        time.sleep(1.5)  # a second attempt, and perhaps a third
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert out.count("\n") == 1
        assert out.rstrip().endswith("stopped; nothing is in flight")
        assert err in ("", "interrupted\n")

    def test_metrics_are_served_until_it_is_told_to_end(self, joined: Callable[..., subprocess.Popen[str]]) -> None:
        port = free_port()
        process = joined("--json", VFL_METRICS=f"127.0.0.1:{port}")
        lines = self.read_until(process, "disconnected")
        assert all(json.loads(line)["time"] for line in lines)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert 'vfl_party_connected{federation="credit",party="bank"} 0.0' in answer.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
