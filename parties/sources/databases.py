"""Tables of databases: DuckDB, in a file, and Postgres, by ADBC. Arrow carries the cells, with the types of the database.

    duckdb:///data/bank.duckdb?table=customers
    postgresql://reader@host/bank?table=public.customers
    postgresql://reader@host/bank?query=SELECT age, calls FROM customers ORDER BY id

A database has no order of rows unless a query states one: give `id` in the job, or ORDER BY. All data are read in one query,
so that a source is one state of the database.

Guarantee. A query is one statement that selects; no other statement reaches the database, whatever the role may do. Functions
in a query do run, with the rights of the role, so give the party a role that may only read its tables.

An address may hold no password, since the job's coordinator and its run's folder keep the address. Postgres finds it where the
party runs: in ~/.pgpass, or in the variables PGPASSWORD or PGSERVICE.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pyarrow as pa

from parties.sources.tables import open_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from parties.sources.base import Content, Origin, Source

_REFUSED = "its database refuses the query: check table, columns and rights where the party runs"
_CLOSED = {"enable_external_access": "false", "lock_configuration": "true"}
_PIECE = 1 << 16
"""Number of rows fetched at once: the driver holds them in addition to their Arrow table."""
_UNREACHED = "its database cannot be opened: check the address, and the rights where the party runs"


def open_duckdb(address: str, contents: Mapping[str, Content], origin: Origin) -> Source:
    """Open a table or query of a DuckDB file, read-only. Raises DataError.

    Queries read no other file, load no extension and change no setting: DuckDB would take the types of a CSV file's columns
    from its records.
    """
    place, wanted, _ = _split(address, origin)
    path = Path(place.partition("://")[2]).absolute()
    origin.check_there(path)
    duckdb = _module("duckdb", "duckdb", origin)
    connection = origin.attempt(lambda: duckdb.connect(str(path), read_only=True, config=_CLOSED), _UNREACHED)
    with contextlib.closing(connection):

        def fetch(query: str) -> pa.Table:
            (statement,) = connection.extract_statements(query)
            if statement.type != duckdb.StatementType.SELECT:
                raise ValueError("no SELECT")
            found: pa.Table = connection.sql(statement).to_arrow_table()
            return found

        return _read(fetch, wanted, contents, origin)


def open_postgres(address: str, contents: Mapping[str, Content], origin: Origin) -> Source:
    """Open a table or query of a Postgres database in a read-only transaction. Raises DataError.

    A cursor reads all rows. The grammar of DECLARE takes SELECT, VALUES and TABLE alone, without data-modifying parts, and the
    protocol takes one statement at a time (PostgreSQL 17, "DECLARE" and section 55.2.3). A read-only transaction by itself lets
    COPY ... TO PROGRAM and DO pass.
    """
    place, wanted, rest = _split(address, origin)
    adbc = _module("adbc_driver_postgresql.dbapi", "postgres", origin)
    uri = place + (f"?{urlencode(rest, quote_via=quote)}" if rest else "")
    connection = origin.attempt(lambda: adbc.connect(uri), _UNREACHED)
    with contextlib.closing(connection), contextlib.closing(connection.cursor()) as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})  # COPY takes no FETCH
        cursor.execute("SET TRANSACTION READ ONLY")

        def fetch(query: str) -> pa.Table:
            cursor.execute(f"DECLARE source NO SCROLL CURSOR FOR {query}")
            pieces: list[pa.Table] = []
            while not pieces or pieces[-1].num_rows == _PIECE:
                cursor.execute(f"FETCH {_PIECE} FROM source")
                pieces.append(cursor.fetch_arrow_table())
            cursor.execute("CLOSE source")
            return pa.concat_tables(pieces)

        return _read(fetch, wanted, contents, origin)


def _module(name: str, extra: str, origin: Origin) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise origin.error(f"the party lacks a package for this database: pip install 'vfl[{extra}]'") from None


def _split(address: str, origin: Origin) -> tuple[str, tuple[str, str], list[tuple[str, str]]]:
    """Return the address of the database, ('table' or 'query', its value), and the other parameters."""
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
    """Return the source over the wanted columns; a query runs unchanged, since wrapping it might lose its order."""
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
    """Return a column as one of Arrow's own types. Postgres's exact numbers come as text, and become float64 one by one."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    exact = getattr(column.type, "type_name", "") == "numeric"
    stored = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return stored.cast(pa.float64()) if exact else stored
