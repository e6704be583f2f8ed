"""Function `draft`: write a job file for some data files. Every value that was read from the data becomes a comment.

vfl refuses the draft until somebody declares these values, in the file or by answers to questions at a terminal. A range or a
list of categories that was read from the records reveals something about them, so no guarantee could be based on it.

The draft itself declares the label, found by its name; the ids, by their names or by cells that files share; the format of
text files, by their beginning; the loss, by the label's cells; and the kind of each column. A single cell may decide one of
these declarations, so the draft lists them in `read_from_data`. Certificates say NOT PRIVATE until the owner confirms that
the listed declarations are publicly known. The draft shows cells: only the owner of the files should see it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from parties.sources.base import NO_DATE
from parties.sources.csv import dates_of, numbers_of
from parties.sources.opening import open_source
from parties.sources.sparse import SparseSource
from vfl.apps.drafting.recognition import as_declared, by_overlap, distinct_cells, is_recognised, overlap, recognise
from vfl.base.columns import canonical_category
from vfl.base.csv import Csv
from vfl.errors import DataError, SpecificationError, nearest
from vfl.job.drafted import MARK
from vfl.job.environment import path_of
from vfl.job.file import ADDRESS
from vfl.job.plain import FORMAT
from vfl.launch.sources import named_as_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MANY = 50
"""Largest number of distinct values in a text column. A column with more values is treated as free text and dropped."""
FEW = 10
"""Largest number of classes in a label of numbers. A label with more distinct values is treated as a number."""
RARE = 10
"""Smallest factor between the most frequent count and the largest one. Classes are seldom that rare, and seldom begin at 0."""
FEWEST = 3
"""Largest number of distinct texts in a column of numbers. So few texts are taken for marks of missing cells."""
FAR = 100
"""Smallest factor between the largest cell and the median of a far tail. Bounds so much too wide hide a column in noise."""
NAME = 'name = "draft"'
NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*")
OVERLAP = "found by overlap, check it"
_DAY = "([0-9]{1,2}|[0-9]{4}|[A-Za-z]{3,9})"
FORMS = {
    "dates": (
        rf"^\s*{_DAY}([-./ ]{_DAY}[-./ ]|[-./ ]{_DAY}, )([0-9]{{2}}|[0-9]{{4}})([T, ]+[0-9:.]+( ?[AP]M)?)?\s*$",
        "write them as ISO dates, such as 2026-01-31 (a text file may declare one other format for all its dates)",
    ),
    "numbers": (
        r"^\s*[(+-]?\s*[$€£¥]?\s*[+-]?[0-9][0-9.,' ]*\s*([%$€£¥]|[A-Z]{3})?\s*\)?\s*$",
        "if they are amounts, write them as plain numbers, such as 4530.66 (in a file with types, in a column of numbers)",
    ),
}
"""{form: (pattern of its texts, how the owner of the file makes them readable)}."""
DIGITS = 6
"""Significant digits of a range in a draft. Longer numbers are rounded outwards."""

LABELS = ("target", "label", "y", "class", "outcome", "default", "churn")
_LOSSES = {
    "logistic": 'for a label that is a number: "squared", "huber", "poisson", "gamma" or "tweedie"',
    "multinomial": "for a label of several classes",
    "poisson": 'for counts; for amounts "gamma" (above 0) or "tweedie" (0 or more), for other numbers "squared" or "huber"',
    "squared": 'or "huber", which is robust; for amounts "gamma" (above 0) or "tweedie" (0 or more), for counts "poisson"',
}
_NUMBERS = ("poisson", "squared")
"""Losses in drafts for which the range of the label must be declared."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question about a declaration that only a person can make.

    about : 'label', 'bounds', 'fill', 'categories', 'missing', 'classes', 'read' or 'epsilon'. column : name of the column.
    shown : the value that the records suggest, in TOML; NOT PRIVATE unless publicly known. For 'label', the names of all
        columns. For 'read', the declarations that the records decided. The answer to 'read' lists those declarations that are
        not public knowledge, or is '""' if all are.
    """

    about: str
    column: str
    shown: str


Ask: TypeAlias = "Callable[[Question], str | None]"
"""Function that answers a question by the declared value in TOML (for a label: PARTY.COLUMN), or None to leave it open."""


@dataclass(slots=True)
class ColumnSummary:
    """Summary of a column's cells, read as one kind.

    kind : 'numeric', 'boolean', 'text', 'date' or 'other'.
    values : {cell as text: number of such cells} of the first distinct cells. The numbers are exact for at most MANY cells.
    empty : True if a text cell is empty. median : largest median of a chunk of numbers.
    """

    kind: str
    low: float | None = None
    high: float | None = None
    missing: bool = False
    values: Counter[str] = field(default_factory=Counter)
    empty: bool = False
    median: float = 0.0

    def add(self, cells: pa.Array, spec: Csv | None) -> bool:
        """Update the summary with a chunk of cells. Return False if a cell is not of this kind.

        spec : format of the text file; None for a file with types.
        """
        self.missing = self.missing or cells.null_count > 0
        cells = cells.drop_null()
        text = pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type)
        if self.kind == "numeric":
            cells = cells.cast(pa.float64(), safe=False) if spec is None else numbers_of(cells, spec)
        if cells is None or (self.kind == "date" and text and not _are_dates(cells, spec)):
            return False
        if (text or self.kind == "numeric") and len(self.values) <= MANY:
            for pair in pc.value_counts(cells):
                if len(self.values) <= MANY:
                    self.values[canonical_category(pair["values"].as_py())] += pair["counts"].as_py()
        if self.kind == "numeric":
            self.missing = self.missing or bool(pc.any(pc.is_nan(cells)).as_py())
            finite = cells.filter(pc.is_finite(cells))
            self.median = max(self.median, pc.approximate_median(finite).as_py() or 0.0)
            ends = pc.min_max(finite).as_py()
            self.low, self.high = (
                choose((own for own in (old, ends[key]) if own is not None), default=None)
                for key, choose, old in (("min", min, self.low), ("max", max, self.high))
            )
        elif self.kind == "text":
            self.empty = self.empty or "" in self.values
        return True


def _kinds_of(kind: pa.DataType, *, typed: bool) -> tuple[str, ...]:
    """Return the kinds as which a column may be read, the preferred one first."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ("date", "text") if typed else ("numeric", "date", "text")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return ("numeric",)
    if pa.types.is_boolean(kind):
        return ("boolean",)
    return ("date",) if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else ("other",)


