"""The federation file: it lists the participants, their certificates, and the coordinator's address. Public TOML.

format = 1
name = "credit"
[coordinator]          name = "hub", address = "vfl.example.org:8443", certificate = '''-----BEGIN CERTIFICATE-----…'''
[parties.bank]         certificate = '''…'''
[parties.telco]        certificate = '''…'''
[dealer]               name = "notary", certificate = '''…'''      (optional: dealer of training on shares, see docs/secure.md)

Members exchange the file by hand. The digest of the file depends on names, address, members and certificates, but not on
spacing or order. Members that print equal digests pin the same keys.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfl.base.documents import built, read_bytes, read_toml
from vfl.errors import OutputError, SpecificationError, nearest
from vfl.network.federation.certificate import Read, check_name, read_certificate
from vfl.network.federation.identity import CERTIFICATE_SUFFIX, KEY_SUFFIX, Identity, load_identity

if TYPE_CHECKING:
    import os

FORMAT = 1
LARGEST = 1 << 22
"""Largest size of a federation file in bytes. A longer file is refused."""
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)*"
)


@dataclass(frozen=True, slots=True)
class Federation:
    """The members of a federation, and the coordinator's address 'host:port'. digest : identifies this content, in hexadecimal.

    dealer : organisation without data; for training on secret shares it sends random integers. None if there is no dealer.
    """

    name: str
    coordinator: Read
    address: str
    parties: Mapping[str, Read]
    digest: str
    dealer: Read | None = None

    @property
    def joining(self) -> Mapping[str, Read]:
        """Return {name: member} for the members that connect to the coordinator: the parties, then the dealer."""
        return (
            self.parties if self.dealer is None else MappingProxyType({**self.parties, self.dealer.name: self.dealer})
        )

    @property
    def members(self) -> Mapping[str, Read]:
        """Return {name: member} for all members: the coordinator, then the parties, then the dealer."""
        return MappingProxyType({self.coordinator.name: self.coordinator, **self.joining})

    def stated(self, dealer: str = "") -> dict[str, str]:
        """Return facts for a run's certificate: the federation's name and digest; for a run on shares, also the dealer's name.

        dealer : `Secure.dealer`; '' if the run is not on shares.
        """
        member = {"separate": self.dealer, "coordinator": self.coordinator}.get(dealer)
        return {"name": self.name, "digest": self.digest} | ({} if member is None else {"dealer": member.name})

    def member(self, name: str) -> Read:
        """Return the member of this name. Raises SpecificationError if there is no such member."""
        if name not in self.members:
            raise SpecificationError(
                f"{name!r} is not a member of the federation {self.name!r}{nearest(name, self.members)}; members: "
                f"{', '.join(self.members)}"
            )
        return self.members[name]

    def check_identity(self, identity: Identity) -> Read:
        """Return the member that has this identity.

        Raises SpecificationError if the file has no such member or pins another key.
        """
        member = self.member(identity.name)
        if member.fingerprint != identity.fingerprint:
            raise SpecificationError(
                f"the federation {self.name!r} expects a different certificate for {identity.name!r}: "
                f"{member.fingerprint}, not {identity.fingerprint}. Use the identity whose certificate was sent, or a "
                "new federation file"
            )
        return member


@dataclass(frozen=True, slots=True)
class _Pinned:
    certificate: str


@dataclass(frozen=True, slots=True)
class _Dealer(_Pinned):
    name: str


@dataclass(frozen=True, slots=True)
class _Coordinator(_Dealer):
    address: str


@dataclass(frozen=True, slots=True)
class _Written:
    """Content of a federation file."""

    name: str
    coordinator: _Coordinator
    parties: Mapping[str, Any]
    dealer: _Dealer | None = None


def read_federation(path: str | os.PathLike[str]) -> Federation:
    """Read a federation file. Raises SpecificationError, which names the entry, for an invalid file.

    Errors are unknown keys, two members with one name or one key, a bad address, any private key, and a certificate that has
    expired, that may certify others, or that has a name different from the member's.
    """
    path = Path(path).expanduser()
    where = f"the federation file {str(path)!r}"
    with suppress(OSError):  # `read_toml` tells the reason
        if b"PRIVATE KEY" in read_bytes(path, LARGEST):
            raise SpecificationError(
                f"{where} contains a private key, which its owner must hand to nobody: that participant makes a new identity, "
                "and the file is written anew"
            )
    remedy = ": make one with: vfl federation new"
    plain = read_toml(path, "federation file", number=FORMAT, remedy=remedy, largest=LARGEST)
    written = built(_Written, plain, f"{where}: ", coordinator=_Coordinator, dealer=_Dealer)
    if not isinstance(written.parties, Mapping):
        raise SpecificationError(f"{where}: parties must be a table")
    parties = {
        party: built(_Pinned, entry, f"{where}: parties.{party}.").certificate
        for party, entry in written.parties.items()
    }
    head, dealer = written.coordinator, written.dealer
    return _built(
        written.name,
        (head.name, head.certificate),
        head.address,
        parties,
        None if dealer is None else (dealer.name, dealer.certificate),
        where,
    )


def write_federation(
    path: str | os.PathLike[str],
    *,
    name: str,
    coordinator: tuple[str, bytes],
    address: str,
    parties: Mapping[str, bytes],
    dealer: tuple[str, bytes] | None = None,
) -> Federation:
    """Write a new federation file and return its content.

    coordinator : name and certificate (PEM). address : 'host:port' at which the parties reach the coordinator. parties :
        {name: certificate}. dealer : name and certificate of an organisation without data that deals in training on shares.

    Raises SpecificationError for content that `read_federation` would refuse, and OutputError if the file exists or cannot be
    written.
    """
    import tomli_w

    path = Path(path).expanduser()
    whole = _built(name, coordinator, address, parties, dealer, "the federation")
    head = {"name": coordinator[0], "address": address, "certificate": whole.coordinator.certificate_pem.decode()}
    plain: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "coordinator": head,
        "parties": {party: {"certificate": member.certificate_pem.decode()} for party, member in whole.parties.items()},
    }
    if whole.dealer is not None:
        plain["dealer"] = {"name": whole.dealer.name, "certificate": whole.dealer.certificate_pem.decode()}
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(tomli_w.dumps(plain, multiline_strings=True))
    except FileExistsError:
        raise OutputError(f"the federation file {str(path)!r} exists and is not replaced: name a new one") from None
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from error
    return read_federation(path)


def identity_for(
    federation: Federation, file: str | os.PathLike[str], name: str, identity: str | os.PathLike[str] | None = None
) -> Identity:
    """Return the identity of member `name`: from `identity`, else from NAME.key and NAME.pem next to the federation file.

    Raises SpecificationError if the federation has no such member, or pins a different certificate for this member.
    """
    federation.member(name)  # check the name before a file is read
    beside = Path(file).expanduser().parent / f"{name}{KEY_SUFFIX}"
    loaded = load_identity(identity if identity is not None else beside)
    if loaded.name != name:
        raise SpecificationError(
            f"the identity {str(identity or beside)!r} belongs to {loaded.name!r}, not to {name!r}: name the file "
            f"{name}{KEY_SUFFIX} or {name}{CERTIFICATE_SUFFIX}"
        )
    federation.check_identity(loaded)
    return loaded


def _built(
    name: str,
    coordinator: tuple[str, bytes | str],
    address: str,
    parties: Mapping[str, bytes | str],
    dealer: tuple[str, bytes | str] | None,
    where: str,
) -> Federation:
    check_name(name, "a federation")
    if not parties:
        raise SpecificationError(f"{where} names no party")
    check_address(address, where)
    members: dict[str, Read] = {}
    for member, pem in (coordinator, *parties.items(), *(() if dealer is None else (dealer,))):
        check_name(member)
        known = next((other for other in members if other.casefold() == member.casefold()), None)
        if known is not None:
            raise SpecificationError(
                f"{where} names two members {member!r}: coordinator, parties and dealer need different names"
            )
        read = read_certificate(pem, f"{where}: the certificate of {member!r}")
        if read.name != member:
            raise SpecificationError(f"{where}: the certificate given for {member!r} is that of {read.name!r}")
        same = next((other for other, own in members.items() if own.public_key == read.public_key), None)
        if same is not None:
            raise SpecificationError(
                f"{where}: {same!r} and {member!r} have the same key: each needs an identity of its own"
            )
        members[member] = read
    head = members.pop(coordinator[0])
    dealing = None if dealer is None else members.pop(dealer[0])
    canonical: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "coordinator": [head.name, head.fingerprint],
        "address": address,
        "parties": {party: member.fingerprint for party, member in members.items()},
    }
    if dealing is not None:
        canonical["dealer"] = [dealing.name, dealing.fingerprint]
    digest = hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return Federation(name, head, address, MappingProxyType(members), digest, dealing)


def check_address(address: str, where: str) -> None:
    """Raise SpecificationError unless `address` is 'host:port', with a host name, an IPv4 or a bracketed IPv6 address."""
    host, colon, port = address.rpartition(":")
    fits = bool(colon) and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 1 << 16
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            fits = False
    elif set(host) <= set("0123456789."):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            fits = False
    else:
        fits = fits and _HOST.fullmatch(host) is not None
    if not fits:
        raise SpecificationError(
            f"{where}: {address!r} is not an address: write HOST:PORT, for instance vfl.example.org:8443 or [2001:db8::1]:8443"
        )
