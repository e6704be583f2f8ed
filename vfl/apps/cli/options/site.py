"""Options that choose the site of a command, together with the job file; and its connections, metrics and logs.

The coordinator of a federation serves Prometheus metrics at $VFL_METRICS, HOST:PORT, and appends its log to the file $VFL_LOG,
one JSON object per line.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli.options import KEY_VARIABLE, METRICS_VARIABLE
from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vfl.job import Job
    from vfl.job.site import Federated, Ray, Site

AT = click.option(
    "--at", metavar="SITE", help="inprocess, ray, a Ray cluster's HOST:PORT (or auto), or a federation's FILE.toml."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Values of the options that commands on data share: the site, the data, and what watches the run.

    at : value of --at; None stands for the job's Ray cluster, if the job names one, else for the site `otherwise`. sources,
    formats, policies : values of --data, --csv, --policy.
    """

    at: str | None = None
    sources: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    otherwise: str = "ray"

    @property
    def federation(self) -> Path | None:
        """Path of the federation file, if --at names one."""
        return Path(self.at) if self.at is not None and self.at.endswith(".toml") else None

    def site(self, job: Job | None, declared: Ray | None = None, *, named: bool = False, parts: bool = False) -> Site:
        """Return the site of a command.

        job : job whose parties must be in the federation. declared : site that the job file names. named : True if --data has
            owners' names of sources, which need a federation. parts : True if parties' parts take the place of a run.

        Raises SpecificationError for a party that is no member of the federation, and for a key that cannot be used.
        """
        from vfl.job.site import Federated, Ray, resolve

        declared = declared or Ray()
        site = resolve(self.at or ("ray" if declared.address else self.otherwise), declared, declared)
        if isinstance(site, Federated):
            for option, value in (("--policy", self.policies), ("a party's part", parts)):
                if value:
                    raise click.UsageError(f"{option} does not go with a federation, whose parties run vfl join")
        return self._checked(site, job, names=named)

    def resumed(self, own: Site, job: Job, run: Path) -> Site:
        """Return the site at which a run continues: its own site, or another one of the same type from --at."""
        from vfl.job.site import Federated, InProcess, Ray, resolve

        declared = own if isinstance(own, Ray) else Ray()
        site = own if self.at is None else resolve(self.at, own, declared)
        if type(site) is not type(own):
            began = {"Ray": "on Ray", "Federated": "across organisations"}.get(type(own).__name__, "in one process")
            raise click.UsageError(f"the run in {str(run)!r} began {began}: give --at the same site, or leave --at out")
        if isinstance(site, Federated) and isinstance(own, Federated):
            site = replace(own, file=site.file)
        return self._checked(own if isinstance(site, InProcess) else site, job)

    def _checked(self, site: Site, job: Job | None, *, names: bool = False) -> Site:
        """Return the site after checks. names : True if --data has owners' names, which need a federation."""
        from vfl.job.site import Federated, Ray
        from vfl.launch.sites.connection import check_address

        if isinstance(site, Federated):
            return _across(site, job)
        if names and self.sources:
            raise click.UsageError(
                "--data needs a federation: --at FILE.toml. Elsewhere the job names the files: --set data.PARTY=FILE"
            )
        if isinstance(site, Ray):
            check_address(site.address)
        return site


def _across(site: Federated, job: Job | None) -> Federated:
    """Check the key of a federation's coordinator, and the parties of a job. Return the site."""
    from vfl.launch.sites.open_site import check_job
    from vfl.network.federation.file import identity_for, read_federation

    read = read_federation(site.file)
    if job is not None:
        check_job(job, read)
    site = replace(site, identity=os.environ.get(KEY_VARIABLE) or site.identity)
    identity_for(read, site.file, read.coordinator.name, site.identity)
    return site


def site_options(otherwise: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --at to a command, which receives it, and its options on data, as `where`.

    otherwise : site if --at is not given and the job names no address.
    """
    names = [f.name for f in fields(Where) if f.name != "otherwise"]

    def taken(command: Callable[..., Any]) -> Callable[..., Any]:
        @AT
        @functools.wraps(command)
        def with_where(**given: Any) -> Any:
            where = Where(**{name: given.pop(name) for name in names if name in given}, otherwise=otherwise)
            return command(where=where, **given)

        return with_where

    return taken


def members_of(job: Job, federation: Path | None) -> tuple[str, ...]:
    """Return the participants for which a run of the job waits: the parties and, across organisations, the dealer."""
    from vfl.launch.sites.open_site import dealer_of
    from vfl.network.federation.file import read_federation

    dealer = None if federation is None else dealer_of(job, read_federation(federation))
    return (*job.partition.parties, *(() if dealer is None else (dealer,)))


LOG_VARIABLE = "VFL_LOG"
ROUNDS, LINKS = "vfl.run", "vfl.federation"
"""Loggers of runs and of connections. Each line is one JSON object, without data of records (coordinator.telemetry)."""


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


class TimedFormatter(logging.Formatter):
    """Log formatter that adds the time, in seconds since 1970, to every JSON line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line."""
        return json.dumps({"time": round(record.created, 3), **json.loads(record.getMessage())}, ensure_ascii=False)


@contextlib.contextmanager
def watched(where: Where, parties: Iterable[str], *, job: str = "", quiet: bool = False) -> Iterator[None]:
    """For a federation, print connections while a command runs; serve metrics and append log lines as the environment asks.

    parties : parties for which the command waits. quiet : True prints nothing.
    """
    if where.federation is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        if not quiet:
            stack.enter_context(_handling(Connections(), LINKS))
            click.echo(f"waiting for {', '.join(parties)}: each runs vfl join {where.federation.name}", err=True)
        if log := os.environ.get(LOG_VARIABLE):
            stack.enter_context(_logged(Path(log)))
        if address := os.environ.get(METRICS_VARIABLE):
            from coordinator.telemetry import COUNTERS, GAUGES
            from vfl.launch.metrics import Metrics

            stack.enter_context(Metrics(address, COUNTERS, GAUGES, {"job": job}))
        yield


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the log {str(path)!r}: {error.strerror}") from error
    handler.setFormatter(TimedFormatter())
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
