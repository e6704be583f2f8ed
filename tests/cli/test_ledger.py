"""`vfl ledger`: output and actions for the data owner, exit codes, and refusals."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

import vfl
from coordinator.rounds import Round
from vfl.apps import cli
from vfl.base.types import Adjacency
from vfl.errors import BudgetError, LedgerError, OutputError, SpecificationError, VflError
from vfl.launch.train import resume
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.gaussian_dp import mu_of
from vfl.privacy.ledger import DatasetBudget, SqliteLedger

if TYPE_CHECKING:
    from pathlib import Path

DELTA = 1e-9
EVENT = Gaussian(Adjacency.REPLACE_ONE, 1.0, noise_multiplier(mu_of(1.0, DELTA), 10), 1)


def ledger(*arguments: object) -> str:
    """Run `vfl ledger ...` and return its output; raise the error that `main` would turn into an exit code."""
    done = CliRunner().invoke(cli.vfl, ["ledger", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refused(kind: type[VflError], *arguments: object) -> str:
    with pytest.raises(VflError) as raised:
        ledger(*arguments)
    assert type(raised.value) is kind
    return str(raised.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a ledger with a cap of ε = 2, a settled run of ε = 1, and an open run with half of it charged."""
    path = tmp_path / "book.db"
    ledger("cap", path, "credit", "--epsilon", 2, "--delta", DELTA)
    book = DatasetBudget(SqliteLedger(path), "credit")
    whole = book.reserve([(EVENT, 10)], job="1" * 64, run="first")
    whole.charge([(ReleaseKey(k), EVENT) for k in range(10)])
    whole.settle()
    book.reserve([(EVENT, 10)], job="2" * 64, run="second").charge([(ReleaseKey(k), EVENT) for k in range(5)])
    return path


