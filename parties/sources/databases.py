"""Tables of databases: DuckDB (in a file) and Postgres (by ADBC). Cells arrive as Arrow data, with the database's types.

    duckdb:///data/bank.duckdb?table=customers
    postgresql://reader@host/bank?table=public.customers
    postgresql://reader@host/bank?query=SELECT age, calls FROM customers ORDER BY id

The rows of a database have no order unless a query states one: give `id` in the job, or ORDER BY in the query. All data are
read in one query, so all of them belong to one state of the database.

Guarantee. A query is one SELECT statement. No other statement reaches the database, even if the role would permit it. However,
functions in a query run with the rights of the role, so give the party a role that may only read its tables.

An address must not hold a password, since the address is kept by the job's coordinator and in the folder of its run. Postgres
finds the password where the party runs: in ~/.pgpass, or through the variables PGPASSWORD or PGSERVICE.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pyarrow as pa

from parties.sources import plugins
from parties.sources.tables import open_table
from vfl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from parties.sources.base import Content, Origin, Source

_REFUSED = "its database refuses the query: check table, columns and rights where the party runs"
_CLOSED = {"enable_external_access": "false", "lock_configuration": "true"}
PIECE = 1 << 16
"""Number of rows per fetch. The driver holds these rows in addition to their Arrow table."""
SCHEMES = ("duckdb", "postgresql", "postgres")
_WHOLE = re.compile(rb"-?[0-9]{1,19}")
LOOKUP_SECONDS = 0.8
"""Time limit in seconds for a query by `Lookup` in Postgres. By default, a service waits one second for a party."""
_UNREACHED = "its database cannot be opened: check the address, and the rights where the party runs"


def open_duckdb(address: str, contents: Mapping[str, Content], origin: Origin) -> Source:
    """Open a table or query of a DuckDB file, read-only. Raises DataError.

    A query can read no other file, load no extension and change no setting. Other files are closed to it because DuckDB infers,
    for example, the types of CSV columns from the records.
    """
    place, wanted, _ = _split(address, origin)
    path = Path(place.partition("://")[2]).absolute()
    origin.check_there(path)
    with contextlib.closing(_duckdb(path, origin)) as connection:
        return _read(lambda query: _selected(connection, query), wanted, contents, origin)


def _duckdb(path: Path, origin: Origin) -> Any:
    duckdb = _module("duckdb", "duckdb", origin)
    return origin.attempt(lambda: duckdb.connect(str(path), read_only=True, config=_CLOSED), _UNREACHED)


def _selected(connection: Any, query: str, parameters: list[Any] | None = None) -> pa.Table:
    """Return the result of a query in DuckDB. Raises ValueError unless the query is one SELECT."""
    (statement,) = connection.extract_statements(query)
    if statement.type.name != "SELECT":
        raise ValueError("no SELECT")
    found: pa.Table = connection.sql(statement, params=parameters).to_arrow_table()
    return found


def open_postgres(address: str, contents: Mapping[str, Content], origin: Origin) -> Source:
    """Open a table or query of a Postgres database in a read-only transaction. Raises DataError.

    A cursor reads all rows. The grammar of DECLARE accepts only SELECT, VALUES and TABLE, without data-modifying parts, and the
    protocol accepts one statement at a time (PostgreSQL 17, "DECLARE" and section 55.2.3). A read-only transaction alone would
    not stop COPY ... TO PROGRAM and DO.
    """
    _, wanted, _ = _split(address, origin)
    connection = _postgres(address, origin)
    with contextlib.closing(connection), contextlib.closing(connection.cursor()) as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})  # COPY takes no FETCH
        cursor.execute("SET TRANSACTION READ ONLY")

        def fetch(query: str) -> pa.Table:
            cursor.execute(f"DECLARE source NO SCROLL CURSOR FOR {query}")
            pieces: list[pa.Table] = []
            while not pieces or pieces[-1].num_rows == PIECE:
                cursor.execute(f"FETCH {PIECE} FROM source")
                pieces.append(cursor.fetch_arrow_table())
            cursor.execute("CLOSE source")
            return pa.concat_tables(pieces)

        return _read(fetch, wanted, contents, origin)


def _postgres(address: str, origin: Origin, **more: str) -> Any:
    """Return a connection. more : parameters to use unless the address states them."""
    place, _, rest = _split(address, origin)
    given = more | dict(rest)
    adbc = _module("adbc_driver_postgresql.dbapi", "postgres", origin)
    uri = place + (f"?{urlencode(given, quote_via=quote)}" if given else "")
    return origin.attempt(lambda: adbc.connect(uri), _UNREACHED)


def is_database(spec: Any) -> bool:
    """Return True for the address of a database."""
    return isinstance(spec, str) and plugins.is_built_in(spec, SCHEMES)


def open_database(address: str, contents: Mapping[str, Content], origin: Origin) -> Source:
    """Open a table or query of a database. Raises DataError."""
    opener = open_duckdb if plugins.scheme_of(address) == "duckdb" else open_postgres
    return opener(address, contents, origin)


class Lookup:
    """Look up single records of a table or query of a database by id.

    Guarantee. Ids are a parameter of one prepared SELECT and never part of its text. The statement runs in a read-only
    transaction of Postgres, or on a DuckDB file that is opened read-only.

    The database compares the ids, so text in it must have normal form (vfl.crypto.identifiers). The column of ids should have
    an index. The connection stays open. While a DuckDB file is open, no process can write to it. If another file replaces it,
    the new file is opened.

    column : column of the ids, integers or text. contents : {column: content} of the other columns to read.

    Raises DataError if the database refuses a first query, which asks for no ids.
    """

    def __init__(self, address: str, column: str, contents: Mapping[str, Content], origin: Origin) -> None:
        place, (kind, text), _ = _split(address, origin)
        self._address, self._origin = address, origin
        self._path = Path(place.partition("://")[2]).absolute() if plugins.scheme_of(address) == "duckdb" else None
        self._stamp: tuple[int, ...] = ()
        self._connection: Any = None
        self._cursor: Any = None
        relation = ".".join(map(_quoted, text.split("."))) if kind == "table" else f"({text}\n)"
        listed = ", ".join(map(_quoted, dict.fromkeys((column, *contents))))
        head = f"SELECT {listed} FROM {relation} AS source WHERE {_quoted(column)} = ANY"  # noqa: S608 - the names are quoted
        refused = origin.error("its ids are neither whole numbers nor text, or " + _REFUSED)
        for self._whole in (True, False):
            self._query = f"{head}($1::{'BIGINT' if self._whole else 'TEXT'}[])"
            try:
                found = self.rows(()).column(0).type
            except DataError as error:
                refused = error
                continue
            if (
                pa.types.is_integer(found)
                if self._whole
                else (pa.types.is_string(found) or pa.types.is_large_string(found))
            ):
                return
        self.close()
        raise refused

    def rows(self, ids: Iterable[bytes]) -> pa.Table:
        """Return the records with these ids, in any order; the id is the first column.

        ids : in normal form. Raises DataError.
        """
        cells = [cell for cell in map(_whole if self._whole else _text, set(ids)) if cell is not None]
        read = self._in_postgres if self._path is None else self._in_duckdb
        used, began = self._connection is not None, time.monotonic()
        try:
            found: pa.Table = self._origin.attempt(lambda: read(cells), _REFUSED)
        except DataError:
            self.close()
            if not used or time.monotonic() - began > LOOKUP_SECONDS / 2:
                raise
            found = self._origin.attempt(lambda: read(cells), _REFUSED)  # the server may have ended the connection
        return pa.table({name: _plain(found.column(name)) for name in found.column_names})

    def close(self) -> None:
        """Close the connection. The next query opens it again."""
        for each in (self._cursor, self._connection):
            if each is not None:
                with contextlib.suppress(Exception):
                    each.close()
        self._connection = self._cursor = None

    def _in_duckdb(self, cells: list[Any]) -> pa.Table:
        if self._path is None:
            raise TypeError
        found = self._path.stat()
        stamp = found.st_ino, found.st_mtime_ns, found.st_size
        if stamp != self._stamp or self._connection is None:
            self.close()
            self._connection, self._stamp = _duckdb(self._path, self._origin), stamp
        return _selected(self._connection, self._query, [cells])

    def _in_postgres(self, cells: list[Any]) -> pa.Table:
        if self._connection is None:
            self._connection = _postgres(self._address, self._origin, connect_timeout="2")
            self._cursor = self._connection.cursor()
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(f"SET LOCAL statement_timeout = '{LOOKUP_SECONDS * 1000:.0f}ms'")
        kind = pa.list_(pa.int64() if self._whole else pa.string())
        self._cursor.execute(self._query, pa.record_batch([pa.array([cells], kind)], ["ids"]))
        found: pa.Table = self._cursor.fetch_arrow_table()
        self._connection.commit()
        return found


def _whole(own: bytes) -> int | None:
    """Return an id as a 64-bit integer; None for any other id, since a column of integers cannot contain it."""
    number = int(own) if _WHOLE.fullmatch(own) else 1 << 63
    return number if -(1 << 63) <= number < 1 << 63 else None


def _text(own: bytes) -> str | None:
    """Return an id as text; None for bytes that are not text, and for text that Postgres cannot store."""
    try:
        return None if b"\0" in own else own.decode()
    except UnicodeDecodeError:
        return None


def _module(name: str, extra: str, origin: Origin) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise origin.error(f"the party lacks a package for this database: pip install 'vfl[{extra}]'") from None


def _split(address: str, origin: Origin) -> tuple[str, tuple[str, str], list[tuple[str, str]]]:
    """Return the database's address without parameters, ('table' or 'query', its value), and all other parameters."""
    place, _, parameters = address.partition("?")
    given = parse_qsl(parameters.replace("+", "%2B"), keep_blank_values=True)
    if urlsplit(place).password is not None or any("password" in name.lower() for name, _ in given):
        raise origin.error(
            "its address holds a password, which the job's files would keep: name it in ~/.pgpass or $PGPASSWORD where the "
            "party runs"
        )
    wanted = [(name, value) for name, value in given if name in ("table", "query") and value]
    if len(wanted) != 1:
        raise origin.error("its address needs either ?table=NAME or ?query=SELECT ...")
    return place, wanted[0], [(name, value) for name, value in given if name not in ("table", "query")]


