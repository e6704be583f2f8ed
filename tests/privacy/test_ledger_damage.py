"""A ledger that was altered, replaced, of another version, or that cannot be written: a clear error, and no release."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest

from vfl.base.types import Adjacency
from vfl.errors import LedgerError
from vfl.privacy.events import BoundedRange, Gaussian, ReleaseKey
from vfl.privacy.ledger import DatasetBudget, Head, SqliteLedger
from vfl.privacy.ledger.codec import Entry, genesis, link
from vfl.privacy.ledger.sqlite import SqliteStore

EVENT = Gaussian(Adjacency.REPLACE_ONE, 1e-3, 1.0, 2)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """Two runs, one settled and one open; every kind of entry."""
    ledger = SqliteLedger(tmp_path_factory.mktemp("original") / "account.sqlite")
    ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
    for run in ("done", "open"):
        reservation = DatasetBudget(ledger, "credit").reserve([(EVENT, 20)], job="j", run=run)
        reservation.charge([(ReleaseKey(i), EVENT) for i in range(3)])
        if run == "done":
            reservation.settle()
    DatasetBudget(ledger, "credit").resume("open", job="j")
    DatasetBudget(ledger, "credit").reserve(
        [(BoundedRange(Adjacency.REPLACE_ONE, 1e-3), 1)], job="j", run="never"
    ).refund()
    ledger.note("bank", Head(7, "ab" * 32))
    return ledger.path


@pytest.fixture
def ledger(original, tmp_path) -> SqliteLedger:
    return SqliteLedger(shutil.copy(original, tmp_path / "account.sqlite"))


def alter(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)


def refuses_everything(path: Path, match: str = "damaged at entry") -> None:
    for use in (
        lambda ledger: ledger.verify(),
        lambda ledger: ledger.show(),
        lambda ledger: ledger.export(),
        lambda ledger: ledger.set_cap("credit", epsilon=2.0, delta=1e-9),
        lambda ledger: DatasetBudget(ledger, "credit").preview([(EVENT, 1)]),
        lambda ledger: DatasetBudget(ledger, "credit").reserve([(EVENT, 1)], job="j", run="new"),
        lambda ledger: DatasetBudget(ledger, "credit").resume("open", job="j"),
    ):
        with pytest.raises(LedgerError, match=match):
            use(SqliteLedger(path))


ALTERED = {
    "seq": "seq = 100",
    "recorded": "recorded = '2020-01-01'",
    "dataset": "dataset = 'other'",
    "kind": "kind = 'x' || kind",
    "run": "run = 'x' || run",
    "round": "round = coalesce(round, 0) + 50",
    "part": "part = coalesce(part, 0) + 1",
    "attempt": "attempt = coalesce(attempt, 0) + 1",
    "body": "body = replace(body || ' ', '0x1', '0x0')",
    "hash": "hash = zeroblob(32)",
    "a type": "body = CAST(body AS BLOB)",
    "a hash type": "hash = hex(hash)",
    "not utf-8": "body = CAST(x'ff' AS TEXT)",
}


@pytest.mark.parametrize("column", ALTERED)
def test_every_column_of_every_entry_is_covered(ledger, original, tmp_path, column):
    entries = ledger.verify().seq
    for seq in range(1, entries + 1):
        copy = tmp_path / f"{seq}.sqlite"
        shutil.copy(original, copy)
        alter(copy, f"UPDATE entries SET {ALTERED[column]} WHERE seq = {seq}")
        with pytest.raises(LedgerError, match=r"damaged|could not be used"):
            SqliteLedger(copy).verify()


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM entries WHERE seq = 4"],
        ["DELETE FROM entries WHERE seq = 4", "UPDATE entries SET seq = seq - 1 WHERE seq > 4"],
        ["DELETE FROM entries WHERE seq = 1"],
        ["UPDATE entries SET seq = -1 WHERE seq = 3", "UPDATE entries SET seq = 3 WHERE seq = 4"],
        ["UPDATE format SET ledger = 'another'"],
    ],
)
def test_removal_moving_and_transplanting_are_noticed(ledger, statements):
    alter(ledger.path, *statements)
    refuses_everything(ledger.path)


def test_a_process_that_has_seen_the_end_notices_its_removal(ledger):
    ledger.verify()
    last = ledger.head().seq
    alter(ledger.path, f"DELETE FROM entries WHERE seq = {last}")
    with pytest.raises(LedgerError, match="replaced by an older"):
        DatasetBudget(ledger, "credit").reserve([(EVENT, 1)], job="j", run="new")


def test_a_process_that_has_seen_the_end_notices_another_one(ledger):
    last = ledger.head().seq
    alter(ledger.path, f"UPDATE entries SET hash = zeroblob(32) WHERE seq = {last}")
    with pytest.raises(LedgerError, match="replaced by an older"):
        DatasetBudget(ledger, "credit").reserve([(EVENT, 1)], job="j", run="new")


def test_a_restored_backup_is_noticed_by_the_head_noted_elsewhere(ledger):
    backup = ledger.path.with_suffix(".backup")
    with (
        contextlib.closing(sqlite3.connect(ledger.path)) as source,
        contextlib.closing(sqlite3.connect(backup)) as target,
    ):
        source.backup(target)
    reservation = DatasetBudget(ledger, "credit").resume("open", job="j")
    reservation.charge([(ReleaseKey(9), EVENT)])
    head = ledger.head()
    ledger.require(head)
    restored = SqliteLedger(backup)
    restored.verify()
    with pytest.raises(LedgerError, match="older copy or another ledger"):
        restored.require(head)
    with pytest.raises(LedgerError, match="older copy or another ledger"):
        DatasetBudget(restored, "credit").resume("open", job="j", head=head)
    assert ledger.noted("bank") == Head(7, "ab" * 32)
    assert ledger.noted("telco") is None


def forge(ledger: SqliteLedger, kind: str, run: str, body: dict | str, key=(None, None, None)) -> None:
    """Append an entry with a right hash, as somebody would who knows the format."""
    document = json.loads(ledger.export())
    head = document["head"]
    text = body if isinstance(body, str) else json.dumps(body)
    entry = Entry(head["seq"] + 1, "now", "credit", kind, run, *key, text)
    digest = link(bytes.fromhex(head["hash"]), entry)
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute("INSERT INTO entries VALUES (?,?,?,?,?,?,?,?,?,?)", (*entry, digest))
        connection.execute(f"PRAGMA user_version = {entry.seq}")


def units(value: float) -> str:
    return f"{int(value * 2**256):x}"


PLAN = {"job": "j", "accounting": "gdp", "units": units(1e-6), "plan": []}
CAP = {"adjacency": "replace-one", "epsilon": (1.0).hex(), "delta": (1e-9).hex(), "accounting": "gdp"}


@pytest.mark.parametrize(
    ("kind", "run", "body", "key"),
    [
        ("quantum", "open", {}, (None, None, None)),
        ("charge", "open", {"type": "quantum"}, (5, 0, 0)),
        ("charge", "open", "not json", (5, 0, 0)),
        ("charge", "done", "EVENT", (5, 0, 0)),
        ("charge", "never", "EVENT", (5, 0, 0)),
        ("charge", "unheard", "EVENT", (5, 0, 0)),
        ("charge", "open", "EVENT", (None, 0, 0)),
        ("charge", "open", "EVENT", (0, 0, 0)),
        ("charge", "open", "LOUD", (5, 0, 0)),
        ("settle", "open", {"spent": "0", "releases": 3, "stopped_early": False}, (None, None, None)),
        ("settle", "done", {"spent": "0", "releases": 3, "stopped_early": False}, (None, None, None)),
        ("refund", "open", {}, (None, None, None)),
        ("refund", "done", {}, (None, None, None)),
        ("resume", "done", {}, (None, None, None)),
        ("reserve", "new", PLAN, (None, None, None)),
        ("reserve", "done", {**PLAN, "units": "0"}, (None, None, None)),
        ("reserve", "new", {**PLAN, "units": "0", "accounting": "zcdp"}, (None, None, None)),
        ("reserve", "new", [], (None, None, None)),
        ("cap", "", {**CAP, "capacity": {"gdp": "0", "zcdp": "0"}}, (None, None, None)),
        ("cap", "", {**CAP, "capacity": {"gdp": units(9.0), "zcdp": units(1e-3)}}, (None, None, None)),
        ("cap", "", {**CAP, "adjacency": "any"}, (None, None, None)),
        ("note", "", {}, (None, None, None)),
    ],
)
def test_entries_that_do_not_follow_are_refused_whatever_their_hash(ledger, kind, run, body, key):
    from vfl.privacy.ledger.codec import encode

    loud = Gaussian(Adjacency.REPLACE_ONE, 1e-2, 1.0, 2)
    forge(
        ledger,
        kind,
        run,
        {"EVENT": encode(EVENT), "LOUD": encode(loud)}.get(body, body) if body in ("EVENT", "LOUD") else body,
        key,
    )
    refuses_everything(ledger.path)


def test_a_forged_charge_that_does_follow_is_accepted_so_the_forger_above_works(ledger):
    from vfl.privacy.ledger.codec import encode

    forge(ledger, "charge", "open", encode(EVENT), (5, 0, 0))
    SqliteLedger(ledger.path).verify()


def test_the_chain_can_be_recomputed_from_the_export_alone(ledger):
    document = json.loads(ledger.export())
    previous = genesis(document["ledger"])
    for row in document["entries"]:
        digest = row.pop("hash")
        row["body"] = json.dumps(row["body"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        previous = link(previous, Entry(**row))
        assert previous.hex() == digest
    assert document["head"]["hash"] == previous.hex()


def test_the_table_is_append_only(ledger):
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection:
        for statement in ("DELETE FROM entries", "UPDATE entries SET run = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)


def test_another_version_is_left_alone(ledger):
    alter(ledger.path, "UPDATE format SET version = 2")
    refuses_everything(ledger.path, "has format 2, but this vfl writes format 1")


def test_other_files_are_left_alone(tmp_path):
    text, empty, other = tmp_path / "a.txt", tmp_path / "empty", tmp_path / "other.sqlite"
    text.write_text("not a database, and long enough to be looked at" * 50)
    empty.touch()
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE mine (a)")
    before = {path: path.read_bytes() for path in (text, other)}
    with pytest.raises(LedgerError, match="not an SQLite file"):
        SqliteLedger(text).set_cap("credit", epsilon=1.0, delta=1e-9)
    with pytest.raises(LedgerError, match="its tables are not those"):
        SqliteLedger(other).set_cap("credit", epsilon=1.0, delta=1e-9)
    with pytest.raises(LedgerError, match="its tables are not those"):
        SqliteLedger(empty).show()
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(LedgerError, match="vfl ledger cap"):
        SqliteLedger(tmp_path / "typo.sqlite").show()
    assert not (tmp_path / "typo.sqlite").exists()
    with pytest.raises(LedgerError, match="is a folder"):
        SqliteLedger(tmp_path).show()
    with pytest.raises(LedgerError, match="cannot be opened"):
        SqliteLedger(text / "below" / "a-file.sqlite").set_cap("credit", epsilon=1.0, delta=1e-9)


def test_opened_for_reading_it_refuses_writes(ledger):
    auditor = SqliteLedger(ledger.path, readonly=True)
    auditor.verify()
    assert len(auditor.show()[0].runs) == 3
    with pytest.raises(LedgerError, match=r"nothing was charged.*not writable"):
        DatasetBudget(auditor, "credit").reserve([(EVENT, 1)], job="j", run="new")
    with pytest.raises(LedgerError, match="is not writable"):
        auditor.set_cap("credit", epsilon=9.0, delta=1e-9)


def in_child(action) -> None:
    """Run in a forked child, whose limits and rights may be taken away; an exception there fails here."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            action()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_folder_that_may_not_be_written():
    folder = Path(tempfile.mkdtemp())
    try:
        ledger = SqliteLedger(folder / "account.sqlite")
        ledger.set_cap("credit", epsilon=1.0, delta=1e-9)
        folder.chmod(0o555)
        (folder / "account.sqlite").chmod(0o444)

        def action() -> None:
            if os.getuid() == 0:  # root may write anywhere
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            with pytest.raises(LedgerError, match="nothing was charged or released"):
                DatasetBudget(ledger, "credit").reserve([(EVENT, 1)], job="j", run="new")

        in_child(action)
        folder.chmod(0o755)
        assert ledger.show()[0].runs == ()
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_full_database_charges_nothing(ledger, monkeypatch):
    connect = sqlite3.connect

    def limited(*arguments, **options):
        """Return a connection to a database that may not grow, as on a full disk."""
        connection = connect(*arguments, **options)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", limited)
    reservation = DatasetBudget(ledger, "credit").resume("open", job="j")
    with pytest.raises(LedgerError, match=r"nothing was charged.*disk is full"):
        reservation.charge([(ReleaseKey(9, i), EVENT) for i in range(17)])
    done = 3
    assert len(reservation.charged()) == done
    with pytest.raises(LedgerError, match=r"nothing was charged.*disk is full"):  # noqa: PT012
        while True:
            reservation.charge([(ReleaseKey(done), EVENT)])
            done += 1
    monkeypatch.undo()
    again = SqliteLedger(ledger.path)
    resumed = DatasetBudget(again, "credit").resume("open", job="j")
    assert len(resumed.charged()) == done
    resumed.charge([(ReleaseKey(done), EVENT)])
    again.verify()


