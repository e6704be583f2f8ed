"""`draft`: the text of a job file for some data files. Everything that was read from the data stands in comments.

The drafted job therefore lacks these declarations, and vfl refuses it until somebody makes them. A range or a list of
categories that was read from the records reveals something about them, so no guarantee could rest on it. Ids and label are
found by the names of columns alone. The draft shows cells: only the owner of the files should see it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from parties.sources.opening import open_source
from parties.sources.sparse import SparseSource
from vfl.errors import DataError, SpecificationError, nearest
from vfl.job.drafted import MARK
from vfl.job.file import ADDRESS
from vfl.job.plain import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MANY = 50
"""A text column with more distinct values is taken for free text, and dropped."""
DIGITS = 6
"""Significant digits of a drafted range; longer numbers are rounded outwards."""

LABELS = ("target", "label", "y", "class", "outcome", "default", "churn")
IDS = ("id", "uid", "uuid", "key", "customer", "subscriber", "client", "patient", "person", "user", "account")


@dataclass(slots=True)
class Found:
    """Summary of a column's cells. kind : 'numeric', 'boolean', 'text' or 'other'."""

    kind: str
    low: float | None = None
    high: float | None = None
    missing: bool = False
    values: dict[str, None] = field(default_factory=dict)

    def add(self, cells: pa.Array) -> None:
        """Update the summary with a chunk of cells."""
        self.missing = self.missing or cells.null_count > 0
        cells = cells.drop_null()
        if not len(cells):
            return
        if self.kind == "text":
            for value in pc.unique(cells).to_pylist():
                if len(self.values) <= MANY:
                    self.values[str(value)] = None
        numbers = _numbers(cells) if self.kind == "numeric" else None
        if numbers is None:
            return
        if pc.any(pc.is_nan(numbers)).as_py():
            self.missing = True
        finite = numbers.filter(pc.is_finite(numbers))
        if len(finite):
            both = pc.min_max(finite).as_py()
            self.low = both["min"] if self.low is None else min(self.low, both["min"])
            self.high = both["max"] if self.high is None else max(self.high, both["max"])


def _numbers(cells: pa.Array) -> pa.Array | None:
    try:
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            cells = pc.utf8_trim_whitespace(cells)
        return cells.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        return None


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "numeric"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else "other"


def columns_of(party: str, source: Any) -> dict[str, Found]:
    """Read a party's source once and return {column: summary} in its order. Raises DataError."""
    opened = open_source(source, {}, party=party)
    names = opened.names
    if not isinstance(opened, SparseSource) and names:
        opened = open_source(source, dict.fromkeys(names, "text"), party=party)
    if isinstance(opened, SparseSource) or not names:
        raise opened.origin.error("has no names of columns: write its job by hand")
    found: dict[str, Found] = {}
    textual: set[str] = set()
    for batch in opened.batches(names):
        for name in names:
            cells = batch.column(name)
            if pa.types.is_dictionary(cells.type):
                cells = cells.dictionary_decode()
            found.setdefault(name, Found("numeric" if not opened.typed else _kind_of(cells.type)))
            if not opened.typed and name not in textual and _numbers(cells.drop_null()) is None:
                textual.add(name)
            found[name].add(cells)
    return found if not textual else _again(names, textual, opened.batches(sorted(textual)), found)


def _again(
    names: Any, textual: set[str], batches: Iterator[pa.RecordBatch], found: dict[str, Found]
) -> dict[str, Found]:
    """Read columns again that turned out to hold text after their first values were taken for numbers."""
    texts = {name: Found("text") for name in textual}
    for batch in batches:
        for name in textual:
            texts[name].add(batch.column(name))
    return {name: texts.get(name, found[name]) for name in names}


