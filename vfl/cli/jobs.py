"""What the commands on jobs share: finding a job by path or example name, and its table if it is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vfl.job import Job
    from vfl.job.file import Environment


def job_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add JOB and --set to a command."""
    with_set = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help="Change a value of the job, for instance --set privacy.epsilon=2; may be repeated.",
    )
    return click.argument("job", metavar="JOB")(with_set(command))


def read_job(name: str, assignments: Sequence[str]) -> tuple[Job, Environment]:
    """Read the job file, or the bundled example of that name when there is no such file."""
    from vfl import examples
    from vfl.errors import JobFileError, nearest
    from vfl.job import file as jobfile

    path = Path(name)
    if not path.exists() and path.suffix != ".toml":
        known = examples.names()
        if name not in known:
            raise JobFileError(
                f"there is no job file {name!r}, and no bundled example of that name{nearest(name, known)}; "
                f"examples: {', '.join(known)}"
            )
        path = examples.job_file(name)
    return jobfile.read(path, assignments)


def named_sources(sources: Sequence[str], parties: Sequence[str]) -> Any:
    """Return what --data names: {party: path}, or the path of one table of all columns."""
    from vfl.errors import SpecificationError

    named = dict(source.split("=", 1) for source in sources if source.split("=", 1)[0] in parties and "=" in source)
    if named and len(named) != len(sources):
        raise SpecificationError("give --data once with one table, or once for each party as PARTY=FILE")
    if not named and len(sources) > 1:
        raise SpecificationError(f"--data takes PARTY=FILE for several files; the parties are {', '.join(parties)}")
    return named or sources[0]