def test_a_write_that_fails_below_charges_nothing(ledger):
    reservation = DatasetBudget(ledger, "credit").resume("open", job="j")
    read, write = os.pipe()

    def action() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        reservation.charge([(ReleaseKey(3), EVENT)])
        size = ledger.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        done = 4
        with pytest.raises(LedgerError, match=r"nothing was charged.*the disk"):  # noqa: PT012
            while True:
                reservation.charge([(ReleaseKey(done), EVENT)])
                done += 1
        os.write(write, bytes([done]))

    in_child(action)
    done = os.read(read, 1)[0]
    os.close(read)
    os.close(write)
    assert done > 4
    assert len(DatasetBudget(SqliteLedger(ledger.path), "credit").resume("open", job="j").charged()) == done


def test_an_interrupted_write_leaves_nothing(ledger):
    head = ledger.head()
    entry = Entry(head.seq + 1, "now", "", "note", "", None, None, None, '{"account":"b","hash":"","seq":0}')
    with pytest.raises(KeyboardInterrupt), SqliteStore(ledger.path).writing() as rows:  # noqa: PT012
        rows.append([(entry, link(bytes.fromhex(head.hash), entry))])
        raise KeyboardInterrupt
    assert SqliteLedger(ledger.path).verify() == ledger.verify() == head


