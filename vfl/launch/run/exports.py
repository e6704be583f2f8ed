"""Exports of a result as a query in SQL and as an ONNX graph.

Every export is written from the model, or one party's part of it, as a sum of formulas (`Sum`).

SQL. Each feature is a CASE expression, and each owner's part is one expression. The query runs in DuckDB and in PostgreSQL, and
clamps, fills and encodes cells as declared. The score is NULL if `predict` refuses a cell, and for dates without hyphens and
ISO week dates. Text in a numeric column is an error of the database.

ONNX, in double precision, for onnxruntime and other servers. Each column is an input (n, 1). Numbers, booleans (1 and 0),
categories that are all numbers, and dates (in seconds since 1970, as written) are doubles, NaN if missing. All other columns
are text, empty if missing. The outputs, (n, 1) each, are 'score', 'probability' (of the positive class, if scores are log-odds)
and, with two classes, 'positive'. A score is NaN where `predict` refuses a cell. Hashed columns need onnxruntime, because the
graph uses its operator MurmurHash3.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.arguments import package
from vfl.base.columns import canonical_category
from vfl.base.features.formula import BLANK, NO_DATE, Apply, Case, Cell, clipped, parts_of, shared
from vfl.base.features.formulas import formulas_of
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.base.features.formula import Condition, Formula
    from vfl.base.losses import Loss
    from vfl.job import Job
    from vfl.launch.run.model import Model

LARGEST = 1e9
"""A score at which every loss has reached a constant response."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A score as a sum: constant + Σ weight·formula.

    terms : pairs (weight, formula). guards : formulas that are 0, or unknown if a cell is refused. made : {name: formula} of
        subformulas that several formulas share.
    """

    constant: float
    terms: tuple[tuple[float, Formula], ...]
    guards: tuple[Formula, ...]
    made: dict[Cell, Formula]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Cells of the data that all formulas read, each cell once, in order."""
        formulas = (*self.made.values(), *(formula for _, formula in self.terms), *self.guards)
        found = dict.fromkeys(cell for formula in formulas for cell in cells_of(formula))
        return tuple(cell for cell in found if cell.content != "made")


def sum_of(result: Model, party: str | None = None) -> Sum:
    """Return the score of the model, or one party's part of the score without other parties' coefficients.

    The parts of all parties and the intercept on scaled features add up to the score. Columns have their names in one table
    of all parties; with `party`, the names in the party's own data.

    Raises SpecificationError for multinomial loss and for a column without formulas.
    """
    job = result.applied
    if job.multinomial:
        raise SpecificationError(
            "multinomial loss has K linear predictors per record; SQL, ONNX and exports for one party support one: export to "
            "scikit-learn"
        )
    owners = job.partition.parties if party is None else (party,)
    by_name = dict(zip(result.coordinates, map(float, result.w), strict=True))
    constant = float(result.intercept_on_scaled) if party is None else 0.0
    terms: list[tuple[float, Formula]] = []
    guards: list[Formula] = []
    for owner in owners:
        made_of, refused = coordinates_of(job, owner, in_one_table=party is None)
        guards += refused
        scaling = job.scaling_of(job.partition.columns(owner))
        position = {name: k for k, name in enumerate(scaling.features)}
        for name, formula in made_of.items():
            weight = by_name[name] / float(scaling.width[position[name]])
            constant -= weight * float(scaling.shift[position[name]])
            terms.append((weight, formula))
    made, formulas = shared([*(formula for _, formula in terms), *guards])
    weights = [weight for weight, _ in terms]
    return Sum(constant, tuple(zip(weights, formulas, strict=False)), tuple(formulas[len(terms) :]), made)


def coordinates_of(job: Job, owner: str, *, in_one_table: bool) -> tuple[dict[str, Formula], list[Formula]]:
    """Return {coordinate: formula} of a party's columns, and the formulas that refuse cells (`formulas_of`).

    in_one_table : True names columns as in one table of all parties, False as in the party's own data.
    """
    found: dict[str, Formula] = {}
    guards: list[Formula] = []
    names = job.table_names[owner]
    for column in job.partition.columns(owner):
        declared, sources = job.schema[column], job.schema.sources(column)
        own, refused = formulas_of(declared, column, [names[one] if in_one_table else one for one in sources])
        found |= zip(declared.features(column), own, strict=True)
        guards += refused
    return found, guards


def reach_of(loss: Loss) -> tuple[float, float]:
    """Return the scores beyond which the response of a loss with a log link is constant."""
    with np.errstate(all="ignore"):
        low, high = np.log(loss.response(np.array([-LARGEST, LARGEST])))
    return float(low), float(high)


