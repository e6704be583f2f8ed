"""A participant's identity: a private key and a certificate, which TLS connections between organisations use.

The key is written with mode 0600 and never printed. A key that other users may read is refused, since anyone who holds the
key can act as the participant. The certificate is public. Both are PEM files in one folder, NAME.key and NAME.pem.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from vfl.base.documents import read_key
from vfl.base.writing import create_file
from vfl.errors import OutputError, SpecificationError
from vfl.network.federation.certificate import LARGEST, Read, check_name, new_certificate, read_certificate

KEY_SUFFIX = ".key"
CERTIFICATE_SUFFIX = ".pem"
DAYS = 730
_MAKE = "make one with: vfl identity new NAME"


@dataclass(frozen=True, slots=True)
class Identity:
    """A participant's name, certificate and private key. An identity cannot be pickled, and its repr hides the key.

    certificate_pem, key_pem : in the PEM form that gRPC takes. fingerprint : SHA-256 of the certificate's DER form, 64
        hexadecimal digits.
    """

    name: str
    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)
    fingerprint: str

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SpecificationError(
            "an identity holds a private key and cannot be pickled or copied: pass the path of its file"
        )


def new_identity(name: str, folder: str | os.PathLike[str] = ".", *, days: int = DAYS) -> Identity:
    """Make a key and a self-signed certificate: NAME.key, which stays here, and NAME.pem, which the other participants need.

    name : name of a party as in jobs, or of the coordinator. folder : folder for both files. days : days until the certificate
        expires.

    No existing file is replaced. Raises SpecificationError for a name that a certificate cannot contain, and OutputError if a
    file exists or cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    check_name(name)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = new_certificate(name, key, days)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    folder = Path(folder).expanduser()
    private, public = folder / f"{name}{KEY_SUFFIX}", folder / f"{name}{CERTIFICATE_SUFFIX}"
    if public.exists():
        raise _exists(public)
    _write(private, secret, 0o600)
    try:
        _write(public, certificate, 0o644)
    except OutputError:
        private.unlink()  # a key without its certificate is useless
        raise
    return load_identity(private)


def load_identity(path: str | os.PathLike[str]) -> Identity:
    """Return the identity in NAME.key and NAME.pem. path : path of either file.

    Raises SpecificationError if other users can read the key, if the key belongs to another user, if key and certificate do not
    belong together, or if the certificate is missing, malformed or expired.
    """
    path = Path(path).expanduser()
    if path.suffix not in (KEY_SUFFIX, CERTIFICATE_SUFFIX):
        raise SpecificationError(
            f"{str(path)!r} names no identity: name its key (NAME{KEY_SUFFIX}) or its certificate (NAME{CERTIFICATE_SUFFIX}), "
            "which lie side by side"
        )
    private, public = path.with_suffix(KEY_SUFFIX), path.with_suffix(CERTIFICATE_SUFFIX)
    secret = _secret(private)
    read = read_public(public)
    if _public_key(secret, private) != read.public_key:
        raise SpecificationError(
            f"the key {str(private)!r} does not belong to the certificate {str(public)!r}: keep the two files together that "
            "vfl identity new made"
        )
    return Identity(read.name, read.certificate_pem, secret, read.fingerprint)


def read_public(path: str | os.PathLike[str]) -> Read:
    """Return a participant's certificate. Raises SpecificationError if it is missing, malformed or expired."""
    path = Path(path).expanduser()
    content, _ = read_key(path, "certificate", _MAKE, LARGEST)
    return read_certificate(content, f"the certificate {str(path)!r}")


def _secret(path: Path) -> bytes:
    """Return the content of a key file. The file must belong to this user, and no other user may read it."""
    missing = f"name the identity of this participant, or {_MAKE}"
    content, status = read_key(path, "key", missing, LARGEST, "pose as this participant")
    if status.st_uid != os.geteuid():
        raise SpecificationError(
            f"the key {str(path)!r} belongs to another user (uid {status.st_uid}, this process runs as {os.geteuid()}): run as "
            "its owner, or make the identity as this user"
        )
    return content


def _public_key(secret: bytes, path: Path) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        key = load_pem_private_key(secret, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a key with a passphrase
        # The library's message is not repeated, since the error must not show content of the file.
        raise SpecificationError(
            f"{str(path)!r} holds no private key that vfl can use: make an identity with: vfl identity new NAME"
        ) from None
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _exists(path: Path) -> OutputError:
    return OutputError(f"{str(path)!r} exists and is not replaced: name another folder, or move the old identity away")


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        if not create_file(path, content, mode):
            raise _exists(path)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from error
