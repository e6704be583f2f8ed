"""Arguments and options of commands on jobs, and the reading of job and data files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import pairs, several
from vfl.errors import JobFileError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from vfl.apps.cli.options.site import Where
    from vfl.job import Job
    from vfl.job.environment import Environment
    from vfl.job.site import Site


def job_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add JOB and --set to a command."""
    with_set = several(
        "--set",
        "assignments",
        "KEY=VALUE",
        "Change a value of the job, as in --set privacy.epsilon=2; --set dataset= takes it out. May be repeated.",
    )
    return click.argument("job", metavar="JOB", shell_complete=_completed)(with_set(command))


def _completed(context: click.Context, argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the bundled examples whose names begin with `incomplete`; the shell itself completes names of files."""
    del context, argument  # click's signature
    from click.shell_completion import CompletionItem

    from vfl import examples

    return [
        *(CompletionItem(name) for name in examples.names() if name.startswith(incomplete)),
        CompletionItem(incomplete, type="file"),
    ]


def read_job(name: str, assignments: Sequence[str]) -> tuple[Job, Environment]:
    """Read a job file; if there is no such file, the bundled example of that name."""
    from vfl import examples
    from vfl.job import file as jobfile
    from vfl.job.drafted import MARK

    path, folder = Path(name), None
    if not path.exists() and path.suffix != ".toml":
        known = examples.names()
        if name not in known:
            file = path.with_name(f"{path.name}.toml")
            close = f" (did you mean {str(file)!r}?)" if file.exists() else nearest(name, known)
            raise JobFileError(
                f"there is no job file {name!r}, and no bundled example of that name{close}; "
                f"examples: {', '.join(known)}"
            )
        path, folder = examples.job_file(name), Path.cwd()
    try:
        return jobfile.read(path, assignments, folder=folder)
    except SpecificationError as error:
        if path.is_file() and (left := _left(path)):
            error.add_note(
                f"vfl init left these declarations to you, as comments in {name} that end in {MARK!r}: {left}"
            )
        raise


def _left(path: Path) -> str:
    """Describe, in words, the declarations that a drafted job file still lacks."""
    from vfl.base.documents import read_bytes
    from vfl.job.drafted import left_in

    try:
        left = left_in(read_bytes(path).decode())
    except (OSError, ValueError):
        return ""
    return "; ".join(f"{', '.join(keys)} {f'under {table}' if table else 'at the top'}" for table, keys in left.items())


def require_files(environment: Environment) -> None:
    """Raise DataError if a data file is missing, for a job that runs on this machine."""
    from parties.sources.base import Origin
    from vfl.job.environment import path_of
    from vfl.job.file import ADDRESS, EXAMPLE

    named: list[tuple[str | None, str, str, str]] = [
        (party, path_of(source), "data", party) for party, source in environment.data.items()
    ]
    if environment.table is not None and not path_of(environment.table).startswith(EXAMPLE):
        named.append((None, path_of(environment.table), "simulation", "table"))
    for party, source, table, key in named:
        path, origin = Path(source), Origin(party, f"file {source!r}")
        if ADDRESS in source or origin.attempt(path.exists, "permission denied for its folder"):
            continue
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise origin.error(
            f"no such file or folder{nearest(path.name, beside)}; correct {key} = ... under [{table}], or --set "
            f"{table}.{key}=FILE; a relative path starts at the job file's folder"
        )


SOURCES = several(
    "--data", "sources", "PARTY=NAME", "With a federation: use the source to which its owner gave this name."
)

POLICIES = several(
    "--policy",
    "policies",
    "PARTY=FILE",
    "The policy of a party's owner, checked before its data are opened; once for each party.",
    type=click.Path(),
)

CSV = several(
    "--csv",
    "formats",
    "[PARTY.]OPTION=VALUE",
    "Format of text files: delimiter, decimal, thousands, encoding, quote, missing, dates; for all, or for a party's.",
)


def formats_of(formats: Sequence[str], parties: Sequence[str]) -> dict[str | None, dict[str, Any]]:
    """Return {party: options} from --csv; party None stands for all files. `missing` may be given several times."""
    from vfl.base.csv import OPTIONS

    found: dict[str | None, dict[str, Any]] = {}
    for text in formats:
        name, equals, value = text.partition("=")
        owner, dot, option = name.rpartition(".")
        if not equals or option not in OPTIONS or (dot and owner not in parties):
            close = nearest(owner, parties) if dot and option in OPTIONS else nearest(option, OPTIONS)
            raise SpecificationError(
                f"--csv takes [PARTY.]OPTION=VALUE, not {text!r}{close}; options are {', '.join(OPTIONS)}"
            )
        options = found.setdefault(owner if dot else None, {})
        if option == "missing":
            options[option] = (*options.get(option, ()), value)
        elif option in options:
            raise SpecificationError(f"--csv gives {name} twice")
        else:
            options[option] = "\t" if value == "\\t" else value
    return found


def named_sources(
    sources: Sequence[str],
    parties: Sequence[str],
    formats: Sequence[str] = (),
    declared: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """Return the sources in --data: {party: file}, or one table of all columns.

    formats : values of --csv. declared : {party: format of the party's text file in the job}; --csv overrides these formats.
    """
    from vfl.base.csv import is_text

    given, options = _named(sources, parties), formats_of(formats, parties)
    if isinstance(given, str):
        return in_format(given, None, options)
    for party, own in (declared or {}).items():
        if party in given and is_text(given[party]):
            options[party] = {**own, **options.get(None, {}), **options.get(party, {})}
    return {party: in_format(path, party, options) for party, path in given.items()}


def in_format(path: str, name: str | None, options: Mapping[str | None, Mapping[str, Any]]) -> Any:
    """Return a file with its format. options : result of `formats_of`. Options for all files apply only to text files."""
    from vfl.base.csv import formatted, is_text

    shared = options.get(None, {}) if is_text(path) else {}
    return formatted(path, {**shared, **(options.get(name, {}) if name is not None else {})})


def _named(sources: Sequence[str], parties: Sequence[str]) -> dict[str, str] | str:
    """Return {party: path}, or the path of a single table of all columns."""
    paired = ["=" in text and (text.partition("=")[0] in parties or not Path(text).exists()) for text in sources]
    if all(paired):
        return pairs("--data", "PARTY=FILE", sources, parties)
    if len(sources) > 1:
        raise SpecificationError(
            f"give --data once with one table, or once for each party as PARTY=FILE; the parties are {', '.join(parties)}"
        )
    return sources[0]


def records_of(
    where: Where, parties: Sequence[str], *, run: Path | None = None, sources: Sequence[str] | None = None
) -> Any:
    """Return the sources in --data with their owners' policies; with a federation, {party: owner's name of the source}.

    run : folder of a run, whose formats of text files are the defaults. sources : values of another option instead of --data.
    """
    from vfl.job.environment import Source
    from vfl.launch.run.checkpoint import formats_of_run

    sources = where.sources if sources is None else sources
    if where.federation is not None:
        return _asked(sources, parties)
    declared = {} if run is None else formats_of_run(run)
    data = named_sources(sources, parties, where.formats, declared)
    return Source(data, pairs("--policy", "PARTY=FILE", where.policies))


def placed(where: Where, job: Job, environment: Environment) -> tuple[Site, Environment | dict[str, str]]:
    """Return the site of a command, and the environment of its job; with a federation the owners' names in --data."""
    site = where.site(job, environment.site, named=True)
    if where.federation is not None:
        return site, _asked(where.sources, job.partition.parties)
    if getattr(site, "address", None) is None:
        require_files(environment)
    return site, environment


def _asked(sources: Sequence[str], parties: Sequence[str]) -> dict[str, str]:
    """Return {party: owner's name of the source}. The values of --data are then names, never paths."""
    return pairs("with a federation, --data", "PARTY=NAME", sources, parties)
