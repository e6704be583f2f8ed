"""`vfl init FILES`: draft a job file. Values read from the data are comments, unless their owner confirms them."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import new_file, several
from vfl.apps.cli.options.jobs import CSV, formats_of, in_format
from vfl.base.documents import parse_toml
from vfl.errors import OutputError, SpecificationError

if TYPE_CHECKING:
    from vfl.apps.drafting.draft import Ask, Question


@click.command("init")
@click.argument("files", metavar="[PARTY=]FILE...", nargs=-1, required=True)
@click.option("--label", metavar="[PARTY.]COLUMN", help="The label (default: a column with a usual name).")
@several(
    "--id",
    "ids",
    "[PARTY.]COLUMN",
    "The id column: a name that all files share, or PARTY.COLUMN once per party (default: usual names, or shared ids).",
)
@click.option("--weight", metavar="COLUMN", help="The column of the label's owner with the weights of the records.")
@click.option(
    "--exposure", metavar="COLUMN", help="The column of the label's owner with the exposures, for counts and amounts."
)
@CSV
@new_file("A new job file (default: print).")
@click.option(
    "--private-bounds",
    "epsilon",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="EPSILON",
    help="Release open bounds of numbers privately for this ε, where the FILES lie.",
)
@click.option("--ledger", type=click.Path(), metavar="FILE", help="The ledger that released bounds are charged to.")
@click.option("--dataset", metavar="NAME", help="The data set of --ledger, for the draft too.")
@click.option("--curves", is_flag=True, help="Fit a curve for every numeric column with bounds.")
@click.option("--yes", is_flag=True, help="Ask nothing: leave open declarations as comments.")
def command(
    files: tuple[str, ...],
    label: str | None,
    ids: tuple[str, ...],
    weight: str | None,
    exposure: str | None,
    formats: tuple[str, ...],
    output: Path | None,
    epsilon: float | None,
    ledger: str | None,
    dataset: str | None,
    *,
    curves: bool,
    yes: bool,
) -> None:
    """Draft a job for the parties' FILES. A party is named after its file unless it has a name.

    Bounds, categories and other values read from the records are NOT PRIVATE unless publicly known. At a terminal, each is
    asked for. Otherwise it appears as a comment, and vfl refuses the job until you declare public values. Label and id are
    found by column name, ids also by cells that the files share, and the format of text files by their beginning.

    The records decide the kinds of the columns, and may decide loss, ids and formats. The draft lists these as
    read_from_data, and certificates say NOT PRIVATE, until you confirm that they are public.

    With --private-bounds, bounds come from a private release instead: they cost ε, in addition to the ε of training, and are
    public afterwards. Use it on records of your own, at their owner.
    """
    from vfl.apps.drafting.draft import draft
    from vfl.base.writing import write_whole
    from vfl.job.drafted import left_in

    paths: dict[str, str] = {}
    for file in files:
        party, equals, path = file.partition("=")
        party, path = (party, path) if equals and "://" not in party else (_party(file), file)
        if party in paths:
            raise SpecificationError(f"two files are given for party {party!r}: name each, PARTY=FILE")
        paths[party] = path
    if epsilon is not None and output is not None and not output.absolute().parent.is_dir():
        raise OutputError(f"there is no folder {str(output.parent)!r} for the job file")  # checked before any release
    options = formats_of(formats, tuple(paths))
    sources = {party: in_format(path, party, options) for party, path in paths.items()}
    folder = None if output is None else output.parent
    ask: Ask | None = None if yes or not at_terminal() else _ask
    given: dict[str, Any] = {"label": label, "ids": ids or None, "weight": weight, "exposure": exposure}
    given |= {"folder": folder, "dataset": dataset, "ledger": ledger}
    released: tuple[str, ...] = ()
    if epsilon is not None:
        from vfl.apps.drafting.released_bounds import release_bounds, require_ledger
        from vfl.launch.run.warnings import PrivacyWarning

        require_ledger(ledger, dataset)  # here, so that a missing ledger is reported before files are read
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyWarning)
            # Each party's release warns of its own ε. `paid_release.lines` states the total, so hide these warnings.
            warnings.filterwarnings("ignore", "private run ", PrivacyWarning)
            paid_release = release_bounds(
                draft(sources, **given), sources, epsilon=epsilon, ledger=ledger, dataset=dataset
            )
        ask, released = (
            paid_release.asking(ask),
            (*paid_release.lines, *(f"warning: {each.message}" for each in caught)),
        )
    elif ledger is not None or dataset is not None:
        raise SpecificationError(
            "--ledger and --dataset say where released bounds are charged: give --private-bounds EPSILON"
        )
    text = draft(sources, **given, ask=ask, curves=curves)
    left = sum(map(len, left_in(text).values()))
    if output is None:
        click.echo(text, nl=False)
        for said in released:
            click.echo(said, err=True)
        click.echo(
            "next: save this as a job file, declare the marked values, then: vfl plan FILE --records N", err=True
        )
        return
    write_whole(output, text)
    for said in (*_said(text), *released):
        click.echo(f"{output}: {said}")
    if left:
        from vfl.job.drafted import MARK

        click.echo(f"{output}: {left} declarations are left to you, marked {MARK!r}")
        click.echo(f"next: declare them in {output}, then: vfl plan {output} --records N")
        return
    click.echo(f"{output}: nothing is left open")
    click.echo(f"next: vfl plan {output} --records N")


def _party(file: str) -> str:
    return Path(file.partition("?")[0]).name.split(".")[0]


def _said(text: str) -> list[str]:
    """Return sentences on what a reader of the draft should check first: label, loss, ids, and formats of text files."""
    plain = parse_toml(text)
    party, column = plain["partition"]["label"]
    said = [f"the label is {party}.{column}" if column else "NO LABEL was found: name it in the file, or with --label"]
    said += [line.removeprefix("# ") for line in text.splitlines() if line.startswith(("# the label ", "# column "))]
    said.append(f'loss = "{plain["loss"]}": check that it fits the label')
    said += [line.replace("  #", ":", 1) for line in text.splitlines() if line.startswith("id = ")]
    said += [line.replace("  #", ":", 1) for line in text.splitlines() if line.startswith("[data.") and "  #" in line]
    if read := plain["privacy"].get("read_from_data"):
        said.append(
            f"the records decided {read}: certificates say NOT PRIVATE until you have checked these "
            "against public knowledge and deleted read_from_data"
        )
    return said


def at_terminal() -> bool:
    """Return True if a person can answer questions."""
    return sys.stdin.isatty() and sys.stderr.isatty()


_ASKED = {
    "label": ("the label, PARTY.COLUMN", ""),
    "bounds": ("public bounds, LOW HIGH", "two numbers, the lower one first, such as 0 1.5"),
    "fill": ("number for a missing cell", "a number, such as 0"),
    "categories": ("public categories, separated by commas", "two categories or more, such as red, green, blue"),
    "missing": ("a missing cell: 'indicator' adds a coordinate for it", "indicator"),
    "classes": (
        "public classes, separated by commas; of two, the negative one first",
        "two classes or more, such as no, yes",
    ),
    "read": ("y: all of it is publicly known", "y, or Enter"),
    "epsilon": ("ε of the job", "a number above 0, such as 1.0"),
}
"""{subject of a question: (prompt, expected form of the answer)}."""
_NOT_PRIVATE = ("bounds", "categories", "classes")


def _ask(question: Question) -> str | None:
    """Ask a question at the terminal until the answer can be read. Enter leaves the declaration open, or takes the default."""
    (prompt, expected), open_ = _ASKED[question.about], "Enter: leave it open"
    if question.about in _NOT_PRIVATE:
        shown = (
            f"{question.column}: the records hold {question.shown}, NOT PRIVATE unless publicly known. y: it is public"
        )
    elif question.about == "read":
        shown = f"the records decided {json.loads(question.shown)}: certificates say NOT PRIVATE unless that is public"
        open_ = "Enter: declare it as read_from_data"
    elif question.about == "label":
        shown = f"no column has a usual name of a label; there are {question.shown}"
    else:
        shown, open_ = f"{question.column}: y or Enter takes {question.shown}", ""
    click.echo(f"{shown}{'; ' if open_ else ''}{open_}", err=True)
    while True:
        answer = click.prompt(f"  {prompt}", default="", show_default=False, err=True).strip()
        if not answer:
            return None if open_ else question.shown
        if question.about == "label":
            return str(answer)
        if answer.lower() in ("y", "yes"):
            return '""' if question.about == "read" else question.shown
        if (read := _read(question.about, answer)) is not None:
            return read
        click.echo(f"  {answer!r} cannot be read: expected {expected}", err=True)


def _read(about: str, answer: str) -> str | None:
    """Return an answer in TOML; None if it cannot be read."""
    cells = [cell.strip() for cell in answer.strip("[]").split("," if "," in answer else None)]
    values = [_value(cell) for cell in cells if cell]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if about == "bounds":
        return json.dumps(numbers) if len(numbers) == len(values) == 2 and numbers[0] < numbers[1] else None
    if about in ("fill", "epsilon"):
        fits = len(numbers) == len(values) == 1 and (about == "fill" or numbers[0] > 0)
        return json.dumps(numbers[0]) if fits else None
    if about == "missing":
        return '"indicator"' if answer.strip("\"'") == "indicator" else None
    distinct = len(values) >= 2 and len(set(map(str, values))) == len(values)
    return json.dumps(values, ensure_ascii=False) if distinct and about != "read" else None


def _value(text: str) -> Any:
    """Return one cell of a list as TOML reads the cell; text needs no quotes."""
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool) else text
