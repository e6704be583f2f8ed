"""Options that choose the site of a command, together with the job file; and its connections, metrics and logs."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import path_option
from vfl.errors import OutputError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vfl.job import Job
    from vfl.job.site import Ray, Site

FEDERATION = (
    path_option("--federation", "Parties elsewhere, which run vfl join FILE."),
    click.option("--as", "name", metavar="NAME", help="With --federation: the coordinator's name."),
    path_option("--identity", "Your key (default: NAME.key beside the federation file)."),
)


@dataclass(frozen=True, slots=True)
class Where:
    """Values of the options that commands on data share: the site, the data, and what watches the run.

    otherwise : engine if --engine and --address are not given. sources, formats, policies : values of --data, --csv, --policy.
    metrics, log : address of the metrics and file of the log, for the coordinator of a federation.
    """

    engine: str | None = None
    address: str | None = None
    shards: int | None = None
    cores: int | None = None
    federation: Path | None = None
    name: str | None = None
    identity: Path | None = None
    sources: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    metrics: str | None = None
    log: Path | None = None
    otherwise: str = "ray"

    def site(self, job: Job | None, declared: Ray | None = None, *, named: bool = False, **others: object) -> Site:
        """Return the site of a command.

        job : job whose parties must be in the federation. declared : site that the job file names. named : True if --data has
            owners' names of sources, which need --federation. others : options that cannot be combined with --federation.

        Raises SpecificationError for a party that is no member of the federation, for a member that is not the coordinator,
        and for a key that cannot be used.
        """
        from vfl.job.site import InProcess, Ray
        from vfl.launch.engines.connection import check_address

        declared = declared or Ray()
        own = {"engine": self.engine, "address": self.address, "shards": self.shards, "cores": self.cores}
        if self.federation is not None:
            for option, value in {**own, "policy": self.policies, **others}.items():
                if value:
                    raise click.UsageError(f"--{option} cannot be combined with --federation: its parties run vfl join")
            return self._across(self.federation, job, declared)
        only = {"as": self.name, "identity": self.identity, "metrics": self.metrics, "log": self.log}
        for option, given in {**only, "data": self.sources if named else ()}.items():
            if given:
                raise click.UsageError(f"--{option} needs --federation FILE")
        ray = replace(
            declared,
            address=self.address or declared.address,
            shards=self.shards or declared.shards,
            cores=self.cores or declared.cores,
        )
        if (self.engine or ("ray" if ray.address else self.otherwise)) == "ray":
            check_address(ray.address)
            return ray
        if ray.address is not None:
            raise SpecificationError("an address names a Ray cluster: leave --address out, or use --engine ray")
        return InProcess(cores=ray.cores, shards=ray.shards)

    def resumed(self, own: Site, job: Job, run: Path) -> Site:
        """Return the site at which a run continues: the run's own site, with address, federation file and key from options."""
        from vfl.job.site import Federated, Ray

        if not isinstance(own, Federated):
            if self.federation is not None:
                raise click.UsageError(
                    f"the run in {str(run)!r} did not begin across organisations: leave out --federation"
                )
            if self.address and not isinstance(own, Ray):
                raise click.UsageError(f"the run in {str(run)!r} did not begin on Ray: leave out --address")
            there = self.site(job, own if isinstance(own, Ray) else None)  # refuses options that need a federation
            return there if isinstance(own, Ray) else own
        identity = self.identity or (Path(own.identity) if own.identity else None)
        across = replace(self, federation=self.federation or Path(own.file), identity=identity)
        return across.site(job, Ray(faults=own.faults))

    def _across(self, file: Path, job: Job | None, declared: Ray) -> Site:
        from vfl.job.site import Federated
        from vfl.network.federation.file import identity_for, read_federation

        read, name = read_federation(file), self.name
        own = read.coordinator.name
        if name is not None and name != own:
            known = name in read.joining
            role = "a party" if name in read.parties else "the dealer"
            raise SpecificationError(
                f"{name!r} is {role} of the federation {read.name!r}, and {own!r} is its coordinator: {role} takes part with "
                f"vfl join {file} --as {name}"
                if known
                else f"{name!r} is not a member of the federation {read.name!r}{nearest(name, read.members)}: "
                f"{own!r} coordinates it"
            )
        if job is not None:
            from vfl.launch.engines.place import check_job

            check_job(job, read)
        identity_for(read, file, own, self.identity)
        return Federated(file, self.identity, faults=declared.faults)