def _are_dates(cells: pa.Array, spec: Csv | None) -> bool:
    if spec is None or spec.dates is None:
        iso = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.,+Z-]*)?\s*$"
        return pc.all(pc.match_substring_regex(cells, iso)).as_py() is not False
    return NO_DATE not in dates_of(cells, spec).to_pylist()


def columns_of(party: str, source: Any) -> dict[str, ColumnSummary]:
    """Read a party's source once. Return {column: summary} in the source's order. Raises DataError.

    Each column is read as all kinds that it may have, until a cell is not of a kind.
    """
    opened = open_source(source, {}, party=party)
    names = opened.names
    if not isinstance(opened, SparseSource) and names:
        opened = open_source(source, dict.fromkeys(names, "text"), party=party)
    if isinstance(opened, SparseSource) or not names:
        raise opened.origin.error("its columns have no names: write the job by hand")
    found: dict[str, list[ColumnSummary]] = {}
    spec = None if opened.typed else source if isinstance(source, Csv) else Csv(str(source))
    for batch in opened.batches(names):
        for name in names:
            cells = batch.column(name)
            if pa.types.is_dictionary(cells.type):
                cells = cells.dictionary_decode()
            kinds = found.get(name) or [ColumnSummary(kind) for kind in _kinds_of(cells.type, typed=opened.typed)]
            found[name] = [summary for summary in kinds if summary.add(cells, spec)]
    return {name: next((each for each in kinds if each.values), kinds[-1]) for name, kinds in found.items()}


