"""Options of the commands that a federation's coordinator runs, with their metrics and logs."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from vfl.federation.file import Federation
    from vfl.job import Job

ROUNDS, LINKS = "vfl.run", "vfl.federation"
"""Loggers of a run and of its connections; each line is one JSON object without data (coordinator.telemetry)."""


def federation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --federation, --as and --identity to a command."""
    federation = click.option(
        "--federation",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Parties in other organisations, which run vfl join FILE.",
    )
    name = click.option("--as", "name", metavar="NAME", help="With --federation: the coordinator's name.")
    identity = click.option(
        "--identity",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Your key (default: NAME.key beside the federation file).",
    )
    return federation(name(identity(command)))


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --engine, --address, --shards and --cores to a command that applies a model; see `placed`."""
    engine = click.option(
        "--engine",
        type=click.Choice(["ray", "inprocess"]),
        help="Run each party in a Ray actor, or all in this process (default: inprocess; with --address: ray).",
    )
    address = click.option(
        "--address", metavar="ADDRESS", help="A Ray cluster, where each party's actor opens its own FILE."
    )
    shards = click.option(
        "--shards",
        type=click.IntRange(min=1),
        metavar="S",
        help="Read and apply every party's rows in S ranges, on Ray by S actors: less memory, the same results.",
    )
    cores = click.option(
        "--cores", type=click.IntRange(min=1), metavar="N", help="Cores per party for the alignment of records."
    )
    return engine(address(shards(cores(command))))


def placed(engine: str | None, address: str | None, shards: int | None, cores: int | None) -> dict[str, Any]:
    """Return the keyword arguments of vfl.predict and vfl.evaluate for `place_options`."""
    from vfl.job.placement import Placement

    chosen: dict[str, Any] = {"engine": engine or ("inprocess" if address is None else "ray")}
    given = {"address": address, "cores": cores, "placement": None if shards is None else Placement(shards=shards)}
    return chosen | {name: value for name, value in given.items() if value is not None}


def watching_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --metrics and --log to a command that takes --federation."""
    metrics = click.option(
        "--metrics", metavar="HOST:PORT", help="With --federation: serve Prometheus metrics at this address."
    )
    log = click.option(
        "--log",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="With --federation: append the log to this file, one JSON object per line.",
    )
    return metrics(log(command))


def federated(
    federation: Path | None,
    name: str | None,
    identity: Path | None,
    job: Job | None = None,
    *,
    only: Mapping[str, object] | None = None,
    **others: object,
) -> dict[str, Any]:
    """Return the keyword arguments of vfl.train and its like for --federation; {} without it.

    job : whose parties the federation must have. only, others : further options, by name, that are valid only with it, or
        only without it.

    Raises SpecificationError for a party that is not a member, for a member that is not the coordinator, and for a
    key that cannot be used.
    """
    from vfl.errors import SpecificationError, nearest
    from vfl.federation.file import identity_for, read_federation

    if federation is None:
        for option, given in {"as": name, "identity": identity, **(only or {})}.items():
            if given:
                raise click.UsageError(f"--{option} needs --federation FILE")
        return {}
    for option, value in others.items():
        if value:
            raise click.UsageError(f"--{option} cannot be combined with --federation: its parties run vfl join")
    read = read_federation(federation)
    own = read.coordinator.name
    if name is not None and name != own:
        known = name in read.joining
        role = "a party" if name in read.parties else "the dealer"
        raise SpecificationError(
            f"{name!r} is {role} of the federation {read.name!r}, and {own!r} is its coordinator: {role} takes part with "
            f"vfl join {federation} --as {name}"
            if known
            else f"{name!r} is not a member of the federation {read.name!r}{nearest(name, read.members)}: "
            f"{own!r} coordinates it"
        )
    if job is not None:
        check_parties(job, read)
    identity_for(read, federation, own, identity)
    return {"federation": federation, "identity": identity}