ADDRESS = click.option("--address", metavar="ADDRESS", help="A Ray cluster: host:port, or auto.")


def resuming_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --address, --federation, --as and --identity to a command. The command receives them as `where`."""
    return _taken(command, (ADDRESS, *FEDERATION), "ray")


def site_options(otherwise: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --engine, --address, --shards, --cores and those of federations to a command, which receives them as `where`.

    otherwise : engine if --engine and --address are not given.
    """
    either = f"default: {otherwise}" + ("" if otherwise == "ray" else "; with --address: ray")
    options = (
        click.option("--engine", type=click.Choice(["ray", "inprocess"]), help=f"Actors, or this process ({either})."),
        ADDRESS,
        click.option(
            "--shards", type=click.IntRange(min=1), metavar="S", help="Number of shards of each party's rows."
        ),
        click.option("--cores", type=click.IntRange(min=1), metavar="N", help="Cores for each party."),
        *FEDERATION,
    )
    return lambda command: _taken(command, options, otherwise)


def _taken(command: Callable[..., Any], options: tuple[Any, ...], otherwise: str) -> Callable[..., Any]:
    names = [f.name for f in fields(Where) if f.name != "otherwise"]

    @functools.wraps(command)
    def with_where(**given: Any) -> Any:
        where = Where(**{name: given.pop(name) for name in names if name in given}, otherwise=otherwise)
        return command(where=where, **given)

    for option in reversed(options):
        option(with_where)
    return with_where


def members_of(job: Job, federation: Path | None) -> tuple[str, ...]:
    """Return the participants for which a run of the job waits: the parties and, across organisations, the dealer."""
    from vfl.launch.engines.place import dealer_of
    from vfl.network.federation.file import read_federation

    dealer = None if federation is None else dealer_of(job, read_federation(federation))
    return (*job.partition.parties, *(() if dealer is None else (dealer,)))


ROUNDS, LINKS = "vfl.run", "vfl.federation"
"""Loggers of runs and of connections. Each line is one JSON object, without data of records (coordinator.telemetry)."""


def watching_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --metrics and --log to a command that takes --federation."""
    metrics = click.option(
        "--metrics", metavar="HOST:PORT", help="With --federation: serve Prometheus metrics at this address."
    )
    log = path_option("--log", "With --federation: append the log to this file, one JSON object per line.")
    return metrics(log(command))


class Connections(logging.Handler):
    """Log handler that prints to standard error when parties connect, disconnect or are refused."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log line about the connections."""
        from coordinator.federation.gathering import ENDED

        line = json.loads(record.getMessage())
        who = line.get("party") or f"a peer with the certificate {line.get('peer') or 'unknown'}"
        match line["event"]:
            case "connected":
                click.echo(f"{who} is connected", err=True)
            case "disconnected" if line["why"] != ENDED:  # a regular end is not a fault
                click.echo(f"{who} disconnected: {line['why']}", err=True)
            case "refused":
                click.echo(f"{who} is refused: {line['why']}", err=True)


class Timed(logging.Formatter):
    """Log formatter that adds the time, in seconds since 1970, to every JSON line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps({"time": round(record.created, 3), **json.loads(record.getMessage())}, ensure_ascii=False)


@contextlib.contextmanager
def watched(where: Where, parties: Iterable[str], *, job: str = "", quiet: bool = False) -> Iterator[None]:
    """Print connections while a command runs. If requested, serve metrics and append log lines to a file.

    parties : parties for which the command waits. quiet : True prints nothing.
    """
    with contextlib.ExitStack() as stack:
        if where.federation is not None and not quiet:
            stack.enter_context(_handling(Connections(), LINKS))
            click.echo(f"waiting for {', '.join(parties)}: each runs vfl join {where.federation.name}", err=True)
        if where.log is not None:
            stack.enter_context(_logged(where.log))
        if where.metrics is not None:
            from coordinator.telemetry import COUNTERS, GAUGES
            from vfl.launch.metrics import Metrics

            stack.enter_context(Metrics(where.metrics, COUNTERS, GAUGES, {"job": job}))
        yield


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
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
