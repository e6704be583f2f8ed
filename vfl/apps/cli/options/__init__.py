"""Arguments and options that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from vfl.errors import OutputError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Adding: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)
RUN = click.argument("run", metavar="RUN", type=PATH)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
JSON_ALONE = click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON, and no progress.")
JSON_LINES = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event, one per line.")
OUTPUT = click.option("--output", type=PATH, metavar="FOLDER", help="A new folder (default: runs/NAME-TIME).")
SIGNER = click.option(
    "--signer", "key", metavar="PUBLIC", help="Public key of the expected signer: 64 hexadecimal digits, or a PEM file."
)


def path_option(name: str, about: str, *, metavar: str = "FILE", **others: Any) -> Adding:
    """Return an option that takes a path. others : further arguments of click.option."""
    return click.option(name, type=PATH, metavar=metavar, help=about, **others)


def new_file(about: str) -> Adding:
    """Return the option --output, which takes a file that does not exist yet."""
    return path_option("--output", about, callback=_new)


def _new(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    del context, parameter  # click's signature
    if path is not None and path.exists():
        raise OutputError(f"the output file {str(path)!r} exists: name a new one")
    return path


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def tell(plain: object, *lines: object, as_json: bool) -> None:
    """Print a value as one line of JSON, or else these lines."""
    if as_json:
        print_json(plain)
        return
    for line in lines:
        click.echo(line)


def several(option: str, name: str, metavar: str, about: str, **others: Any) -> Adding:
    """Return an option that may be given several times. name : parameter that takes the option's values."""
    return click.option(option, name, multiple=True, metavar=metavar, help=about, **others)


def pairs(option: str, form: str, values: Iterable[str], parties: Sequence[str] | None = None) -> dict[str, str]:
    """Return {name: value} from an option that takes NAME=VALUE once for each name. Raises SpecificationError.

    form : NAME=VALUE in the words of this option, for errors. parties : the allowed names; None allows all names.
    """
    found: dict[str, str] = {}
    for text in values:
        name, _, value = text.partition("=")
        if not (name and value):
            raise SpecificationError(f"{option} takes {form}, not {text!r}")
        if parties is not None and name not in parties:
            raise SpecificationError(
                f"{option} {text}: there is no party {name!r}{nearest(name, parties)}; the parties are {', '.join(parties)}"
            )
        if name in found:
            raise SpecificationError(f"{option} names {name!r} twice: give it once for each name")
        found[name] = value
    return found


def records_option(about: str, least: int = 1, **others: Any) -> Adding:
    """Return the option --records, which takes a number of records."""
    return click.option("-n", "--records", type=click.IntRange(min=least), metavar="N", help=about, **others)


CHARGED = path_option("--ledger", "Ledger to which the run was charged.")
METRICS_VARIABLE = "VFL_METRICS"
KEY_VARIABLE = "VFL_IDENTITY"
"""Environment variable with the path of your key, if the key does not lie beside the federation file."""
