"""`vfl identity` and `vfl federation`: make one participant's key; write and check the file that names all participants."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfl.apps.cli import Group
from vfl.apps.cli.options import JSON, KEY_VARIABLE, PATH, pairs, print_json, several, tell
from vfl.errors import FederationError, SpecificationError
from vfl.network.federation.identity import DAYS

if TYPE_CHECKING:
    from vfl.network.federation.file import Federation

FILE = click.argument("path", metavar="FILE", type=PATH)


@click.group("federation", cls=Group, no_args_is_help=True)
def federation() -> None:
    """Write, show or check the file that names all participants.

    The file is public. All participants need the same one: compare its digest.
    """


@federation.command("new", short_help="Write NAME.toml from the participants' certificates.")
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
@JSON
def new_federation(name: str, coordinator: str, parties: tuple[str, ...], dealer: str | None, *, as_json: bool) -> None:
    """Write the federation file NAME.toml from the participants' certificates. NAME may be a path, as in shared/credit.

    Parties are named as in the jobs. Only the coordinator needs an open port.
    """
    from vfl.network.federation.file import write_federation
    from vfl.network.federation.identity import read_public

    ((head, where),) = pairs("--coordinator", "NAME=FILE@HOST:PORT", [coordinator]).items()
    file, _, address = where.rpartition("@")
    if not file:
        raise SpecificationError(f"--coordinator takes NAME=FILE@HOST:PORT, not {coordinator!r}")
    certificates = {
        party: read_public(own).certificate_pem for party, own in pairs("--party", "NAME=FILE", parties).items()
    }
    dealing = pairs("--dealer", "NAME=FILE", () if dealer is None else (dealer,))
    path = Path(f"{name}.toml")
    written = write_federation(
        path,
        name=path.stem,
        coordinator=(head, read_public(file).certificate_pem),
        address=address,
        parties=certificates,
        dealer=next(((third, read_public(own).certificate_pem) for third, own in dealing.items()), None),
    )
    _say(written, path, as_json=as_json)


@federation.command("show", short_help="Show the participants, their fingerprints, and the digest.")
@FILE
@JSON
def show_federation(path: Path, *, as_json: bool) -> None:
    """Show the participants in FILE, their fingerprints, the coordinator's address, and the file's digest."""
    from vfl.network.federation.file import read_federation

    _say(read_federation(path), path, as_json=as_json)


@federation.command("check", short_help="Measure the link to each member; touches no data.")
@FILE
@click.option("--as", "name", metavar="NAME", help="Your name (default: the coordinator's).")
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to wait for the others."
)
@JSON
def check_federation(path: Path, name: str | None, seconds: float, *, as_json: bool) -> int:
    """Check the federation of FILE: connected participants, versions, clocks, round trip and throughput of each link.

    The coordinator waits for the parties and the dealer, which run vfl join. A party checks that it reaches the coordinator and
    shows the key that FILE pins. No data are touched. The exit code is 5 if a participant is missing.
    """
    from vfl.launch.join import SKEW_SECONDS, check_coordinator, check_links
    from vfl.network.federation.file import read_federation

    read, identity = read_federation(path), os.environ.get(KEY_VARIABLE)
    if name is not None and name != read.coordinator.name:
        seconds_taken = check_coordinator(path, name, identity=identity, seconds=seconds)
        said = (
            f"{read.coordinator.name} answers at {read.address} with the key that {path} pins, and accepts the key of {name}: "
            f"{1e3 * seconds_taken:.1f} ms"
        )
        tell({"coordinator": read.coordinator.name, "seconds": seconds_taken}, said, as_json=as_json)
        return 0
    width = max(5, *map(len, read.joining))
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
    third = None if federation.dealer is None else federation.dealer.name
    roles, width = {federation.coordinator.name: "coordinator", third: "dealer"}, max(map(len, federation.members))
    plain = {
        "file": str(path),
        "name": federation.name,
        "coordinator": federation.coordinator.name,
        "dealer": third,
        "address": federation.address,
        "members": {
            name: {"fingerprint": member.fingerprint, "expires": member.expires.isoformat()}
            for name, member in federation.members.items()
        },
        "digest": federation.digest,
    }
    members = (
        f"  {roles.get(name, 'party'):<11}  {name:<{width}}  {member.fingerprint}  until {member.expires:%Y-%m-%d}"
        for name, member in federation.members.items()
    )
    head = f"federation {federation.name}, coordinator at {federation.address}; file {path}"
    tell(plain, head, *members, f"digest {federation.digest}", as_json=as_json)


@click.group("identity", cls=Group, no_args_is_help=True)
def identity() -> None:
    """Make or show the key and certificate of one participant."""


@identity.command("new", short_help="Make NAME.key, which stays here, and NAME.pem.")
@click.argument("name", metavar="NAME")
@click.option("--days", type=int, default=DAYS, show_default=True, help="Days until the certificate expires.")
@JSON
def new_identity_command(name: str, days: int, *, as_json: bool) -> None:
    """Make an identity for NAME: the private key NAME.key, which stays here, and the certificate NAME.pem.

    NAME may be a path, as in keys/bank, for files in an existing folder.

    Send NAME.pem to the other participants, and read its fingerprint to them over another channel.
    """
    from vfl.network.federation.identity import CERTIFICATE_SUFFIX, KEY_SUFFIX, new_identity, read_public

    folder, name = Path(name).parent, Path(name).name
    new_identity(name, folder, days=days)
    public = folder / f"{name}{CERTIFICATE_SUFFIX}"
    read = read_public(public)
    key = folder / f"{name}{KEY_SUFFIX}"
    tell(
        {"name": read.name, "fingerprint": read.fingerprint, "expires": read.expires.isoformat(), "key": str(key)},
        f"{key}: private key, readable by you only; keep it on this machine",
        f"{public}: certificate, valid until {read.expires:%Y-%m-%d}; send it to the other participants",
        f"fingerprint {read.fingerprint}",
        as_json=as_json,
    )


@identity.command("token", short_help="Make a bearer token for a caller of a service (vfl serve).")
def new_token_command() -> None:
    """Make a bearer token for a caller of a service, and the hash to write into the service file.

    The token is shown once and is not stored.
    """
    from vfl.apps.serving.callers import new_token

    fresh, hashed = new_token()
    click.echo(f"token {fresh}")
    click.echo(f'in the service file: token = "{hashed}"')
