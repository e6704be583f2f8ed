"""Sources through Arrow: DuckDB files, a Postgres server where one is installed, and an object store of a few lines."""

from __future__ import annotations

import datetime as dt
import http.server
import io
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import vfl
from parties.loading import SourceCheck
from parties.sources.base import Origin
from parties.sources.databases import LOOKUP_SECONDS, Lookup
from parties.sources.opening import open_source
from vfl.apps.drafting.draft import draft
from vfl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

duckdb = pytest.importorskip("duckdb")

WANTED = ["b", "a"]
EXPECTED = {"b": [10.0, None, 30.0], "a": [1.0, 2.5, -3.0]}
ROWS = "(1.0, 'x', 10, DATE '2026-01-31'), (2.5, 'y', NULL, NULL), (-3.0, 'z', 30, DATE '2025-12-31')"


def read(source: Any, columns: list[str] = WANTED) -> dict[str, list[Any]]:
    table = pa.Table.from_batches(list(source.batches(columns)))
    return {name: table.column(name).to_pylist() for name in columns}


def refused(address: Any, columns: Any = WANTED) -> str:
    with pytest.raises(DataError) as caught:
        list(open_source(address, columns, party="bank").batches())
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "SECRET" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute('CREATE TABLE t (a DECIMAL(6, 2), text VARCHAR, b INTEGER, "day of" DATE)')
        connection.execute(f"INSERT INTO t VALUES {ROWS}")
    return f"duckdb://{path}"


