"""`vfl init FILES`: draft a job file with a schema; values taken from the data are comments."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("init")
@click.argument("files", metavar="[PARTY=]FILE...", nargs=-1, required=True)
@click.option("--label", metavar="[PARTY.]COLUMN", help="The label (default: a column with a usual name).")
@click.option(
    "--id",
    "ids",
    multiple=True,
    metavar="[PARTY.]COLUMN",
    help="The id column: a name that all files share, or PARTY.COLUMN once per party (default: usual names).",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="A new job file (default: print).")
def command(files: tuple[str, ...], label: str | None, ids: tuple[str, ...], output: Path | None) -> None:
    """Draft a job for the parties' FILES. A party without a name is named after its file.

    Bounds, categories and other values read from the records appear as comments. They are NOT PRIVATE unless publicly
    known, and vfl refuses the job until you declare public values instead. Id and label are found by column name.
    """
    from vfl.errors import OutputError, SpecificationError
    from vfl.job.drafted import MARK
    from vfl.launch.draft import draft
    from vfl.launch.run.folder import write_whole

    sources: dict[str, str] = {}
    for file in files:
        party, equals, path = file.partition("=")
        party, path = (party, path) if equals else (Path(file).name.split(".")[0], file)
        if party in sources:
            raise SpecificationError(f"two files are given for party {party!r}: name each, PARTY=FILE")
        sources[party] = path
    if output is not None and output.exists():
        raise OutputError(f"the output file {str(output)!r} exists: name a new one")
    text = draft(sources, label=label, ids=ids or None, folder=None if output is None else output.parent)
    if output is None:
        click.echo(text, nl=False)
        click.echo(
            "next: save this as a job file, declare the marked values, then: vfl plan FILE --records N", err=True
        )
        return
    write_whole(output, text)
    click.echo(f"{output}: {text.count(MARK) - 1} declarations are left to you, marked {MARK!r}")
    click.echo(f"next: declare them in {output}, then: vfl plan {output} --records N")
