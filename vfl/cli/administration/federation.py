"""`vfl federation`: write, show and check the public file that names all participants."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.cli.options import IDENTITY, JSON, PATH, pairs, path_option, print_json, several
from vfl.errors import FederationError, SpecificationError

if TYPE_CHECKING:
    from vfl.federation.file import Federation

FILE = click.argument("path", metavar="FILE", type=PATH)


@click.group("federation", no_args_is_help=True)
def command() -> None:
    """Write, show or check the file that names all participants.

    The file is public. All participants need the same one: compare its digest.
    """


@command.command("new", short_help="Write NAME.toml from the participants' certificates.")
@click.argument("name", metavar="NAME")
@click.option(
    "--coordinator",
    required=True,
    metavar="NAME=FILE@HOST:PORT",
    help="The coordinator's certificate, and the address at which the parties reach it.",
)
@several("--party", "parties", "NAME=FILE", "A party's certificate; repeat for each party.", required=True)
@click.option(
    "--dealer",
    metavar="NAME=FILE",
    help="Certificate of an organisation without data that deals in training on shares.",
)
@path_option("--output", "A new file (default: NAME.toml in this folder).")
@JSON
def new(
    name: str, coordinator: str, parties: tuple[str, ...], dealer: str | None, output: Path | None, *, as_json: bool
) -> None:
    """Write the federation file NAME.toml from the participants' certificates.

    Parties are named as in the jobs. Only the coordinator needs an open port.
    """
    from vfl.federation.file import write_federation
    from vfl.federation.identity import read_public

    ((head, where),) = pairs("--coordinator", "NAME=FILE@HOST:PORT", [coordinator]).items()
    file, _, address = where.rpartition("@")
    if not file:
        raise SpecificationError(f"--coordinator takes NAME=FILE@HOST:PORT, not {coordinator!r}")
    certificates = {party: read_public(own).pem for party, own in pairs("--party", "NAME=FILE", parties).items()}
    dealing = pairs("--dealer", "NAME=FILE", () if dealer is None else (dealer,))
    path = output or Path(f"{name}.toml")
    written = write_federation(
        path,
        name=name,
        coordinator=(head, read_public(file).pem),
        address=address,
        parties=certificates,
        dealer=next(((third, read_public(own).pem) for third, own in dealing.items()), None),
    )
    _say(written, path, as_json=as_json)


@command.command("show", short_help="Show the participants, their fingerprints, and the digest.")
@FILE
@JSON
def show(path: Path, *, as_json: bool) -> None:
    """Show the participants in FILE, their fingerprints, the coordinator's address, and the file's digest."""
    from vfl.federation.file import read_federation

    _say(read_federation(path), path, as_json=as_json)


@command.command("check", short_help="Measure the link to each member; touches no data.")
@FILE
@click.option("--as", "name", metavar="NAME", help="Your name (default: the coordinator's).")
@IDENTITY
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to wait for the others."
)
@JSON
def check(path: Path, name: str | None, identity: Path | None, seconds: float, *, as_json: bool) -> int:
    """Check the federation of FILE: connected participants, versions, clocks, round trip and throughput of each link.

    The coordinator waits for the parties and the dealer, which run vfl join. A party checks that it reaches the coordinator and
    shows the key that FILE pins. No data are touched. The exit code is 5 if a participant is missing.
    """
    from vfl.federation.file import read_federation
    from vfl.launch.check import SKEW_SECONDS, check_coordinator, check_links

    federation = read_federation(path)
    if name is not None and name != federation.coordinator.name:
        seconds_taken = check_coordinator(path, name, identity=identity, seconds=seconds)
        if as_json:
            print_json({"coordinator": federation.coordinator.name, "seconds": seconds_taken})
        else:
            click.echo(
                f"{federation.coordinator.name} answers at {federation.address} with the key that {path} pins, and accepts the "
                f"key of {name}: {1e3 * seconds_taken:.1f} ms"
            )
        return 0
    width = max(5, *map(len, federation.joining))
    if not as_json:
        click.echo(f"{'party':<{width}}  there  version  clock     round trip  throughput")
    missing = 0
    for link in check_links(path, identity=identity, seconds=seconds):
        missing += bool(link.why)
        if as_json:
            print_json(dataclasses.asdict(link))
        elif link.why:
            click.echo(f"{link.party:<{width}}  no     {link.why}")
        else:
            click.echo(
                f"{link.party:<{width}}  yes    {link.version:<7}  {f'{round(link.skew, 2) + 0.0:.2f} s':<8}  "
                f"{f'{1e3 * link.round_trip:.1f} ms':<10}  {link.throughput / 1e6:.0f} MB/s"
            )
            if abs(link.skew) > SKEW_SECONDS:
                click.echo(f"{'':<{width}}  its clock is off: dates in certificates and ledgers would be wrong")
    return FederationError.exit_code if missing else 0


def _say(federation: Federation, path: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(_plain(federation, path))
        return
    click.echo(f"federation {federation.name}, coordinator at {federation.address}; file {path}")
    width = max(map(len, federation.members))
    for name, member in federation.members.items():
        dealer = federation.dealer is not None and name == federation.dealer.name
        role = "coordinator" if name == federation.coordinator.name else "dealer" if dealer else "party"
        click.echo(f"  {role:<11}  {name:<{width}}  {member.fingerprint}  until {member.expires:%Y-%m-%d}")
    click.echo(f"digest {federation.digest}")


def _plain(federation: Federation, path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "name": federation.name,
        "coordinator": federation.coordinator.name,
        "dealer": None if federation.dealer is None else federation.dealer.name,
        "address": federation.address,
        "members": {
            name: {"fingerprint": member.fingerprint, "expires": member.expires.isoformat()}
            for name, member in federation.members.items()
        },
        "digest": federation.digest,
    }
