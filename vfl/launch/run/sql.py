"""Export of a result as a query in plain SQL. Each feature is a CASE expression, and each owner's part is one expression.

The query runs in DuckDB and in PostgreSQL. It clamps, fills and encodes cells as declared. The margin is NULL if `predict`
refuses a cell, and for dates without hyphens and ISO week dates. Text in a numeric column is an error of the database.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.columns import canonical_category
from vfl.errors import SpecificationError
from vfl.features.formula import BLANK, NO_DATE, Apply, Case, Cell, clipped
from vfl.launch.run.parts import reach_of, sum_of

if TYPE_CHECKING:
    from vfl.features.formula import Condition, Formula
    from vfl.launch.run.model import Model

RECORD = "vfl_record"
MARGIN = Cell("margin")
_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_FUNCTIONS = {"power": "POWER", "log": "LN", "sin": "SIN", "cos": "COS", "floor": "FLOOR"}
_DATE = (  # ISO 8601 with hyphens, of years from 1 to 9999
    "((([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-"
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))"
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = "[T ]([01][0-9]|2[0-3])(:[0-5][0-9](:[0-5][0-9]([.,][0-9]+)?)?)?"
_ZONE = "(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9](:?[0-5][0-9])?)?)?"
_OTHER = f"({_DATE}([^T ].+|[T ]([0-9]{{3}}|.*[+-]).*)|[0-9]{{4}}(-?W[0-9]|[0-9]{{4}}).*)"  # read by Python too


def query_of(result: Model, table: str = "records", party: str | None = None) -> str:
    """Return a SELECT of a table's columns and the model's margin; also of probability and class, if the loss has them.

    party : party whose part of the margin to select, from the party's own table, as column 'margin_part'. See also `sum_of`.
    """
    own = sum_of(result, party)
    names = {cell: f"vfl_{k}" for k, cell in enumerate(own.cells)}
    cleaned = ",\n    ".join(f"{_cleaned(cell)} AS {name}" for cell, name in names.items())
    source = f"(SELECT\n    {cleaned or 'NULL AS vfl_none'}\n  ) AS cells"
    for shared, formula in own.made.items():
        source = f"(SELECT *, {_sql(formula, names)} AS {shared.column}\n  FROM {source}) AS {shared.column}"  # noqa: S608
        names[shared] = shared.column
    parts = [f"{number(weight)} * {_sql(formula, names)}" for weight, formula in own.terms]
    added = "\n  + ".join([number(own.constant), *parts, *(_sql(guard, names) for guard in own.guards)])
    margin = f"(SELECT {added}\n  FROM {source})"  # noqa: S608 - names are quoted
    name = "margin" if party is None else "margin_part"
    scored = f"SELECT {RECORD}.*,\n  {margin} AS {name}\nFROM {quoted(table)} AS {RECORD}\n"
    if party is not None:
        return scored
    return f"SELECT scored.*{_outputs(result)}\nFROM (\n{scored}) AS scored\n"


def _outputs(result: Model) -> str:
    job, loss, found = result.job, result.job.response, ""
    if loss.log_odds:
        found += ",\n  1e0 / (1e0 + EXP(-margin)) AS probability"
    if job.classification:
        negative, positive = job.classes or (0, 1)
        one, other = (
            ("'rest'", text(canonical_category(positive)))
            if isinstance(negative, tuple)
            else map(_class, (negative, positive))
        )
        cut = number(result.margin_threshold or 0.0)
        found += f",\n  CASE WHEN margin > {cut} THEN {other} WHEN margin <= {cut} THEN {one} END AS prediction"
    elif loss.power is not None:
        found += f",\n  EXP({_sql(clipped(MARGIN, *reach_of(loss)), {MARGIN: 'margin'})}) AS prediction"
    return found


def _class(value: object) -> str:
    return (
        str(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else text(canonical_category(value))
    )


def quoted(name: str) -> str:
    """Return a name in double quotes, as SQL writes identifiers."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """Return text in single quotes, as SQL writes text."""
    return "'" + value.replace("'", "''") + "'"


def number(value: float) -> str:
    """Return a number as an SQL double; NULL for an unknown number."""
    if math.isnan(value):
        return "NULL"
    shown = repr(float(value))
    return f"({shown}{'' if 'e' in shown else 'e0'})"


def _cleaned(cell: Cell) -> str:
    """Return a column's normal form: a double, trimmed text, or for booleans 1, 0 and −1 (neither); NULL for a missing cell."""
    column = f"{RECORD}.{quoted(cell.column)}"
    plain = f"TRIM(CAST({column} AS VARCHAR), {text(BLANK)})"
    none = f"WHEN {column} IS NULL OR {plain} IN ('NaN', 'nan') THEN NULL"
    if cell.content == "text":
        return plain
    if cell.content == "boolean":
        return (
            f"CASE {none} WHEN LOWER({plain}) IN ('true', '1', '1.0') THEN 1e0 "
            f"WHEN LOWER({plain}) IN ('false', '0', '0.0') THEN 0e0 ELSE -1e0 END"
        )
    if cell.content == "hash":
        raise SpecificationError(
            f"column {cell.column!r} is hashed by MurmurHash3, which SQL has not: export to ONNX or scikit-learn"
        )
    if cell.content == "date":
        parts = " + ".join(
            f"{size} * CAST(COALESCE(NULLIF(SUBSTRING({plain}, {start}, 2), ''), '0') AS INTEGER)"
            for start, size in ((12, 3600), (15, 60), (18, 1))
        )
        days = f"(CAST(SUBSTRING({plain}, 1, 10) AS DATE) - DATE '1970-01-01')"
        return (
            f"CASE {none} WHEN {plain} = '' THEN {number(NO_DATE)} WHEN {plain} ~ '^{_DATE}({_TIME}{_ZONE})?$' "
            f"THEN CAST(86400e0 * {days} + {parts} AS DOUBLE PRECISION) WHEN {plain} ~ '^{_OTHER}$' THEN {number(-NO_DATE)} "
            f"ELSE {number(NO_DATE)} END"
        )
    return f"CASE {none} ELSE CAST({column} AS DOUBLE PRECISION) END"


def _sql(formula: Formula, names: dict[Cell, str]) -> str:
    if isinstance(formula, Cell):
        return names[formula]
    if isinstance(formula, Apply):
        args = [_sql(one, names) for one in formula.args]
        if formula.name == "remainder":
            return f"MOD(CAST({args[0]} AS BIGINT), CAST({args[1]} AS BIGINT))"
        if formula.name in _OPERATORS:
            return f"({f' {_OPERATORS[formula.name]} '.join(args)})"
        return f"{_FUNCTIONS[formula.name]}({', '.join(args)})"
    if isinstance(formula, Case):
        cases = "".join(f" WHEN {_holds(c, names)} THEN {_sql(f, names)}" for c, f in formula.cases)
        return f"CASE{cases} ELSE {_sql(formula.otherwise, names)} END" if cases else _sql(formula.otherwise, names)
    return number(formula)


def _holds(condition: Condition, names: dict[Cell, str]) -> str:
    a = _sql(condition.a, names)
    if condition.name == "missing":
        return f"{a} IS NULL"
    b = text(condition.b) if isinstance(condition.b, str) else _sql(condition.b, names)
    return f"{a} {'<' if condition.name == 'less' else '='} {b}"