def cells_of(formula: Formula) -> Iterator[Cell]:
    """Yield the cells that a formula reads, once per use."""
    if isinstance(formula, Cell):
        yield formula
        return
    for part in parts_of(formula):
        yield from cells_of(part)


RECORD = "vfl_record"
SCORE = Cell("score")
_OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_FUNCTIONS = {"power": "POWER", "log": "LN", "sin": "SIN", "cos": "COS", "floor": "FLOOR"}
_DATE = (  # ISO 8601 with hyphens, of years from 1 to 9999
    "((([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-"
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))"
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = "[T ]([01][0-9]|2[0-3])(:[0-5][0-9](:[0-5][0-9]([.,][0-9]+)?)?)?"
_ZONE = "(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9](:?[0-5][0-9])?)?)?"
_OTHER = f"({_DATE}([^T ].+|[T ]([0-9]{{3}}|.*[+-]).*)|[0-9]{{4}}(-?W[0-9]|[0-9]{{4}}).*)"  # also read by Python


def query_of(result: Model, table: str = "records", party: str | None = None) -> str:
    """Return a SELECT of a table's columns and the model's score; also of probability and class, if the loss has them.

    party : party whose part of the score to select, from the party's own table, as column 'score_part'. See also `sum_of`.
    """
    own = sum_of(result, party)
    names = {cell: f"vfl_{k}" for k, cell in enumerate(own.cells)}
    cleaned = ",\n    ".join(f"{_cleaned(cell)} AS {name}" for cell, name in names.items())
    source = f"(SELECT\n    {cleaned or 'NULL AS vfl_none'}\n  ) AS cells"
    for common, formula in own.made.items():
        source = f"(SELECT *, {_sql(formula, names)} AS {common.column}\n  FROM {source}) AS {common.column}"  # noqa: S608
        names[common] = common.column
    parts = [f"{number(weight)} * {_sql(formula, names)}" for weight, formula in own.terms]
    added = "\n  + ".join([number(own.constant), *parts, *(_sql(guard, names) for guard in own.guards)])
    score = f"(SELECT {added}\n  FROM {source})"  # noqa: S608 - names are quoted
    name = "score" if party is None else "score_part"
    scored = f"SELECT {RECORD}.*,\n  {score} AS {name}\nFROM {quoted(table)} AS {RECORD}\n"
    if party is not None:
        return scored
    return f"SELECT scored.*{_outputs(result)}\nFROM (\n{scored}) AS scored\n"


def _outputs(result: Model) -> str:
    job, loss, found = result.job, result.job.response, ""
    if loss.log_odds:
        found += ",\n  1e0 / (1e0 + EXP(-score)) AS probability"
    if job.classification:
        negative, positive = job.classes or (0, 1)
        one, other = (
            ("'rest'", text(canonical_category(positive)))
            if isinstance(negative, tuple)
            else map(_class, (negative, positive))
        )
        cut = number(result.score_threshold or 0.0)
        found += f",\n  CASE WHEN score > {cut} THEN {other} WHEN score <= {cut} THEN {one} END AS prediction"
    elif loss.power is not None:
        found += f",\n  EXP({_sql(clipped(SCORE, *reach_of(loss)), {SCORE: 'score'})}) AS prediction"
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


OPSET = 20
_NODES = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "log": "Log",
    "floor": "Floor",
    "sin": "Sin",
}
_INPUTS = {"text": "text", "hash": "text", "date": "date"}
_SAID = {
    "text": "text; empty if missing",
    "date": "date and time as written, without its time zone, in seconds since 1970-01-01; NaN if missing",
    "number": "number; 1 and 0 for true and false; NaN if missing",
}
"""{form of a column's cells: documentation string of the graph input for this column}."""
_OF_ONNXRUNTIME = "com.microsoft"