class TestShow:
    def test_text_output(self, path: Path) -> None:
        said = ledger("show", path)
        assert "credit: cap ε = 2 at δ = 1e-09" in said
        first, second = (next(line for line in said.splitlines() if run in line) for run in ("first", "second"))
        assert "settled" in first
        assert "111111111111" in first
        assert first.count(" 1 ") == 2
        assert "open" in second
        assert " 5 " in second
        assert SqliteLedger(path).head().hash in said
        assert "stopped early" not in said

    def test_a_spent_budget_leaves_nothing(self, tmp_path: Path) -> None:
        """Rounding leaves ε = 1e-9 or so, which no plan can use."""
        path = tmp_path / "book.db"
        ledger("cap", path, "credit", "--epsilon", 1, "--delta", DELTA)
        book = DatasetBudget(SqliteLedger(path), "credit")
        whole = book.reserve([(EVENT, 10)], job="1" * 64, run="first")
        whole.charge([(ReleaseKey(k), EVENT) for k in range(10)])
        whole.settle()
        assert 0 < SqliteLedger(path).show()[0].left < 1e-6
        assert "fits ε = 0 (the budget is spent)" in str(SqliteLedger(path).show()[0])
        with pytest.raises(VflError, match="and nothing is left"):
            book.reserve([(EVENT, 1)], job="2" * 64, run="second")

    @pytest.mark.parametrize("width", [30, 80, 120])
    def test_an_id_is_whole_at_any_width(self, path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
        """Users copy ids into `vfl ledger settle`."""
        run = "0123456789abcdef" * 2
        DatasetBudget(SqliteLedger(path), "credit").reserve([(EVENT, 1)], job="3" * 64, run=run)
        monkeypatch.setenv("COLUMNS", str(width))
        said = ledger("show", path)
        line = next(line for line in said.splitlines() if run in line)
        assert ("333333333333" in line) is (width == 120)
        assert "…" not in said
        for other in ("first", "second", "333333333333", "open", "settled"):
            assert other in said

    def test_json_output(self, path: Path) -> None:
        shown = json.loads(ledger("show", path, "--json"))
        (credit,) = shown["datasets"]
        assert shown["head"] == {"seq": SqliteLedger(path).head().seq, "hash": SqliteLedger(path).head().hash}
        assert (credit["dataset"], credit["epsilon"], credit["delta"]) == ("credit", 2.0, DELTA)
        assert [run["status"] for run in credit["runs"]] == ["settled", "open"]
        assert [run["releases"] for run in credit["runs"]] == [10, 5]

    def test_one_data_set(self, path: Path) -> None:
        ledger("cap", path, "other", "--epsilon", 1, "--delta", DELTA)
        assert "credit" not in ledger("show", path, "other")
        assert "'credti' (did you mean 'credit'?)" in refused(SpecificationError, "show", path, "credti")

    def test_an_exhausted_ledger_stays_readable(self, path: Path) -> None:
        DatasetBudget(SqliteLedger(path), "credit").resume("second", job="2" * 64).charge([(ReleaseKey(9), EVENT)])
        path.chmod(0o400)
        assert "credit: cap" in ledger("show", path)

    def test_names_are_printed_as_text_not_markup(self, tmp_path: Path) -> None:
        ledger("cap", tmp_path / "b.db", "[red]x[/red]", "--epsilon", 1, "--delta", DELTA)
        DatasetBudget(SqliteLedger(tmp_path / "b.db"), "[red]x[/red]").reserve(
            [(EVENT, 1)], job="j", run="[bold]r[/bold]"
        )
        said = ledger("show", tmp_path / "b.db")
        assert "[red]x[/red]: cap" in said
        assert "[bold]r[/bold]" in said

    def test_a_file_that_is_not_a_ledger_is_refused(self, tmp_path: Path) -> None:
        missing = tmp_path / "none.db"
        assert f"vfl ledger cap {missing} DATASET --epsilon E --delta D" in refused(LedgerError, "show", missing)
        (tmp_path / "text").write_text("no database, and longer than a header of one" * 40)
        assert "not an SQLite file" in refused(LedgerError, "show", tmp_path / "text")


class TestCap:
    def test_cap_is_the_remedy_named_by_the_ledgers_errors(self, tmp_path: Path) -> None:
        """Read `vfl ledger cap LEDGER DATASET --epsilon E --delta D` from a message, with values put in."""
        with pytest.raises(LedgerError) as raised:
            SqliteLedger(tmp_path / "b.db").show()
        told = str(raised.value).rpartition("vfl ")[2]
        for name, value in (("DATASET", "credit"), (" E ", " 1.5 "), (" D", " 1e-9")):
            told = told.replace(name, value)
        ledger(*told.split()[1:])
        (balance,) = SqliteLedger(tmp_path / "b.db").show()
        assert (balance.dataset, balance.epsilon, balance.delta) == ("credit", 1.5, 1e-9)

    def test_a_cap_is_not_lowered_below_the_spent_budget(self, path: Path) -> None:
        ledger("cap", path, "credit", "--epsilon", 3, "--delta", DELTA)
        assert json.loads(ledger("show", path, "--json"))["datasets"][0]["epsilon"] == 3.0
        assert "so its cap cannot be ε = 1" in refused(
            BudgetError, "cap", path, "credit", "--epsilon", 1, "--delta", DELTA
        )

    def test_accounting_is_fixed_after_the_first_run(self, path: Path) -> None:
        said = json.loads(
            ledger("cap", path, "new", "--epsilon", 1, "--delta", DELTA, "--accountant", "zcdp", "--json")
        )
        assert said["accounting"] == "zcdp"
        asked = ("cap", path, "credit", "--epsilon", 3, "--delta", DELTA, "--accountant", "zcdp")
        assert "uses gdp accounting" in refused(BudgetError, *asked)

    def test_another_delta_requires_yes(self, path: Path) -> None:
        asked = ("cap", path, "credit", "--epsilon", 2, "--delta", 1e-6)
        assert "the new cap has δ = 1e-06" in refused(BudgetError, *asked)
        assert "δ = 1e-06" in ledger(*asked, "--yes")

    def test_a_change_after_releases_is_shown_wherever_the_ledger_is_read(self, path: Path) -> None:
        said = "was changed after 15 releases (entry 20), from ε = 2 at δ = 1e-09 to ε = 3 at δ = 1e-09"
        assert said not in ledger("verify", path)
        for words in (
            ledger("cap", path, "credit", "--epsilon", 3, "--delta", DELTA),
            ledger("show", path),
            ledger("verify", path),
            *json.loads(ledger("verify", path, "--json"))["revisions"],
        ):
            assert said in words
        (revision,) = json.loads(ledger("show", path, "--json"))["datasets"][0]["revisions"]
        assert (revision["releases"], revision["epsilon_before"], revision["epsilon"]) == (15, 2.0, 3.0)

    @pytest.mark.parametrize(("epsilon", "delta"), [(0, DELTA), (-1, DELTA), ("nan", DELTA), (1, 0), (1, 1)])
    def test_invalid_caps_are_refused(self, tmp_path: Path, epsilon: object, delta: object) -> None:
        with pytest.raises(VflError) as raised:
            ledger("cap", tmp_path / "b.db", "credit", f"--epsilon={epsilon}", f"--delta={delta}")
        assert raised.value.exit_code == 2
        assert not (tmp_path / "b.db").exists()


class TestAudit:
    def test_entries_in_a_file(self, path: Path, tmp_path: Path) -> None:
        said = json.loads(ledger("verify", path, "--output", tmp_path / "out.json", "--json"))
        document = json.loads((tmp_path / "out.json").read_text())
        assert [e["kind"] for e in document["entries"][:3]] == ["cap", "reserve", "charge"]
        assert said["head"]["seq"] == len(document["entries"])
        assert "exists: name a new one" in refused(OutputError, "verify", path, "--output", tmp_path / "out.json")

    def test_verify(self, path: Path) -> None:
        head = SqliteLedger(path).head()
        assert head.hash in ledger("verify", path)
        noted = f"{head.seq}:{head.hash}"
        DatasetBudget(SqliteLedger(path), "credit").resume("second", job="2" * 64)
        assert f"contains the head {noted}" in ledger("verify", path, "--head", noted)
        assert json.loads(ledger("verify", path, "--head", noted, "--json"))["ok"] is True
        other = f"{head.seq}:{'0' * 64}"
        assert "older copy or another ledger" in refused(LedgerError, "verify", path, "--head", other)
        assert "SEQ:HASH" in refused(SpecificationError, "verify", path, "--head", head.hash)

    def test_verify_finds_a_changed_row(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("DROP TRIGGER entries_are_not_changed")
            connection.execute("UPDATE entries SET run = 'nobody' WHERE seq = 4")
            connection.commit()
        for asked in (("verify",), ("show",), ("verify", "--output", path.with_name("entries.json"))):
            assert "damaged at entry 4" in refused(LedgerError, asked[0], path, *asked[1:])
        assert not path.with_name("entries.json").exists()

    def test_replay(self, path: Path) -> None:
        spent = SqliteLedger(path).show()[0].spent
        by = {way: json.loads(ledger("show", path, "credit", "--accountant", way, "--json")) for way in ("gdp", "zcdp")}
        assert by["gdp"]["epsilon"] == pytest.approx(spent, rel=1e-12)
        assert by["zcdp"]["epsilon"] > spent
        assert {said["releases"] for said in by.values()} == {15}
        assert "15 releases on 'credit': ε = 1.2" in ledger("show", path, "credit", "--accountant", "gdp")
        ledger("cap", path, "empty", "--epsilon", 1, "--delta", DELTA)
        assert json.loads(ledger("show", path, "empty", "--accountant", "gdp", "--json"))["epsilon"] == 0.0
        done = CliRunner().invoke(cli.vfl, ["ledger", "show", str(path), "--accountant", "gdp"])
        assert (done.exit_code, "--accountant needs a DATASET" in done.output) == (2, True)


class Cut(Exception):
    """Cut a run off."""


class TestSettle:
    def job(self, dataset: str | None = "credit") -> vfl.Job:
        return vfl.Job(
            partition=vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, label=("bank", "y")),
            bounds={"a": (-1.0, 1.0), "b": (-1.0, 1.0)},
            privacy=vfl.Privacy(epsilon=1.0, delta=DELTA),
            solver=vfl.SkGD(passes=60, block_size=1, clip="coordinate"),
            dataset=dataset,
        )

    def data(self) -> dict[str, Any]:
        rng = np.random.default_rng(1)
        return {"a": rng.uniform(-1, 1, 40), "b": rng.uniform(-1, 1, 40), "y": rng.integers(0, 2, 40)}

    def cut_off(
        self, folder: Path, book: Path | None, *, dataset: str | None = "credit", at: int = 3, **more: Any
    ) -> None:
        def cut(event: Any) -> None:
            if isinstance(event, Round) and event.number == at:
                raise Cut

        with pytest.raises(Cut):
            vfl.train(self.job(dataset), vfl.Source(self.data(), **more), ledger=book, output=folder, watch=cut)

    def test_uncharged_releases_are_freed(self, tmp_path: Path) -> None:
        book = tmp_path / "book.db"
        ledger("cap", book, "credit", "--epsilon", 1, "--delta", DELTA)
        self.cut_off(tmp_path / "run", book)
        before = SqliteLedger(book).show()[0]
        assert "stay charged" in ledger("settle", tmp_path / "run")
        after = SqliteLedger(book).show()[0]
        assert before.runs[0].status == "open"
        assert after.runs[0].status == "settled"
        # The next batch of charges may have been sent when the run was cut off.
        assert 0 < before.spent <= after.spent == after.committed < before.committed
        with pytest.raises(BudgetError, match=r"closed.*new run"):
            resume(tmp_path / "run", self.data(), at="inprocess")
        assert not (tmp_path / "run" / "model.json").exists()
        assert "is settled" in refused(SpecificationError, "settle", tmp_path / "run")

    def test_a_run_with_a_ledger_of_its_own_and_json(self, tmp_path: Path) -> None:
        self.cut_off(tmp_path / "run", None, dataset=None)
        statement = json.loads(ledger("settle", tmp_path / "run", "--json"))
        assert 0 < statement["spent"] < statement["reserved"]

    def test_its_own_ledger_is_found(self, tmp_path: Path) -> None:
        run, own = tmp_path / "run", tmp_path / "run" / "ledger.db"
        self.cut_off(run, None, dataset=None)
        for asked in (("show", run), ("verify", run), ("settle", "x", "--ledger", run)):
            said = refused(OutputError, *asked)
            assert said.startswith(repr(str(run)))
            assert said.endswith(str(own))
        assert "no ledger.db" in refused(OutputError, "show", tmp_path)
        (account,) = SqliteLedger(own).show()
        said = refused(SpecificationError, "show", own, "credit")
        assert re.search(f"no data set 'credit'.*{account.dataset!r}", said)

    def test_by_id_when_the_folder_is_lost(self, tmp_path: Path, path: Path) -> None:
        assert "5 releases stay charged" in ledger("settle", "second", "--ledger", path)
        assert [run["status"] for run in json.loads(ledger("show", path, "--json"))["datasets"][0]["runs"]] == [
            "settled",
            "settled",
        ]
        assert "reserved nothing in the ledger" in refused(SpecificationError, "settle", "third", "--ledger", path)

    def test_uncharged_releases_are_refunded(self, path: Path) -> None:
        DatasetBudget(SqliteLedger(path), "credit").reserve([(EVENT, 1)], job="3" * 64, run="third")
        assert "nothing was charged" in ledger("settle", "third", "--ledger", path)
        assert SqliteLedger(path).show()[0].runs[2].status == "refunded"

    def test_a_run_at_work_is_not_settled(self, tmp_path: Path) -> None:
        book = tmp_path / "book.db"
        ledger("cap", book, "credit", "--epsilon", 1, "--delta", DELTA)
        seen = []

        def meanwhile(event: Any) -> None:
            if isinstance(event, Round) and event.number == 3:
                seen.append(refused(OutputError, "settle", tmp_path / "run"))

        vfl.train(self.job(), self.data(), at="inprocess", ledger=book, output=tmp_path / "run", watch=meanwhile)
        assert "another process is at work" in seen[0]

    def test_by_id_stops_the_process(self, tmp_path: Path) -> None:
        book = tmp_path / "book.db"
        ledger("cap", book, "credit", "--epsilon", 1, "--delta", DELTA)

        def meanwhile(event: Any) -> None:
            if isinstance(event, Round) and event.number == 3:
                (run,) = SqliteLedger(book).show()[0].runs
                ledger("settle", run.run, "--ledger", book)

        with pytest.raises(BudgetError, match="is closed"):
            vfl.train(self.job(), self.data(), at="inprocess", ledger=book, output=tmp_path / "run", watch=meanwhile)

    def test_an_older_copy_of_the_ledger(self, tmp_path: Path) -> None:
        book, backup = tmp_path / "book.db", tmp_path / "backup.db"
        ledger("cap", book, "credit", "--epsilon", 1, "--delta", DELTA)
        shutil.copy(book, backup)
        self.cut_off(tmp_path / "run", book)
        for file in tmp_path.glob("book.db*"):
            file.unlink()
        shutil.copy(backup, book)
        with pytest.raises(VflError):
            ledger("settle", tmp_path / "run")

    def test_a_partys_book_counts_the_whole_run(self, tmp_path: Path) -> None:
        (tmp_path / "bank.toml").write_text(f'format = 1\njobs = ["*"]\n[total]\nepsilon = 4.0\ndelta = {DELTA}\n')
        self.cut_off(tmp_path / "run", None, dataset=None, policy={"bank": tmp_path / "bank.toml"})
        (run,) = SqliteLedger(tmp_path / "bank.ledger").show()[0].runs
        assert "party bank: cap ε = 4" in ledger("show", tmp_path / "bank.ledger")
        assert f"all of run {run.run!r} counts" in refused(
            BudgetError, "settle", run.run, "--ledger", tmp_path / "bank.ledger"
        )

    def test_a_missing_run(self, tmp_path: Path) -> None:
        with pytest.raises(VflError):
            ledger("settle", tmp_path)


def test_help_names_every_command() -> None:
    said = ledger("--help")
    for name in ("show", "cap", "verify", "settle"):
        assert f"\n  {name} " in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show", "nowhere.db"), 6),
        (("show", "text"), 6),
        (("show", "empty.db", "credit"), 2),
        (("show", "empty.db", "credit", "--accountant", "zcdp"), 2),
        (("settle", "run", "--ledger", "nowhere.db"), 6),
        (("settle", "run", "--ledger", "empty.db"), 2),
        (("cap", "empty.db", "\n", "--epsilon", "1", "--delta", "1e-9"), 2),
        (("settle", "nowhere"), 6),
        (("cap", "x.db", "credit", "--epsilon", "0", "--delta", "1e-9"), 2),
        (("cap", "x.db", "credit"), 2),
    ],
)
def test_exit_codes(
    arguments: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no database, and longer than a header of one" * 40)
    SqliteLedger(tmp_path / "empty.db")._store.create()
    monkeypatch.setattr("sys.argv", ["vfl", "ledger", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert "rror: " in capsys.readouterr().err
