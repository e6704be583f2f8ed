"""`vfl identity`: make a participant's key and certificate, and show a certificate's fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfl.cli.options import JSON, PATH, path_option, print_json
from vfl.federation.identity import DAYS

if TYPE_CHECKING:
    from vfl.federation.certificate import Read


@click.group("identity", no_args_is_help=True)
def command() -> None:
    """Make or show the key and certificate of one participant."""


@command.command("new", short_help="Make NAME.key, which stays here, and NAME.pem.")
@click.argument("name", metavar="NAME")
@path_option("--folder", "An existing folder for both files (default: this one).", metavar="FOLDER", default=Path())
@click.option("--days", type=int, default=DAYS, show_default=True, help="Days until the certificate expires.")
@JSON
def new(name: str, folder: Path, days: int, *, as_json: bool) -> None:
    """Make an identity for NAME: the private key NAME.key, which stays here, and the certificate NAME.pem.

    Send NAME.pem to the other participants, and read its fingerprint to them over another channel.
    """
    from vfl.federation.identity import CERTIFICATE_SUFFIX, KEY_SUFFIX, new_identity, read_public

    new_identity(name, folder, days=days)
    public = folder / f"{name}{CERTIFICATE_SUFFIX}"
    read = read_public(public)
    if as_json:
        print_json(_plain(read, folder / f"{name}{KEY_SUFFIX}"))
        return
    click.echo(f"{folder / f'{name}{KEY_SUFFIX}'}: private key, readable by you only; keep it on this machine")
    click.echo(f"{public}: certificate, valid until {read.expires:%Y-%m-%d}; send it to the other participants")
    click.echo(f"fingerprint {read.fingerprint}")


@command.command("show", short_help="Show the name, fingerprint and expiry of a certificate.")
@click.argument("path", metavar="CERTIFICATE", type=PATH)
@JSON
def show(path: Path, *, as_json: bool) -> None:
    """Show the name, fingerprint and expiry of a CERTIFICATE, your own or one that you received.

    If its key lies beside it, the key is checked too: its mode, its owner, and that it belongs to the certificate.
    """
    from vfl.federation.identity import CERTIFICATE_SUFFIX, KEY_SUFFIX, load_identity, read_public

    public, private = path.with_suffix(CERTIFICATE_SUFFIX), path.with_suffix(KEY_SUFFIX)
    read = read_public(public if path.suffix == KEY_SUFFIX else path)
    key = private if path.suffix in (KEY_SUFFIX, CERTIFICATE_SUFFIX) and private.exists() else None
    if key is not None:
        load_identity(key)
    if as_json:
        print_json(_plain(read, key))
        return
    click.echo(f"{read.name}: certificate valid until {read.expires:%Y-%m-%d}")
    click.echo(f"fingerprint {read.fingerprint}")
    click.echo(f"key {key}: belongs to it, and is readable by you only" if key else "its key is not here")


@command.command("token", short_help="Make a bearer token for a caller of a service (vfl serve).")
def token() -> None:
    """Make a bearer token for a caller of a service, and the hash to write into the service file.

    The token is shown once and is not stored.
    """
    from vfl.serving.callers import new_token

    fresh, hashed = new_token()
    click.echo(f"token {fresh}")
    click.echo(f'in the service file: token = "{hashed}"')


def _plain(read: Read, key: Path | None) -> dict[str, str | None]:
    return {
        "name": read.name,
        "fingerprint": read.fingerprint,
        "expires": read.expires.isoformat(),
        "key": None if key is None else str(key),
    }