def onnx_of(result: Model, party: str | None = None) -> bytes:
    """Return the bytes of the graph. party : party whose part of the score the graph computes, as output 'score_part'.

    Raises SpecificationError if onnx is not installed, and the errors of `sum_of`.
    """
    onnx = package("onnx", "onnx", "an ONNX export")
    own, graph = sum_of(result, party), _Graph(onnx.helper)
    named: dict[str, str] = {}
    for cell in own.cells:
        form = _INPUTS.get(cell.content, "number")
        if named.setdefault(cell.column, form) != form:
            raise SpecificationError(
                f"column {cell.column!r} is read as {named[cell.column]} and as {form}, which one ONNX input cannot be: "
                "export to SQL or scikit-learn"
            )
    for common, formula in own.made.items():
        graph.common[common] = graph.of(formula)
    total = graph.constant(own.constant)
    for weight, formula in own.terms:
        total = graph.node("Add", total, graph.node("Mul", graph.constant(weight), graph.of(formula)))
    for guard in own.guards:
        total = graph.node("Add", total, graph.of(guard))
    outputs = [("score" if party is None else "score_part", onnx.TensorProto.DOUBLE, total)]
    loss = result.job.response
    if party is None and loss.log_odds:
        outputs.append(("probability", onnx.TensorProto.DOUBLE, graph.node("Sigmoid", total)))
    if party is None and loss.classification:
        cut = graph.constant(result.score_threshold or 0.0)
        outputs.append(("positive", onnx.TensorProto.BOOL, graph.node("Greater", total, cut)))
    elif party is None and loss.power is not None:
        outputs.append(
            ("prediction", onnx.TensorProto.DOUBLE, graph.node("Exp", graph.clamped(total, *reach_of(loss))))
        )
    for name, _, found in outputs:
        graph.nodes.append(onnx.helper.make_node("Identity", [found], [name]))
    info = onnx.helper.make_tensor_value_info
    kinds = {"text": onnx.TensorProto.STRING}
    drawn = onnx.helper.make_graph(
        graph.nodes,
        result.job.name or "vfl",
        [info(name, kinds.get(form, onnx.TensorProto.DOUBLE), [None, 1], _SAID[form]) for name, form in named.items()],
        [info(name, kind, [None, 1]) for name, kind, _ in outputs],
        graph.constants,
        "; ".join(f"{name}: {_SAID[form]}" for name, form in named.items()),
    )
    versions = {"": OPSET} | ({_OF_ONNXRUNTIME: 1} if any(cell.content == "hash" for cell in own.cells) else {})
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = onnx.helper.make_model(drawn, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


class _Graph:
    """Nodes and constants of a graph that is being written. Equal nodes are written only once."""

    def __init__(self, helper: Any) -> None:
        self._helper = helper
        self._made: dict[Any, str] = {}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.common: dict[Cell, str] = {}

    def constant(self, value: float | str) -> str:
        key = ("constant", value if isinstance(value, str) else float(value).hex())
        if key not in self._made:
            name = self._made[key] = f"vfl.c{len(self._made)}"
            array = np.array([value.encode()], dtype=object) if isinstance(value, str) else np.array([value])
            kind = 8 if isinstance(value, str) else 11  # TensorProto.STRING and DOUBLE
            self.constants.append(self._helper.make_tensor(name, kind, [1], array.tolist()))
        return self._made[key]

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        key = (kind, inputs, tuple(attributes.items()))
        if key not in self._made:
            name = self._made[key] = f"vfl.n{len(self._made)}"
            self.nodes.append(self._helper.make_node(kind, list(inputs), [name], **attributes))
        return self._made[key]

    def clamped(self, x: str, low: float, high: float) -> str:
        """Return x, clamped to [low, high]. NaN stays NaN."""
        for end, nearer in ((low, "Less"), (high, "Greater")):
            if np.isfinite(end):
                x = self.node("Where", self.node(nearer, x, self.constant(end)), self.constant(end), x)
        return x

    def of(self, formula: Formula) -> str:
        if isinstance(formula, Cell):
            if formula.content == "hash":
                hashed = self.node("MurmurHash3", formula.column, domain=_OF_ONNXRUNTIME, positive=0)
                return self.node("Cast", hashed, to=11)
            return self.common.get(formula, formula.column)
        if isinstance(formula, Apply):
            args = [self.of(one) for one in formula.args]
            if formula.name == "cos":  # onnxruntime has no cosine of doubles: cos x = 1 − 2 sin²(x/2)
                half = self.node("Sin", self.node("Mul", *args, self.constant(0.5)))
                square = self.node("Mul", self.node("Mul", half, half), self.constant(2.0))
                return self.node("Sub", self.constant(1.0), square)
            if formula.name == "remainder":
                return self.node("Mod", *args, fmod=1)
            return self.node(_NODES[formula.name], *args)
        if isinstance(formula, Case):
            found = self.of(formula.otherwise)
            for condition, one in reversed(formula.cases):
                found = self.node("Where", self._holds(condition), self.of(one), found)
            return found
        return self.constant(formula)

    def _holds(self, condition: Condition) -> str:
        if condition.name == "missing" and isinstance(condition.a, Cell) and _INPUTS.get(condition.a.content) == "text":
            return self.node("RegexFullMatch", condition.a.column, pattern="")
        a = self.of(condition.a)
        if condition.name == "missing":
            return self.node("IsNaN", a)
        if isinstance(condition.b, str):
            return self.node("RegexFullMatch", a, pattern=f"[{BLANK}]*{re.escape(condition.b)}[{BLANK}]*")
        return self.node("Less" if condition.name == "less" else "Equal", a, self.of(condition.b))