class TestDuckDB:
    @pytest.mark.parametrize("asked", ["table=t", "table=main.t", "query=SELECT b, a FROM t", "query=FROM%20t"])
    def test_tables_and_queries(self, database: str, asked: str) -> None:
        source = open_source(f"{database}?{asked}", WANTED, party="bank")
        assert (source.at_most, source.n_records) == (3, 3)
        assert {n: [None if v is None else float(v) for v in column] for n, column in read(source).items()} == EXPECTED

    def test_a_query_states_the_order(self, database: str) -> None:
        source = open_source(f"{database}?query=SELECT * FROM t ORDER BY a", ["a"], party="bank")
        assert [float(value) for value in read(source, ["a"])["a"]] == [-3.0, 1.0, 2.5]
        assert source.names == ("a", "text", "b", "day of")

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ("", "its address needs either ?table=NAME or ?query=SELECT ..."),
            ("?table=t&query=FROM t", "its address needs either ?table=NAME or ?query=SELECT ..."),
            ("?table=tt", "its database refuses the query: check table, columns and rights where the party runs"),
            ("?query=SELECT 'SECRET'::INT AS b, 1 AS a", "its database refuses the query"),
            ("?query=DROP TABLE t", "its database refuses the query"),
            ("?query=CREATE TEMP TABLE s AS SELECT 1 AS a, 2 AS b", "its database refuses the query"),
            ("?query=SET threads = 1; SELECT 1 AS a, 2 AS b", "its database refuses the query"),
            ("?query=SELECT 1 AS a, 2 AS b; SELECT 1 AS a, 2 AS b", "its database refuses the query"),
            ("?query=PRAGMA database_list", "its database refuses the query"),
            ("?query=SELECT 1 AS c, 2 AS b", "there is no column 'a'"),
            ("?query=SELECT 1 AS b, 2 AS b, 3 AS a", "occurs more than once: rename one"),
        ],
    )
    def test_mistakes(self, database: str, asked: str, said: str) -> None:
        message = refused(database + asked)
        assert message.startswith(f"party 'bank', source {database!r}: ")
        assert said in message

    def test_a_query_reads_no_other_file(self, database: str, tmp_path: Path) -> None:
        """DuckDB would take the types of its columns from the records."""
        (tmp_path / "other.csv").write_text("a,b\n1,2\n")
        assert "refuses the query" in refused(f"{database}?query=SELECT * FROM '{tmp_path}/other.csv'")

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        assert "no such file" in refused(f"duckdb://{tmp_path}/none.duckdb?table=t")
        (tmp_path / "none.duckdb").write_text("SECRET")
        assert "its database cannot be opened" in refused(f"duckdb://{tmp_path}/none.duckdb?table=t")

    def test_the_package_is_optional(self, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
        with pytest.raises(DataError, match=r"pip install 'vfl\[duckdb\]'"):
            open_source(f"{database}?table=t", WANTED, party="bank")

    def test_a_job_aligns_and_trains_on_tables(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        with duckdb.connect(str(tmp_path / "both.duckdb")) as connection:
            for name, column in (("bank", "income"), ("telco", "calls")):
                connection.execute(f"CREATE TABLE {name} (id INTEGER, {column} DOUBLE, y BOOLEAN)")
                for k in rng.permutation(60):
                    connection.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", [int(k), k / 60, bool(k > 30)])
        (tmp_path / "job.toml").write_text(
            'format = 1\nid = { column = "id", kind = "integer" }\nprivacy = "none"\n[partition]\nlabel = ["bank", "y"]\n'
            'parties = { bank = ["income"], telco = ["calls"] }\n[bounds]\n"*" = [0, 1]\n[data]\n'
            'bank = "duckdb://both.duckdb?table=bank"\ntelco = "duckdb://both.duckdb?table=telco"\n'
        )
        job, environment = vfl.Job.from_toml(tmp_path / "job.toml")
        assert environment.data["bank"] == f"duckdb://{tmp_path}/both.duckdb?table=bank"
        penalised = replace(job, penalty=vfl.L2(1e-4))  # the classes are separable
        result = vfl.train(penalised, dict(environment.data), at=vfl.InProcess(num_cpus=1))
        found = vfl.predict(result, dict(environment.data), at=vfl.InProcess(num_cpus=1))
        assert (found.labels == (np.array(found.ids) > 30)).mean() > 0.95

    def test_it_can_be_drafted_from(self, database: str) -> None:
        text = draft({"bank": f"{database}?table=t"}, label="bank.b")
        assert f'bank = "{database}?table=t"' in text
        assert "# a = [-3, 2.5]" in text


POSTGRES = next(
    (folder for path in ("postgres", *sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True))
     if (folder := shutil.which(path)) and shutil.which("initdb", path=str(Path(folder).resolve().parent))),
    None,
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Start a Postgres server on a socket of its own; yield the address of its database."""
    pytest.importorskip("adbc_driver_postgresql", reason="Postgres: the ADBC driver is not installed")
    if POSTGRES is None:
        pytest.skip("Postgres: no server is installed (postgres and initdb)")
    import adbc_driver_postgresql.dbapi

    home = Path(POSTGRES).resolve().parent
    place = Path(tempfile.mkdtemp(prefix="pg-"))
    other: dict[str, Any] = {}
    if os.getuid() == 0:  # Postgres refuses to run as root
        user = pwd.getpwnam("nobody")
        os.chown(place, user.pw_uid, user.pw_gid)
        other = {"user": user.pw_uid, "group": user.pw_gid}
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": place}
    made = [home / "initdb", "-D", place / "db", "-A", "trust", "-U", "vfl", "--no-locale", "-E", "UTF8", "--no-sync"]
    subprocess.run(made, check=True, **silent, **other)
    run = [home / "postgres", "-D", place / "db", "-k", place, "-c", "listen_addresses=", "-c", "fsync=off"]
    process = subprocess.Popen(run, **silent, **other)
    address = f"postgresql:///postgres?host={place}&user=vfl"
    try:
        for _ in range(1000):
            try:
                connection = adbc_driver_postgresql.dbapi.connect(address)
                break
            except Exception:  # noqa: BLE001 - the server is starting
                time.sleep(0.1)
        with connection, connection.cursor() as cursor:
            cursor.execute('CREATE TABLE t (a NUMERIC(6, 2), text TEXT, b INTEGER, "day of" DATE)')
            cursor.execute(f"INSERT INTO t VALUES {ROWS}")
            connection.commit()
        yield address
    finally:
        process.send_signal(signal.SIGINT)  # SIGTERM would wait for the end of every connection
        process.wait(120)
        shutil.rmtree(place)


IDS = [b"x", b"x", b"nobody", b"7", b"\xff", b"x\0", b"x' OR 1 = 1 --", b"9" * 30]


@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
class TestLookups:
    """Single records, by ids that a request states."""

    @pytest.fixture
    def address(self, kind: str, request: pytest.FixtureRequest) -> str:
        return (
            request.getfixturevalue("database") + "?" if kind == "duckdb" else request.getfixturevalue("server") + "&"
        )

    @pytest.mark.parametrize("asked", ["table=t", "query=SELECT text, a, b FROM t -- all"])
    def test_finds_the_records_of_these_ids_alone(self, address: str, asked: str) -> None:
        lookup = Lookup(address + asked, "text", {"a": "number", "b": "number"}, Origin("bank", "its table"))
        assert [row["text"] for row in lookup.rows(IDS).to_pylist()] == ["x"]
        found = lookup.rows([b"y", b"z"])
        assert sorted((one["text"], float(one["a"]), one["b"]) for one in found.to_pylist()) == [
            ("y", 2.5, None),
            ("z", -3.0, 30),
        ]
        assert lookup.rows([]).num_rows == 0
        lookup.close()

    def test_whole_numbers_are_compared_by_value(self, address: str) -> None:
        lookup = Lookup(address + "table=t", "b", {"a": "number"}, Origin("bank", "its table"))
        assert [float(row["a"]) for row in lookup.rows([b"10", b"010x", b"11", b"x", b"9" * 19]).to_pylist()] == [1.0]
        lookup.close()

    @pytest.mark.parametrize(
        "asked",
        [
            "table=SECRET",
            "query=SELECT 'x' AS text, 1 AS a) AS s; DROP TABLE t; SELECT * FROM (SELECT 1",
            "query=INSERT INTO t (a) VALUES (1) RETURNING text, a",
            "query=WITH new AS (INSERT INTO t (a) VALUES (1) RETURNING text, a) SELECT * FROM new",
        ],
    )
    def test_a_query_only_selects(self, address: str, asked: str) -> None:
        with pytest.raises(DataError) as caught:
            Lookup(address + asked, "text", {"a": "number"}, Origin("bank", "its table"))
        assert "SECRET" not in str(caught.value)
        read_again = open_source(address + "table=t", WANTED, party="bank")
        assert {n: [v and float(v) for v in column] for n, column in read(read_again).items()} == EXPECTED

    def test_dates_are_no_ids(self, address: str) -> None:
        with pytest.raises(DataError):
            Lookup(address + "table=t", "day of", {"a": "number"}, Origin("bank", "its table"))

    def test_a_lost_connection_is_opened_again(self, address: str, kind: str, database: str) -> None:
        lookup = Lookup(address + "table=t", "text", {"a": "number"}, Origin("bank", "its table"))
        if kind == "duckdb":  # another file replaces it
            path = Path(database.partition("://")[2])
            with duckdb.connect(str(path.with_name("new"))) as connection:
                connection.execute("CREATE TABLE t AS SELECT 'x' AS text, 7.0 AS a")
            path.with_name("new").replace(path)
            assert float(lookup.rows([b"x"]).column("a")[0].as_py()) == 7.0
        else:
            import adbc_driver_postgresql.dbapi

            with adbc_driver_postgresql.dbapi.connect(address) as other, other.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'vfl'"
                )
                assert cursor.fetchall()
            assert float(lookup.rows([b"x"]).column("a")[0].as_py()) == 1.0
        lookup.close()


def test_a_lookup_waits_for_no_lock(server: str) -> None:
    import adbc_driver_postgresql.dbapi

    lookup = Lookup(f"{server}&table=t", "text", {"a": "number"}, Origin("bank", "its table"))
    with adbc_driver_postgresql.dbapi.connect(server) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        with pytest.raises(DataError):
            lookup.rows([b"x"])
        assert time.monotonic() - began < 3.0 + LOOKUP_SECONDS
        other.rollback()
    assert lookup.rows([b"x"]).num_rows == 1
    lookup.close()


class TestPostgres:
    @pytest.mark.parametrize("asked", ["table=t", "table=public.t", "query=SELECT b, a FROM t", "query=TABLE%20t"])
    def test_tables_and_queries(self, server: str, asked: str) -> None:
        source = open_source(f"{server}&{asked}", WANTED, party="bank")
        assert read(source) == EXPECTED

    def test_dates_and_text_keep_their_types(self, server: str) -> None:
        source = open_source(f"{server}&table=t", {"day of": "text", "text": "text"}, party="bank")
        assert read(source, ["day of", "text"]) == {
            "day of": [dt.date(2026, 1, 31), None, dt.date(2025, 12, 31)],
            "text": ["x", "y", "z"],
        }

    def test_more_rows_than_are_fetched_at_once(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("parties.sources.databases.PIECE", 2)
        assert read(open_source(f"{server}&table=t", WANTED, party="bank")) == EXPECTED

    @pytest.mark.parametrize(
        "query",
        [
            "INSERT INTO t (a) VALUES (1) RETURNING a, b",
            "WITH new AS (INSERT INTO t (a) VALUES (1) RETURNING a, b) SELECT a, b FROM new",
            "COPY (SELECT 1) TO PROGRAM 'touch ran'",
            "COPY t FROM PROGRAM 'touch ran'",
            "DO $$ BEGIN COPY (SELECT 1) TO PROGRAM 'touch ran'; END $$",
            "SELECT a, b FROM t; COPY (SELECT 1) TO PROGRAM 'touch ran'",
            "SELECT set_config('transaction_read_only', 'off', true) AS a, lo_create(0) AS b",
            "SET TRANSACTION READ WRITE",
            "COMMIT",
        ],
    )
    def test_a_query_only_selects(self, server: str, query: str) -> None:
        """The role of these tests may do anything, and a read-only transaction stops neither COPY nor DO."""
        assert "its database refuses the query" in refused(f"{server}&query={query}")
        place = Path(re.search("host=([^&]*)", server)[1])  # type: ignore[index]
        assert not (place / "db" / "ran").exists()  # a server's programs run in its folder
        assert read(open_source(f"{server}&table=t", WANTED, party="bank")) == EXPECTED

    def test_mistakes(self, server: str) -> None:
        said = refused(f"{server}&table=tt")
        assert said.startswith("party 'bank', source 'postgresql:///postgres': ")
        assert said.endswith(
            "check table, columns and rights where the party runs"
        )  # and nothing that the database said
        assert "its database cannot be opened" in refused(f"{server.replace('pg-', 'none-')}&table=t")


def test_postgres_gets_a_query_in_a_cursor_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """DECLARE takes statements that select; this runs where no server is installed."""
    sent: list[str] = []

    class Cursor:
        adbc_statement = SimpleNamespace(set_options=lambda **_: None)

        def execute(self, statement: str) -> None:
            sent.append(statement)

        def fetch_arrow_table(self) -> pa.Table:
            return pa.table({"a": [1.0], "b": [2]})

        def close(self) -> None:
            """Do nothing."""

    driver = SimpleNamespace(connect=lambda _: SimpleNamespace(cursor=Cursor, close=lambda: None))
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", driver)
    query = "COPY (SELECT 1) TO PROGRAM 'touch ran'"
    open_source(f"postgresql://reader@db.example/bank?query={query}", WANTED, party="bank")
    open_source("postgresql://reader@db.example/bank?table=t", WANTED, party="bank")
    carrying = [statement for statement in sent if query in statement or '"t"' in statement]
    assert carrying
    assert all(re.match("DECLARE source NO SCROLL CURSOR FOR (COPY|SELECT)", statement) for statement in carrying)
    assert {statement.partition(" ")[0] for statement in sent} == {"SET", "DECLARE", "FETCH", "CLOSE"}


def test_an_address_holds_no_password() -> None:
    for address in ("postgresql://me:SECRET@host/db?table=t", "postgresql://host/db?table=t&password=SECRET"):
        assert refused(address).startswith(
            "party 'bank', source 'postgresql://host/db': its address holds a password, which the job's files would keep"
        )
    for address in ("s3://key:SECRET@bucket/a.parquet", "s3://bucket/a.parquet?secret_key=SECRET"):
        assert "'s3://bucket/a.parquet': its address holds" in refused(address)


class Store(http.server.BaseHTTPRequestHandler):
    """The part of an object store's protocol that reading needs."""

    protocol_version = "HTTP/1.1"
    held: dict[str, bytes]

    def answer(self, *, body: bool) -> None:
        path, _, query = self.path.partition("?")
        if "list-type=2" in query:
            prefix = re.search(r"prefix=([^&]*)", query)[1].replace("%2F", "/")  # type: ignore[index]
            keys = [key for key in self.held if key.removeprefix("/bucket/").startswith(prefix)]
            listed = "".join(
                f"<Contents><Key>{key.removeprefix('/bucket/')}</Key><Size>{len(self.held[key])}</Size></Contents>"
                for key in keys
            )
            text = (
                '<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>'
                f"<KeyCount>{len(keys)}</KeyCount>{listed}</ListBucketResult>"
            )
            self.send(200, text.encode(), body=body)
        elif path not in self.held:
            self.send(404, b"", body=False)
        elif given := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            whole = self.held[path]
            start, stop = int(given[1]), min(int(given[2] or len(whole)), len(whole) - 1) + 1
            self.send(206, whole[start:stop], f"bytes {start}-{stop - 1}/{len(whole)}", body=body)
        else:
            self.send(200, self.held[path], body=body)

    def send(self, code: int, part: bytes, span: str = "", *, body: bool) -> None:
        self.send_response(code)
        if span:
            self.send_header("Content-Range", span)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if body:
            self.wfile.write(part)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


TABLE = pa.table({"a": [1.0, 2.5, -3.0], "text": ["x", "y", "z"], "b": [10, None, 30]})


def stored(write: Any, table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    write(table, sink)
    return sink.getvalue()


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Serve a few objects; yield the parameters of an address."""
    parquet, arrow = pyarrow.parquet.write_table, pyarrow.feather.write_feather
    Store.held = {
        "/bucket/a.parquet": stored(parquet),
        "/bucket/all/part-1.parquet": stored(parquet, TABLE.slice(0, 2)),
        "/bucket/all/part-2.parquet": stored(parquet, TABLE.slice(2)),
        "/bucket/a.arrow": stored(arrow),
        "/bucket/a.csv": b"a,text,b\n1,x,10\n2.5,y,\n-3,z,30\n",
        "/bucket/semicolons.csv": b"a;text;b\n1;x;10\n2,5;y;\n-3;z;30\n",
        "/bucket/broken.parquet": b"SECRET",
        "/bucket/a.xlsx": b"",
    }
    given = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"?endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=us-east-1"
        server.shutdown()
        thread.join()
        server.server_close()


class TestObjectStore:
    @pytest.mark.parametrize("name", ["a.parquet", "all", "a.arrow", "a.csv"])
    def test_objects(self, store: str, name: str) -> None:
        source = open_source(f"s3://bucket/{name}{store}", WANTED, party="bank")
        assert source.at_most == 3
        assert read(source) == EXPECTED
        assert read(source, ["a"]) == {"a": EXPECTED["a"]}

    @pytest.mark.parametrize("name", ["a.parquet", "all"])
    def test_a_change_between_two_shards_is_refused(
        self, store: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address = f"s3://bucket/{name}{store}"
        unchanged = SourceCheck(address, open_source(address, WANTED, party="bank"))
        unchanged.require()
        key = "/bucket/a.parquet" if name == "a.parquet" else "/bucket/all/part-2.parquet"
        monkeypatch.setitem(Store.held, key, Store.held[key] + b"more")
        with pytest.raises(DataError, match=r"'s3://bucket/.*': the source changed while"):
            unchanged.require()

    def test_text_with_a_format(self, store: str) -> None:
        spec = vfl.Csv(f"s3://bucket/semicolons.csv{store}", delimiter=";", decimal=",")
        assert read(open_source(spec, WANTED, party="bank")) == EXPECTED

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("none.parquet", "no such file or folder"),
            ("broken.parquet", "damaged, cut short or not of the format that its name says"),
            ("a.xlsx", "unknown extension; known in object stores are .csv, .csv.gz"),
            ("semicolons.csv", "the header has a single column when split at ','"),
        ],
    )
    def test_mistakes(self, store: str, name: str, said: str) -> None:
        message = refused(f"s3://bucket/{name}{store}")
        assert message.startswith(f"party 'bank', source 's3://bucket/{name}': {said}")

    def test_a_database_has_no_format_of_text(self) -> None:
        assert "describes a text file" in refused(vfl.Csv("duckdb://a.duckdb?table=t", delimiter=";"))