def draft(
    sources: Mapping[str, str | Path | Csv],
    *,
    label: str | None = None,
    ids: str | Sequence[str] | None = None,
    weight: str | None = None,
    exposure: str | None = None,
    folder: Path | None = None,
    dataset: str | None = None,
    ledger: str | Path | None = None,
    ask: Ask | None = None,
    curves: bool = False,
) -> str:
    """Return the text of a job file for the data files of the parties.

    sources : {party: path, or a text file with its format}. The format of a text file that is given as a path is recognised.
    label : 'column' or 'party.column'; None looks for a usual name of a label, then asks.
    ids : the id column of all files, or 'party.column' for each file; None looks for usual names, then for shared cells.
    weight, exposure : columns of the label's owner with the weights and the exposures of the records; None if there is no such
        column.
    folder : folder of the job file; paths in the draft are relative to it.
    dataset : name of the job's data set in a ledger. ledger : file of the ledger.
    ask : function that answers questions (`Question`); with None, comments in the draft ask them.
    curves : True declares a curve (vfl.Curve) for every numeric column with bounds.

    The draft lists in `read_from_data` all declarations that the records decided, unless the answers of `ask` confirm that
    they are publicly known.

    Raises SpecificationError, or DataError for a file that cannot be read.
    """
    ask = ask or (lambda _: None)
    recognised = {party: recognise(source) for party, source in sources.items()}
    opened = {party: known.source for party, known in recognised.items()}
    found = {party: columns_of(party, source) for party, source in opened.items()}
    owner, target, how = _label(found, label, ask)
    id_of, id_how = _ids_with_reason(found, opened, ids, target)
    factors = _factors(found[owner], owner, target, {"weight": weight, "exposure": exposure})
    taken = {(owner, target), *((owner, column) for column in factors.values()), *id_of.items()}
    owned = {p: [c for c in columns if (p, c) not in taken] for p, columns in found.items()}
    labelled = found[owner][target] if target else None
    class_lines = _class_lines(target, labelled, ask)
    loss = _loss(labelled, class_lines)
    files = (Path(path_of(source).partition("?")[0]).name for source in opened.values())
    decided = _decided(sources, class_lines, labelled, by_cells=id_how.startswith(OVERLAP))
    lines = [
        f"# Drafted by vfl init from {', '.join(files)}.",
        "# Keep it to yourself: it shows cells.",
        f'# Comments that end in "{MARK}"',
        "# are not declarations. Replace them by what is publicly known of a column, then take the comment sign away; until",
        "# then the job is refused.",
        f"format = {FORMAT}",
        NAME,
        f'loss = "{loss}"  # {_LOSSES[loss]}',
        *([] if dataset is None else [f"dataset = {_text(dataset)}"]),
        "# evaluation.holdout = 0.2  # fraction of the records to measure the model on; they are missing from its training",
        *_id_lines(id_of, found, id_how),
        *class_lines,
        "",
        "[partition]",
        f"label = [{_text(owner)}, {_text(target)}]  # {how}" if how else f"label = [{_text(owner)}, {_text(target)}]",
        *_factor_lines(owner, factors, loss),
        "",
        "[partition.parties]",
        *(f"{_key(party)} = [{', '.join(map(_text, columns))}]" for party, columns in owned.items()),
    ]
    beside = [*factors.values(), *([target] if loss in _NUMBERS else [])]
    named = _names(owned, *((owner, column) for column in (target, *factors.values())))
    lines += _declarations(
        {named[p, c]: (p, c, found[p][c]) for p, columns in owned.items() for c in columns},
        {named[owner, c]: found[owner][c] for c in beside},
        ask,
    )
    read = _read_lines(decided, ask)
    if curves:
        lines += [
            "",
            '[columns."*"]  # every numeric column with bounds; the run places the knots of its curve',
            'kind = "curve"',
        ]
    lines += [
        "",
        "[penalty]",
        'kind = "l2"',
        "strength = 1e-4",
        "",
        "[privacy]",
        f"epsilon = {ask(Question('epsilon', 'epsilon', '1.0')) or '1.0'}",
        *read,
        "",
        *([] if ledger is None else ["[ledger]", f"path = {_text(_relative(ledger, folder))}", ""]),
        "[data]  # each path is opened by that party's own actor",
    ]
    lines += [
        f"{_key(party)} = {_text(_relative(source, folder))}"
        for party, source in opened.items()
        if isinstance(source, str)
    ]
    for party, source in opened.items():
        if isinstance(source, Csv):
            lines += _format_lines(party, source, recognised[party].said, folder)
    return "\n".join(lines) + "\n"