def draft(
    sources: Mapping[str, str | Path],
    *,
    label: str | None = None,
    ids: str | Sequence[str] | None = None,
    folder: Path | None = None,
) -> str:
    """Return the text of a job file for the parties' files.

    sources : {party: path}. label : 'column' or 'party.column'; None looks for a usual name.
    ids : the id column of all files, or 'party.column' for each; None looks for a usual name in every file.
    folder : folder of the job file; paths in the draft are relative to it.

    Raises SpecificationError, or DataError for a file that cannot be read.
    """
    found = {party: columns_of(party, str(path)) for party, path in sources.items()}
    owner, target = _label(found, label)
    id_of = _ids(found, ids)
    owned = {p: [c for c in columns if c != id_of.get(p) and (p, c) != (owner, target)] for p, columns in found.items()}
    labelled = found[owner][target] if target else None
    lines = [
        f"# Drafted by vfl init from {', '.join(Path(path).name for path in sources.values())}.",
        "# Keep it to yourself: it shows cells.",
        f'# Comments that end in "{MARK}"',
        "# are not declarations. Replace them by what is publicly known of a column, then take the comment sign away; until",
        "# then the job is refused.",
        f"format = {FORMAT}",
        'name = "draft"',
        'loss = "logistic"  # for a label that is a number: "squared", "huber" or "poisson"',
        *_id_lines(id_of, found, "found by its name" if ids is None else "as given"),
        *_class_lines(labelled),
        "",
        "[partition]",
        f"label = [{_text(owner)}, {_text(target or '')}]"
        + ("  # found by its name" if target and label is None else "" if target else "  # name the label's column"),
        "",
        "[partition.parties]",
        *(f"{_key(party)} = [{', '.join(map(_text, columns))}]" for party, columns in owned.items()),
    ]
    lines += _shared(owned)
    lines += _declarations({c: (p, found[p][c]) for p, columns in owned.items() for c in columns})
    if labelled is not None and labelled.kind == "numeric" and not _binary(labelled):
        lines.append(
            f"# for squared, huber or poisson loss, under [bounds]: {_key(target)} = {_range(labelled)}  # {MARK}"
        )
    lines += [
        "",
        "[penalty]",
        'kind = "l2"',
        "strength = 1e-4",
        "",
        "[privacy]",
        "epsilon = 1.0",
        "",
        "[data]  # each path is opened by that party's own actor",
        *(f"{_key(party)} = {_text(_relative(path, folder))}" for party, path in sources.items()),
    ]
    return "\n".join(lines) + "\n"


def _label(found: Mapping[str, Mapping[str, Found]], given: str | None) -> tuple[str, str]:
    """Return party and column of the label; the column is '' if none has a usual name."""
    held = [(party, column) for party, columns in found.items() for column in columns]
    if given is None:
        for name in LABELS:
            fitting = [(party, column) for party, column in held if column.lower() == name]
            if len(fitting) == 1:
                return fitting[0]
        return next(iter(found)), ""
    fitting = [(party, column) for party, column in held if given in (column, f"{party}.{column}")]
    if len(fitting) != 1:
        what = "no file has" if not fitting else "several files have"
        raise SpecificationError(
            f"{what} a column {given!r}{nearest(given, [c for _, c in held])}: give --label PARTY.COLUMN"
        )
    return fitting[0]


def _ids(found: Mapping[str, Mapping[str, Found]], given: str | Sequence[str] | None) -> dict[str, str]:
    """Return {party: id column}. Without `given` the names decide, and the result is {} unless every file has one."""
    if given is None:
        chosen = {party: next(filter(named_as_id, columns), None) for party, columns in found.items()}
        return {p: c for p, c in chosen.items() if c is not None} if None not in chosen.values() else {}
    named = [given] if isinstance(given, str) else list(given)
    column = named[0]
    everywhere = all(column in columns for columns in found.values())
    if len(named) == 1 and (everywhere or column.partition(".")[0] not in found):
        for party, columns in found.items():
            if column not in columns:
                raise DataError(
                    f"party {party!r}: there is no id column {column!r}{nearest(column, columns)}; "
                    "give --id PARTY.COLUMN once for each party where names differ"
                )
        return dict.fromkeys(found, column)
    chosen_of: dict[str, str] = {}
    for name in named:
        party, dot, column = name.partition(".")
        if not dot or party not in found:
            raise SpecificationError(
                f"--id takes PARTY.COLUMN once for each party, not {name!r}{nearest(party, found)}; the parties are "
                f"{', '.join(found)}"
            )
        if party in chosen_of:
            raise SpecificationError(f"--id names two columns of party {party!r}: give one")
        if column not in found[party]:
            raise DataError(f"party {party!r}: there is no id column {column!r}{nearest(column, found[party])}")
        chosen_of[party] = column
    for party in found:
        if party not in chosen_of:
            raise SpecificationError(
                f"--id names no column of party {party!r}: records are aligned by an id column at every party; "
                f"give --id {party}.COLUMN too"
            )
    return {party: chosen_of[party] for party in found}


def named_as_id(column: str) -> bool:
    """Return True if a column has a usual name of an id."""
    return column.lower() in IDS or column.lower().endswith(("_id", "-id", " id"))