def _read(
    fetch: Callable[[str], pa.Table], wanted: tuple[str, str], contents: Mapping[str, Content], origin: Origin
) -> Source:
    """Return a source of the wanted columns. A query is not nested in another query, which might lose its order of rows."""
    kind, text = wanted
    if kind == "query":
        table = origin.attempt(lambda: fetch(text), _REFUSED)
        names = table.column_names
    else:
        relation = ".".join(map(_quoted, text.split(".")))
        head = f"SELECT * FROM {relation} LIMIT 0"  # noqa: S608 - the names are quoted
        names = origin.attempt(lambda: fetch(head), _REFUSED).column_names
        columns = [name for name in contents if name in names] or names[:1]
        listed = ", ".join(map(_quoted, dict.fromkeys(columns)))
        whole = f"SELECT {listed} FROM {relation}"  # noqa: S608 - the names are quoted
        table = origin.attempt(lambda: fetch(whole), _REFUSED)
    origin.check_columns(names, [name for name in contents if name in names])
    kept = [name for name in contents if name in names] or names[:1]
    source = open_table({name: _plain(table.column(name)) for name in kept}, contents, origin)
    source.names = tuple(names)
    return source


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in one of Arrow's own types. Postgres sends exact numbers as text; each becomes a float64."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    exact = getattr(column.type, "type_name", "") == "numeric"
    stored = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return stored.cast(pa.float64()) if exact else stored