def test_a_ledger_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "account.sqlite"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            SqliteLedger(path).set_cap("credit", epsilon=1.0, delta=1e-9)
    assert all(one == path for one in tmp_path.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            SqliteLedger(tmp_path / "other.sqlite").set_cap("credit", epsilon=1.0, delta=1e-9)
    assert all(one == path for one in tmp_path.iterdir())
    SqliteLedger(path).set_cap("credit", epsilon=1.0, delta=1e-9)
    assert [balance.dataset for balance in SqliteLedger(path).show()] == ["credit"]


@pytest.mark.parametrize("kind", ["flips", "flips in the schema", "a cut", "a page of zeros", "appended bytes"])
def test_damaged_bytes_end_in_a_ledger_error_or_in_the_same_sums(original, tmp_path, kind):
    content, random = original.read_bytes(), np.random.default_rng(len(kind))
    spent, path = SqliteLedger(original, readonly=True).show()[0].spent, tmp_path / "account.sqlite"
    refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        match kind:
            case "flips" | "flips in the schema":
                for _ in range(int(random.integers(1, 20))):
                    at = int(random.integers(len(content) if kind == "flips" else 4096))
                    damaged[at] ^= 1 << int(random.integers(8))
            case "a cut":
                del damaged[int(random.integers(len(content))) :]
            case "a page of zeros":
                start = 4096 * int(random.integers(len(content) // 4096))
                damaged[start : start + 4096] = bytes(4096)
            case _:
                damaged += random.bytes(int(random.integers(1, 5000)))
        for end in ("", "-journal"):
            Path(f"{path}{end}").unlink(missing_ok=True)
        path.write_bytes(damaged)
        try:
            SqliteLedger(path, readonly=True).verify()
            assert SqliteLedger(path, readonly=True).show()[0].spent == spent
            charging = SqliteLedger(path)
            DatasetBudget(charging, "credit").resume("open", job="j").charge([(ReleaseKey(9), EVENT)])
            assert charging.show()[0].spent > spent
        except LedgerError:
            refused += 1
    assert refused > 10 or kind == "appended bytes"


def test_a_copy_made_in_the_middle_of_a_commit_is_refused(ledger):
    """Its first page states entries that its last pages lack."""
    last = ledger.verify().seq
    alter(ledger.path, f"DELETE FROM entries WHERE seq = {last}")
    refuses_everything(ledger.path, "end is missing")