def _decided(
    sources: Mapping[str, str | Path | Csv], class_lines: Sequence[str], label: ColumnSummary | None, *, by_cells: bool
) -> str:
    """Describe, in words, the declarations of a draft that the records decided. by_cells : True if shared cells chose the ids.

    Declared classes decide the loss; without them, the label's cells do. The formats of plain text files are named too, since
    they were recognised from the files.
    """
    decided = ["the kinds of the columns"]
    if label is not None and not any(line.startswith("classes = ") for line in class_lines):
        decided.append("the loss")
    if by_cells:
        decided.append("the ids")
    if any(is_recognised(source) for source in sources.values()):
        decided.append("the formats of files")
    return " and ".join(filter(None, (", ".join(decided[:-1]), decided[-1])))


def _read_lines(decided: str, ask: Ask) -> list[str]:
    """Return the lines of `read_from_data` with an explanation; [] if the user confirms that all declarations are public."""
    answer = ask(Question("read", "", _text(decided)))
    if answer == '""':
        return []
    return [
        "# One cell may have decided these, and no guarantee covers that: the certificate says NOT PRIVATE. Take out what you",
        "# have checked against public knowledge, and delete the line when nothing is left.",
        f"read_from_data = {_text(decided) if answer is None else answer}",
    ]


def _format_lines(party: str, spec: Csv, known: Sequence[str], folder: Path | None) -> list[str]:
    """Return the TOML table for a text file and its format, with a comment that describes the format."""
    said = f"  # {'; '.join(known)}" if known else ""
    lines = ["", f"[data.{_key(party)}]{said}", f"path = {_text(_relative(spec.path, folder))}"]
    for name, value in spec.options().items():
        listed = f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else _text(value)
        lines.append(f"{name} = {listed}")
    return lines


def _label(found: Mapping[str, Mapping[str, ColumnSummary]], given: str | None, ask: Ask) -> tuple[str, str, str]:
    """Return party and column of the label, and how they were found; the column is '' if no column has a usual name."""
    held = [(party, column) for party, columns in found.items() for column in columns]
    if given is None:
        for name in LABELS:
            fitting = [(party, column) for party, column in held if column.lower() == name]
            if len(fitting) == 1:
                return *fitting[0], "found by its name"
        given = ask(Question("label", "label", ", ".join(f"{party}.{column}" for party, column in held)))
        if given is None:
            return next(iter(found)), "", "name the label's column: none has a usual name of a label"
    fitting = [(party, column) for party, column in held if given in (column, f"{party}.{column}")]
    if len(fitting) != 1:
        what = "no file has" if not fitting else "several files have"
        raise SpecificationError(
            f"{what} a column {given!r}{nearest(given, [c for _, c in held])}: give --label PARTY.COLUMN"
        )
    return *fitting[0], ""


def _ids_with_reason(
    found: Mapping[str, Mapping[str, ColumnSummary]],
    sources: Mapping[str, str | Csv],
    given: str | Sequence[str] | None,
    target: str,
) -> tuple[dict[str, str], str]:
    """Return {party: id column}, and how the columns were found, with the share of ids that the files have in common."""
    id_of, how = _ids(found, given), "found by its name" if given is None else "as given"
    if len(sources) < 2:
        return id_of, how
    if id_of:
        cells = {party: distinct_cells(party, sources[party], [column]) for party, column in id_of.items()}
        if any(column not in cells[party] for party, column in id_of.items()):
            return id_of, f"{how}; CHECK: a file has the same id twice, or none"
        return id_of, f"{how}; {_said_overlap({p: cells[p][c] for p, c in id_of.items()})}"
    kept = {
        party: [c for c, summary in columns.items() if summary.kind in ("text", "numeric") and c != target]
        for party, columns in found.items()
    }
    shared = by_overlap({party: distinct_cells(party, sources[party], columns) for party, columns in kept.items()})
    if not shared:
        return {}, ""
    said = _said_overlap({party: cells for party, (_, cells) in shared.items()})
    return {party: column for party, (column, _) in shared.items()}, f"{OVERLAP}; {said}"