def check_parties(job: Job, federation: Federation) -> None:
    """Raise SpecificationError unless the federation has every party of the job, and the dealer that it asks for."""
    from vfl.errors import SpecificationError, nearest
    from vfl.launch.engines.place import dealer_of

    for party in job.partition.parties:
        if party not in federation.parties:
            raise SpecificationError(
                f"party {party!r} of job {job.name!r} is not in the federation {federation.name!r}"
                f"{nearest(party, federation.parties)}; its parties are {', '.join(federation.parties)}"
            )
    dealer_of(job, federation)


def members_of(job: Job, federation: Path | None) -> tuple[str, ...]:
    """Return the members for which a run of the job waits: its parties, and the dealer across organisations."""
    from vfl.federation.file import read_federation
    from vfl.launch.engines.place import dealer_of

    dealer = None if federation is None else dealer_of(job, read_federation(federation))
    return (*job.partition.parties, *(() if dealer is None else (dealer,)))


class Connections(logging.Handler):
    """Prints which parties connect and leave, and who is refused, to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log line about the connections."""
        from coordinator.federation.gathering import ENDED

        line = json.loads(record.getMessage())
        who = line.get("party") or f"a peer with the certificate {line.get('peer') or 'unknown'}"
        match line["event"]:
            case "connected":
                click.echo(f"{who} is connected", err=True)
            case "disconnected" if line["why"] != ENDED:  # its own end is no fault
                click.echo(f"{who} disconnected: {line['why']}", err=True)
            case "refused":
                click.echo(f"{who} is refused: {line['why']}", err=True)


class Timed(logging.Formatter):
    """Gives every line of JSON its time, in seconds since 1970."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps({"time": round(record.created, 3), **json.loads(record.getMessage())}, ensure_ascii=False)


@contextlib.contextmanager
def watched(
    metrics: str | None,
    log: Path | None,
    *,
    federation: Path | None,
    parties: Iterable[str] = (),
    job: str = "",
    quiet: bool = False,
) -> Iterator[None]:
    """Print connections while a command runs; serve metrics and append log lines if requested.

    parties : that the command waits for. quiet : print nothing.
    """
    with contextlib.ExitStack() as stack:
        if federation is not None and not quiet:
            stack.enter_context(_handling(Connections(), LINKS))
            click.echo(f"waiting for {', '.join(parties)}: each runs vfl join {federation.name}", err=True)
        if log is not None:
            stack.enter_context(_logged(log))
        if metrics is not None:
            from coordinator.telemetry import COUNTERS, GAUGES
            from vfl.launch.metrics import Metrics

            stack.enter_context(Metrics(metrics, COUNTERS, GAUGES, {"job": job}))
        yield


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    from vfl.errors import OutputError

    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the log {str(path)!r}: {error.strerror}") from error
    handler.setFormatter(Timed())
    with _handling(handler, LINKS), _handling(handler, ROUNDS):
        yield
    handler.close()


@contextlib.contextmanager
def _handling(handler: logging.Handler, name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def sources_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --data to a command that takes --federation."""
    return click.option(
        "--data",
        "sources",
        multiple=True,
        metavar="PARTY=NAME",
        help="With --federation: use the source to which its owner gave this name.",
    )(command)


def asked_sources(values: Sequence[str], parties: Sequence[str]) -> dict[str, str]:
    """Return {party: the owner's name of its source}, from the values PARTY=NAME of --data. Names, never paths."""
    from vfl.errors import SpecificationError, nearest

    asked: dict[str, str] = {}
    for value in values:
        party, equals, name = value.partition("=")
        if not equals:
            raise SpecificationError(
                f"with --federation, --data takes PARTY=NAME, not {value!r}: NAME was given to the source by its owner"
            )
        if party not in parties:
            raise SpecificationError(
                f"--data {value}: there is no party {party!r}{nearest(party, parties)}; the parties are {', '.join(parties)}"
            )
        if party in asked:
            raise SpecificationError(f"--data names party {party!r} twice")
        asked[party] = name
    return asked