def _id_lines(id_of: Mapping[str, str], found: Mapping[str, Mapping[str, Found]], how: str) -> list[str]:
    if not id_of:
        named = ", ".join(f'{_key(party)} = "..."' for party in found)
        return [
            '# id = "..."  # the column by which records are aligned; without it, rows are in the same order everywhere',
            f"# where its names differ: id = {{ {named} }}",
        ]
    names = set(id_of.values())
    spelt = (
        _text(names.pop())
        if len(names) == 1
        else "{ " + ", ".join(f"{_key(party)} = {_text(column)}" for party, column in id_of.items()) + " }"
    )
    lines = [f"id = {spelt}  # by which records are aligned; {how}"]
    if all(found[party][column].kind == "numeric" for party, column in id_of.items()):
        lines.append('id_kind = "integer"')
    return lines


def _binary(found: Found) -> bool:
    return found.kind == "boolean" or (found.low, found.high) in ((0.0, 1.0), (-1.0, 1.0))


def _class_lines(found: Found | None) -> list[str]:
    if found is None or _binary(found):
        return []
    shown = sorted(found.values) if found.kind == "text" else [found.low, found.high]
    return [f"# classes = {json.dumps(shown[:2], ensure_ascii=False)}  # negative, positive; {MARK}"]


def _shared(owned: Mapping[str, list[str]]) -> list[str]:
    columns = [column for names in owned.values() for column in names]
    return [
        f"# {_text(column)} is a column of several parties: rename it in all files but one"
        for column in dict.fromkeys(c for c in columns if columns.count(c) > 1)
    ]


def _declarations(columns: Mapping[str, tuple[str, Found]]) -> list[str]:
    """Return the tables of declarations. columns : {column: (its party, what its cells look like)}."""
    numeric = {c: found for c, (_, found) in columns.items() if found.kind == "numeric" and not named_as_id(c)}
    lines = ["", "[bounds]", *(f"# {_key(c)} = {_range(found)}  # {MARK}" for c, found in numeric.items())]
    gaps = [column for column, found in numeric.items() if found.missing]
    if gaps:
        lines += ["", "[fill]  # what a missing cell becomes; that cells are missing was seen in the data"]
        lines += [f"# {_key(column)} = 0  # {MARK}" for column in gaps]
    for column, (party, found) in columns.items():
        if column in numeric:
            continue
        lines += ["", f"[columns.{_key(column)}]"]
        if found.kind == "boolean":
            lines.append('kind = "boolean"')
        elif found.kind == "text" and 2 <= len(found.values) <= MANY and not named_as_id(column):
            listed = ", ".join(map(_text, sorted(found.values)))
            lines += ['kind = "categorical"', f"# categories = [{listed}]  # {MARK}", 'unknown = "zero"']
        else:
            lines += _dropped(column, party, found)
            continue
        if found.missing:
            lines.append(f'# missing = "indicator"  # or fill = ...; {MARK}')
    return lines


def _dropped(column: str, party: str, found: Found) -> list[str]:
    """Return the declaration that drops a column, with a comment on its likely meaning."""
    if not named_as_id(column) and len(found.values) <= MANY:
        return ['kind = "dropped"  # a constant, or of a type that cannot be a feature']
    seems = "named like an id" if named_as_id(column) else "free text, or an id"
    return [
        f'kind = "dropped"  # {seems}. If records are known by it, write id = ... above,',
        f"# or draft again with: --id {party}.{column}",
    ]


def _range(found: Found) -> str:
    """Return the range of the cells in few digits, rounded outwards, so that no cell is outside."""
    return f"[{_short(found.low or 0.0, ROUND_FLOOR)}, {_short(found.high or 0.0, ROUND_CEILING)}]"


def _short(value: float, rounding: str) -> str:
    exact = Decimal(repr(value))
    digits, places = exact.as_tuple().digits, exact.adjusted() - DIGITS + 1
    if len(digits) > DIGITS + 2 and not value.is_integer():
        exact = exact.quantize(Decimal(1).scaleb(min(places, 0)), rounding=rounding)
    return repr(float(exact)).removesuffix(".0").replace(".0e", "e")


def _text(text: str) -> str:
    """Return a TOML string, which is also a quoted key."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _key(text: str) -> str:
    """Return a TOML key, bare where it may be."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _text(text)


def _relative(path: str | Path, folder: Path | None) -> str:
    """Return a path as the job file states it: relative to its folder, or absolute where that is shorter."""
    if ADDRESS in str(path):
        return str(path)
    absolute = os.path.abspath(path)  # noqa: PTH100 - a link stays as it is named
    relative = os.path.relpath(absolute, Path.cwd() if folder is None else folder.absolute())
    return min(relative, absolute, key=len)