def _said_overlap(cells: Mapping[str, pa.Array]) -> str:
    (first, own), *others = zip(cells, as_declared(list(cells.values())), strict=True)
    return "; ".join(f"{overlap(own, theirs):.0%} of {first}'s are in {party}'s" for party, theirs in others)


def _ids(found: Mapping[str, Mapping[str, ColumnSummary]], given: str | Sequence[str] | None) -> dict[str, str]:
    """Return {party: id column}. Without `given`, names decide: {} unless every file has a usual name of an id."""
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


def _id_lines(id_of: Mapping[str, str], found: Mapping[str, Mapping[str, ColumnSummary]], how: str) -> list[str]:
    if not id_of:
        named = ", ".join(f'{_key(party)} = "..."' for party in found)
        return [
            '# id = "..."  # the column by which records are aligned; without it, rows are in the same order everywhere',
            f"# where its names differ: id = {{ {named} }}",
        ]
    spelt = "{ " + ", ".join(f"{_key(party)} = {_text(column)}" for party, column in id_of.items()) + " }"
    if len(set(id_of.values())) == 1:
        spelt = _text(next(iter(id_of.values())))
    if all(found[party][column].kind == "numeric" for party, column in id_of.items()):
        spelt = f'{{ column = {spelt}, kind = "integer" }}'
    return [f"id = {spelt}  # by which records are aligned; {how}"]


def _factors(
    columns: Mapping[str, ColumnSummary], owner: str, target: str, given: Mapping[str, str | None]
) -> dict[str, str]:
    """Return {'weight' or 'exposure': column} for the given columns. SpecificationError for a column that does not fit."""
    factors: dict[str, str] = {}
    for role, name in given.items():
        if name is None:
            continue
        column = name.removeprefix(f"{owner}.")
        if not target:
            raise SpecificationError(f"--{role} {name}: the owner of the label has this column: give --label too")
        if column not in columns:
            raise SpecificationError(
                f"--{role}: {owner!r}, which owns the label, has no column {name!r}{nearest(column, columns)}"
            )
        if column in (target, *factors.values()) or columns[column].kind != "numeric":
            raise SpecificationError(f"--{role} takes a numeric column of {owner!r} with no other role, not {name!r}")
        factors[role] = column
    return factors


def _factor_lines(owner: str, factors: Mapping[str, str], loss: str) -> list[str]:
    """Return the lines for the keys `weight` and `exposure`. A key that the job lacks gets a comment that explains the key."""
    lines = [f"{role} = {_text(column)}" for role, column in factors.items()]
    if "weight" not in factors:
        lines.append(f'# weight = "..."  # a column of {owner}: how much each record counts; it is not a feature')
    if "exposure" not in factors and loss == "poisson":
        lines.append(
            f'# exposure = "..."  # a column of {owner}: the period of each count, such as years; it is not a feature'
        )
    return lines


def _loss(label: ColumnSummary | None, class_lines: Sequence[str]) -> str:
    """Return the loss that fits a label: by the declared classes if there are any, else by the label's cells."""
    classes = next((line for line in class_lines if line.lstrip("# ").startswith("classes = ")), None)
    if classes is not None:
        return "logistic" if len(tomllib.loads(classes.lstrip("# "))["classes"]) == 2 else "multinomial"
    if label is None or label.kind != "numeric" or _binary(label):
        return "logistic"
    return "poisson" if all(re.fullmatch(r"[0-9]+", value) for value in label.values) else "squared"


def _counts(found: ColumnSummary) -> bool:
    """Return True for numbers that look like counts: at least four different whole numbers from 0, the largest of them rare."""
    whole = found.kind == "numeric" and all(re.fullmatch(r"[0-9]+", value) for value in found.values)
    numbers = sorted(found.values, key=int) if whole else []
    return len(numbers) > 3 and numbers[0] == "0" and RARE * found.values[numbers[-1]] <= max(found.values.values())


def _binary(found: ColumnSummary) -> bool:
    return found.kind == "boolean" or ((found.low, found.high) == (0.0, 1.0) and len(found.values) <= 2)


