"""Options that choose where a command runs (the site), in addition to the tables of the job file."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.cli.options import path_option
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vfl.job import Job
    from vfl.job.site import Ray, Site

FEDERATION = (
    path_option("--federation", "Parties elsewhere, which run vfl join FILE."),
    click.option("--as", "name", metavar="NAME", help="With --federation: the coordinator's name."),
    path_option("--identity", "Your key (default: NAME.key beside the federation file)."),
)


@dataclass(frozen=True, slots=True)
class Where:
    """Values of the options that choose the site of a command. otherwise : engine if --engine and --address are not given."""

    engine: str | None = None
    address: str | None = None
    shards: int | None = None
    cores: int | None = None
    federation: Path | None = None
    name: str | None = None
    identity: Path | None = None
    otherwise: str = "ray"

    def site(
        self,
        job: Job | None,
        declared: Ray | None = None,
        *,
        only: Mapping[str, object] | None = None,
        **others: object,
    ) -> Site:
        """Return the site of a command.

        job : job whose parties must be in the federation. declared : site that the job file names. only : {name: value} of
        options that need --federation. others : options that cannot be combined with --federation.

        Raises SpecificationError for a party that is no member of the federation, for a member that is not the coordinator,
        and for a key that cannot be used.
        """
        from vfl.job.site import InProcess, Ray
        from vfl.launch.engines.connection import check_address

        declared = declared or Ray()
        own = {"engine": self.engine, "address": self.address, "shards": self.shards, "cores": self.cores}
        if self.federation is not None:
            for option, value in {**own, **others}.items():
                if value:
                    raise click.UsageError(f"--{option} cannot be combined with --federation: its parties run vfl join")
            return self._across(self.federation, job, declared)
        for option, given in {"as": self.name, "identity": self.identity, **(only or {})}.items():
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

    def resumed(self, own: Site, job: Job, run: Path, *, only: Mapping[str, object] | None = None) -> Site:
        """Return the site at which a run continues: the run's own site, with federation file and key from options, if given."""
        from vfl.job.site import Federated, Ray

        if not isinstance(own, Federated):
            if self.federation is not None:
                raise click.UsageError(
                    f"the run in {str(run)!r} did not begin across organisations: leave out --federation"
                )
            self.site(job, only=only)  # refuses options that need a federation
            return own
        identity = self.identity or (Path(own.identity) if own.identity else None)
        there = replace(self, federation=self.federation or Path(own.file), identity=identity)
        return there.site(job, Ray(faults=own.faults))

    def _across(self, file: Path, job: Job | None, declared: Ray) -> Site:
        from vfl.federation.file import identity_for, read_federation
        from vfl.job.site import Federated

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


def federation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --federation, --as and --identity to a command. The command receives them as `where`."""
    return _taken(command, FEDERATION, "ray")


def site_options(otherwise: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --engine, --address, --shards, --cores and `federation_options` to a command, which receives them as `where`.

    otherwise : engine if --engine and --address are not given.
    """
    either = f"default: {otherwise}" + ("" if otherwise == "ray" else "; with --address: ray")
    options = (
        click.option("--engine", type=click.Choice(["ray", "inprocess"]), help=f"Actors, or this process ({either})."),
        click.option("--address", metavar="ADDRESS", help="A Ray cluster: host:port, or auto."),
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
    from vfl.federation.file import read_federation
    from vfl.launch.engines.place import dealer_of

    dealer = None if federation is None else dealer_of(job, read_federation(federation))
    return (*job.partition.parties, *(() if dealer is None else (dealer,)))
