"""kill -9 at random moments of `vfl run`, then `vfl resume`: a ledger never shows less than the drawn noise."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from vfl.errors import LedgerError, OutputError, VflError
from vfl.job import file as jobfile
from vfl.launch.train import resume
from vfl.privacy.events import ReleaseKey
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.ledger.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"))
DELTA = 1e-6
OTHERS = -1
"""Round number of the entry that stands for other parties' releases in a party ledger."""
MOMENTS = [pytest.param(k, marks=[pytest.mark.slow] if k >= 5 else []) for k in range(50)]


class Nursery:
    """Starts `vfl` commands in process groups of their own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert self.line() == "ready"

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def start(self, folder: Path, *argv: object) -> int:
        order = {"argv": [str(a) for a in argv], "cwd": str(folder), "draws": str(folder / "draws")}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.line())

    def wait(self) -> int:
        return int(self.line())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


class Site:
    """A folder with a table, a ledger, a job file, and policies if wanted."""

    def __init__(self, folder: Path, *, seeded: bool, books: bool = True) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.run = folder, folder / "run"
        # A data set's ledger refuses seeded noise, so such a run keeps its own ledger.
        self.ledger = self.run / "ledger.db" if seeded else folder / "ledger.db"
        self.party_ledgers = {party: folder / f"{party}.ledger" for party in PARTITION.parties}
        rng = np.random.default_rng(0)
        rows = np.column_stack([rng.uniform(-1, 1, (80, 5)), rng.integers(0, 2, 80)])
        np.savetxt(folder / "all.csv", rows, delimiter=",", header=",".join((*PARTITION.features, "y")), comments="")
        job = vfl.Job(
            partition=PARTITION,
            bounds=dict.fromkeys(PARTITION.features, (-1.0, 1.0)),
            privacy=vfl.Privacy(epsilon=1.0, delta=DELTA, noise=vfl.SeededNoise(7) if seeded else None),
            solver=vfl.SkGD(
                passes=60, block_size=1, clip="coordinate"
            ),  # a charge per release, so that keys can be compared
            dataset=None if seeded else "credit",
        )
        environment = '\n[simulation]\ntable = "all.csv"\n' + ("" if seeded else '[ledger]\npath = "ledger.db"\n')
        environment += "[policy]\n"
        for party in PARTITION.parties if books else ():
            environment += f'{party} = "{party}.toml"\n'
            (folder / f"{party}.toml").write_text(
                f'format = 1\njobs = ["*"]\nallow_non_private = true\n[total]\nepsilon = 4.0\ndelta = {DELTA}\n'
            )
        (folder / "job.toml").write_text(job.to_toml() + environment)
        if not seeded:
            SqliteLedger(self.ledger).set_cap("credit", epsilon=1.0, delta=DELTA)

    def begin(self, nursery: Nursery) -> int:
        return nursery.start(self.folder, "run", "job.toml", "--at", "inprocess", "--output", "run", "--json")

    def complete(self, nursery: Nursery) -> float:
        """Run without a fault; return the seconds from the first line of the log to the end."""
        self.begin(nursery)
        started = self.started()
        assert nursery.wait() == 0, (self.folder / "output").read_text()
        return time.monotonic() - started

    def started(self) -> float:
        deadline = time.monotonic() + 30
        while not (self.run / "rounds.log").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        return time.monotonic()

    def resume(self, nursery: Nursery) -> int:
        nursery.start(self.folder, "resume", "run", "--json")
        return nursery.wait()

    def drawn(self) -> list[ReleaseKey]:
        """Return all draws of noise, of all processes."""
        with contextlib.suppress(FileNotFoundError):
            return [ReleaseKey(*map(int, line.split())) for line in (self.folder / "draws").read_text().splitlines()]
        return []

    def model(self) -> bytes:
        return (self.run / "model.json").read_bytes()


def charges(path: Path) -> list[ReleaseKey]:
    """Return all keys charged in a ledger after verifying it; none if there is no ledger yet."""
    if not path.exists() or not path.stat().st_size:  # a kill during its creation leaves an empty file
        return []
    ledger = SqliteLedger(path)
    ledger.verify()
    entries = json.loads(ledger.export())["entries"]
    return [ReleaseKey(e["round"], e["part"], e["attempt"]) for e in entries if e["kind"] == "charge"]


def paid(keys: list[ReleaseKey]) -> set[ReleaseKey]:
    """Return the draws that ledger keys pay for; the joint release of moments is one charge and one draw per party."""
    return {*keys, *(ReleaseKey(0, k, key.attempt) for key in keys if key.round == 0 for k in range(2))}


def require_covered(site: Site) -> None:
    """Assert that all drawn noise is in the ledger and in the book of a party."""
    drawn = set(site.drawn())
    assert drawn <= paid(charges(site.ledger))
    books = {key for path in site.party_ledgers.values() for key in charges(path)}
    assert drawn <= books


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> tuple[float, bytes]:
    """Return the seconds of an undisturbed run with seeded noise, and its model."""
    site = Site(tmp_path_factory.mktemp("whole") / "site", seeded=True)
    seconds = site.complete(nursery)
    require_covered(site)
    return seconds, site.model()


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed_runs_end_with_the_same_model(
    nursery: Nursery, whole: tuple[float, bytes], tmp_path: Path, moment: int
) -> None:
    """The run is killed, most resumed runs are killed again, and the last one ends with the same model to the bit."""
    seconds, model = whole
    chance = np.random.default_rng(moment)
    site = Site(tmp_path / "site", seeded=True)
    pid = site.begin(nursery)
    site.started()
    time.sleep(chance.uniform(0, seconds))
    kill(pid)
    code = nursery.wait()
    require_covered(site)
    if chance.random() < 0.6:
        pid = nursery.start(site.folder, "resume", "run", "--json")
        time.sleep(chance.uniform(0, seconds))
        kill(pid)
        nursery.wait()
        require_covered(site)
    assert site.resume(nursery) == 0, (code, (site.folder / "output").read_text())
    require_covered(site)
    assert site.model() == model
    (credit,) = SqliteLedger(site.ledger).show()
    (run,) = credit.runs
    assert run.status in ("settled", "stopped early")  # a resumed run states its whole reservation
    assert run.spent <= run.reserved <= 1.0
    for path in site.party_ledgers.values():
        assert [run.status for run in SqliteLedger(path).show()[0].runs] == ["settled"]


@pytest.mark.parametrize("moment", MOMENTS[3:10])
def test_true_noise_is_never_drawn_twice_for_one_charge(
    nursery: Nursery, whole: tuple[float, bytes], tmp_path: Path, moment: int
) -> None:
    """A repeated release is a new attempt with its own charge, and all charges stay under the cap."""
    site = Site(tmp_path / "site", seeded=False)
    pid = site.begin(nursery)
    site.started()
    time.sleep(np.random.default_rng(100 + moment).uniform(0, whole[0]))
    kill(pid)
    nursery.wait()
    before = site.drawn()
    assert site.resume(nursery) == 0, (site.folder / "output").read_text()
    drawn = site.drawn()
    assert len(drawn) >= len(before)
    assert len(set(drawn)) == len(drawn)
    require_covered(site)
    (credit,) = SqliteLedger(site.ledger).show()
    assert credit.spent <= 1.0
    model = json.loads(site.model())
    assert np.isfinite(model["w"]).all()


class Cut(Exception):
    """Cut a run off."""


def cut_off(folder: Path, *, books: bool = True) -> Site:
    """Return the site of a seeded run that was cut off after forty rounds in this process."""

    def stop(event: Any) -> None:
        if getattr(event, "number", 0) == 40:
            raise Cut

    site = Site(folder, seeded=True, books=books)
    job, environment = jobfile.read(site.folder / "job.toml")
    with pytest.raises(Cut):
        vfl.train(
            job,
            environment,
            at="inprocess",
            output=site.run,
            watch=stop,
        )
    return site


@pytest.fixture
def cut(tmp_path: Path) -> Site:
    return cut_off(tmp_path / "site")


def go_on(site: Site, **options: Any) -> vfl.Result:
    return resume(site.run, str(site.folder / "all.csv"), at="inprocess", **options)


def test_two_resumes_at_once(nursery: Nursery, cut: Site) -> None:
    """The second ends with a message; the first is not disturbed."""
    said = []

    def meanwhile(event: Any) -> None:
        if getattr(event, "number", 0) == 45:
            said.append(cut.resume(nursery))

    go_on(cut, watch=meanwhile)
    assert said == [OutputError.exit_code]
    output = (cut.folder / "output").read_text()
    assert re.match("error: another process.*'run'\n", output)
    assert (cut.run / "model.json").exists()
    assert cut.resume(nursery) == 0  # resuming a finished run only shows it


def test_killed_while_ledger_and_books_were_created(
    tmp_path: Path, nursery: Nursery, whole: tuple[float, bytes]
) -> None:
    """The kill leaves no ledger, or one without an entry. Nothing was charged or drawn, so the run starts again."""
    site = Site(tmp_path / "site", seeded=True)
    for book in site.party_ledgers.values():
        SqliteStore(book, 1.0, readonly=False).create()
    site.begin(nursery)
    site.started()
    assert nursery.wait() == 0, (site.folder / "output").read_text()
    first = (site.run / "rounds.log").read_bytes().splitlines(keepends=True)[0]
    for path in (site.run / "model.json", site.run / "certificate.json"):
        path.unlink()
    for number, path in enumerate((site.ledger, *site.party_ledgers.values())):
        _delete(path)
        if number % 2:
            SqliteStore(path, 1.0, readonly=False).create()
    (site.run / "rounds.log").write_bytes(first)
    assert site.resume(nursery) == 0, (site.folder / "output").read_text()
    require_covered(site)
    assert site.model() == whole[1]


class TestRefused:
    """Nothing is drawn or published, and the message names the problem."""

    def refused(self, site: Site, kind: type[VflError], said: str) -> None:
        with pytest.raises(VflError) as raised:
            go_on(site)
        assert type(raised.value) is kind
        assert said in str(raised.value)
        assert not (site.run / "model.json").exists()

    @pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.9])
    def test_a_corrupt_log(self, cut: Site, where: float) -> None:
        path = cut.run / "rounds.log"
        content = bytearray(path.read_bytes())
        content[int(where * len(content))] ^= 1
        path.write_bytes(content)
        self.refused(cut, OutputError, "is damaged at line")

    def test_a_missing_line(self, cut: Site) -> None:
        path = cut.run / "rounds.log"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:9] + lines[10:]))
        self.refused(cut, OutputError, "is damaged at line 10")

    def test_a_torn_last_line_is_accepted_as_a_crash(self, cut: Site, whole: tuple[float, bytes]) -> None:
        path = cut.run / "rounds.log"
        path.write_bytes(path.read_bytes()[:-20])
        go_on(cut)
        assert cut.model() == whole[1]

    def test_a_missing_log(self, cut: Site) -> None:
        (cut.run / "rounds.log").unlink()
        self.refused(cut, OutputError, "there is no run to resume")

    def test_a_missing_ledger(self, cut: Site) -> None:
        _delete(cut.ledger)
        self.refused(cut, LedgerError, "is missing, and that of party 'bank' has a record of it")

    @pytest.mark.parametrize("books", [True, False], ids=["with books", "without"])
    @pytest.mark.parametrize("taken", ["before the run", "in the middle", "before the last charges"])
    def test_an_older_copy_of_the_ledger(self, tmp_path: Path, books: bool, taken: str) -> None:
        """With or without books, since the log knows the releases. A backup is a prefix of the chain."""
        site = cut_off(tmp_path / "site", books=books)
        last = len(json.loads(SqliteLedger(site.ledger).export())["entries"])
        kept = {"before the run": 1, "in the middle": 10, "before the last charges": last - 64}[taken]
        with closing(sqlite3.connect(site.ledger)) as connection:
            connection.execute("DROP TRIGGER entries_are_not_deleted")
            connection.execute("DELETE FROM entries WHERE seq > ?", (kept,))
            connection.commit()
        self.refused(site, LedgerError, "older")

    def test_another_ledger_of_the_same_name(self, cut: Site) -> None:
        _delete(cut.ledger)
        SqliteLedger(cut.ledger).set_cap("credit", epsilon=1.0, delta=DELTA)
        self.refused(cut, LedgerError, "the ledger is not the one that the party ledger of 'bank' knows")

    def test_an_older_copy_of_a_book(self, cut: Site) -> None:
        _delete(cut.party_ledgers["bank"])
        shutil.copy(cut.party_ledgers["telco"], cut.party_ledgers["bank"])
        self.refused(cut, LedgerError, "the party ledger of 'bank' is not the one")


def _delete(path: Path) -> None:
    for file in path.parent.glob(path.name + "*"):
        file.unlink()