def _class_lines(target: str, found: ColumnSummary | None, ask: Ask) -> list[str]:
    if found is None:
        return []
    lines = []
    if found.missing or found.empty:
        what = "missing" if found.missing else "empty text"
        lines.append(
            f"# the label is {what} for some records: leave these records out of the file, or training refuses it"
        )
    if _binary(found) or (found.kind == "numeric" and len(found.values) > FEW):
        return lines
    if _counts(found):
        listed = ", ".join(sorted(found.values, key=int))
        return [*lines, f'# if the numbers of the label name classes: loss = "multinomial" and classes = [{listed}]']
    if found.kind == "text":
        shown: list[Any] = sorted(value for value in found.values if value)
    else:
        shown = sorted(int(number) if number.is_integer() else number for number in map(float, found.values))
    if len(shown) > MANY:
        return [*lines, f"# the label {_text(target)} has more than {MANY} different texts: they are not classes"]
    classes = json.dumps(shown, ensure_ascii=False)
    if len(shown) < 3:
        return [*lines, _marked("classes", Question("classes", target, classes), ask, "negative, positive; ")]
    against = json.dumps([shown[:-1], shown[-1]], ensure_ascii=False)
    lines += [
        f"# the label has {len(shown)} classes, {classes[1:-1]}",
        f'# for a one-vs-rest model: loss = "logistic" and classes = {against}',
    ]
    if found.kind == "numeric":
        lines.append(
            '# for a count or an amount: loss = "poisson" or "squared", no classes, and the range of the label in [bounds]'
        )
    return [*lines, _marked("classes", Question("classes", target, classes), ask)]


def _marked(key: str, question: Question, ask: Ask, note: str = "") -> str:
    """Return the declaration that answers a question; without an answer, a comment with the value that the records suggest."""
    answer = ask(question)
    return f"# {key} = {question.shown}  # {note}{MARK}" if answer is None else f"{key} = {answer}"


def _names(owned: Mapping[str, list[str]], *others: tuple[str, str]) -> dict[tuple[str, str], str]:
    """Return {(party, column): name in the job}. The name is 'PARTY.COLUMN' if several parties hold a column of that name."""
    pairs = [*((party, column) for party, columns in owned.items() for column in columns), *others]
    held = Counter(column for _, column in pairs)
    return {(party, column): f"{party}.{column}" if held[column] > 1 else column for party, column in pairs}


def _declarations(
    columns: Mapping[str, tuple[str, str, ColumnSummary]], beside: Mapping[str, ColumnSummary], ask: Ask
) -> list[str]:
    """Return the job file's tables that declare the columns.

    columns : {feature: (its party, its name at that party, summary of its cells)}.
    beside : {name: summary of the cells} for label, weights and exposures, which need only bounds.
    """
    numeric = {
        c: found
        for c, (_, local, found) in columns.items()
        if found.kind == "numeric" and found.low is not None and not named_as_id(local)
    }
    lines = ["", "[bounds]"]
    middles: dict[str, str] = {}
    for c, found in numeric.items():
        line = _marked(_key(c), Question("bounds", c, range_of(found)), ask)
        middles[c] = _middle(line)
        lines += [*_comments(c, found), line]
    lines += [_marked(_key(c), Question("bounds", c, range_of(found)), ask) for c, found in beside.items()]
    gaps = [column for column, found in numeric.items() if found.missing]
    for c in gaps:
        lines += ["", f"[columns.{_key(c)}]  # cells are missing in the data: declare what they become"]
        lines += [_marked("fill", Question("fill", c, middles[c]), ask)]
    for column, (party, local, found) in columns.items():
        if column in numeric:
            continue
        lines += ["", f"[columns.{_key(column)}]", *_hints(column, local, party, found)]
        if found.kind == "boolean":
            lines.append('kind = "boolean"')
        elif found.kind == "date" and not named_as_id(local):
            lines.append('kind = "date"')
            lines.append('parts = ["year", "month"]  # or quarter, day, weekday, yearday, hour, minute, days')
        elif found.kind == "text" and 2 <= len(found.values) <= MANY and not named_as_id(local):
            listed = f"[{', '.join(map(_text, sorted(found.values)))}]"
            lines.append('kind = "categorical"')
            lines.append(_marked("categories", Question("categories", column, listed), ask))
            lines.append('unknown = "zero"')
        else:
            lines += _dropped(local, party, found)
            continue
        if found.missing:
            lines.append(_marked("missing", Question("missing", column, '"indicator"'), ask, "or fill = ...; "))
    return lines


def _comments(column: str, found: ColumnSummary) -> list[str]:
    """Return a comment on numbers that may be codes of categories, or have a far tail."""
    if (found.low or 0.0) >= 0.0 and (found.high or 0.0) > FAR * found.median > 0.0:
        return [
            f"# {_text(column)} has a far tail: declare the range of most records, or delete its bounds and declare:",
            f'# [columns.{_key(column)}] with kind = "log", bounds = [LOW, HIGH] and offset = 1',
        ]
    whole = all(re.fullmatch(r"-?[0-9]+", value) for value in found.values)
    if not 2 <= len(found.values) <= FEW or _binary(found) or not whole:
        return []
    listed = ", ".join(sorted(found.values, key=int))
    return [
        f"# are the numbers of {_text(column)} codes, not amounts? Then delete its bounds and declare public codes:",
        f'# [columns.{_key(column)}] with kind = "categorical" and categories = [{listed}]',
    ]


def _hints(column: str, local: str, party: str, found: ColumnSummary) -> list[str]:
    """Return comments on texts that may be numbers, dates or marks of missing cells. local : the column's name at its party."""
    if found.kind != "text" or named_as_id(local):
        return []
    values = [value for value in found.values if value]
    form = next((form for form in FORMS if values and all(re.search(FORMS[form][0], value) for value in values)), None)
    if form is not None:
        return [f"# column {_text(column)} holds texts that look like {form}: {FORMS[form][1]}, then draft again"]
    texts = [value for value in values if not NUMBER.fullmatch(value)]
    numbers = len(values) - len(texts)
    if not 0 < len(texts) <= FEWEST or numbers <= 2 * len(texts):
        return []
    named = " ".join(f"--csv {party}.missing={value}" for value in texts)
    return [
        f"# most cells are numbers. If {', '.join(map(_text, texts))} marks a missing cell, draft again with: {named}"
    ]


def _middle(line: str) -> str:
    """Return 0, or the middle of declared bounds that exclude 0. The Enter key accepts this value, so no record may affect it.

    line : declaration of the bounds, or a comment.
    """
    ((low, high),) = tomllib.loads(line).values() or [(0, 0)]
    return "0" if low <= 0 <= high else _short((low + high) / 2, ROUND_HALF_EVEN)


def _dropped(column: str, party: str, found: ColumnSummary) -> list[str]:
    """Return the declaration that drops a column, with a comment on what the column probably holds."""
    if not named_as_id(column) and len(found.values) <= MANY:
        constant = found.values or found.kind == "other"
        what = "a constant, or of a type that cannot be a feature" if constant else "no cell holds a value"
        return [f'kind = "dropped"  # {what}']
    seems = "named like an id" if named_as_id(column) else "free text, or an id"
    return [
        f'kind = "dropped"  # {seems}. If records are known by it, write id = ... above,',
        f"# or draft again with: --id {party}.{column}",
    ]


def range_of(found: ColumnSummary) -> str:
    """Return the range of the cells in few digits, rounded outwards, so that no cell lies outside."""
    return f"[{_short(found.low or 0.0, ROUND_FLOOR)}, {_short(found.high or 0.0, ROUND_CEILING)}]"


def _short(value: float, rounding: str) -> str:
    exact = Decimal(repr(value))
    digits, places = exact.as_tuple().digits, exact.adjusted() - DIGITS + 1
    if len(digits) > DIGITS + 2 and not value.is_integer():
        exact = exact.quantize(Decimal(1).scaleb(min(places, 0)), rounding=rounding)
    return repr(float(exact)).removesuffix(".0").replace(".0e", "e")


def _text(text: str) -> str:
    """Return the text as a TOML string. Quoted keys of TOML have the same form."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _text(text)


def _relative(path: str | Path, folder: Path | None) -> str:
    """Return the path to write into the job file: relative to the file's folder, or absolute if that is shorter."""
    if ADDRESS in str(path):
        return str(path)
    absolute = os.path.abspath(path)  # noqa: PTH100 - a link stays as it is named
    relative = os.path.relpath(absolute, Path.cwd() if folder is None else folder.absolute())
    return min(relative, absolute, key=len)
