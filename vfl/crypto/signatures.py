"""Ed25519 signatures, and the file that keeps a signing key.

A signature shows that the holder of a key signed exactly this text. The signature does not show who holds the key: obtain the
public key through a separate channel. Anybody who can read the key file can sign in the owner's name. A key file that other
users can read is therefore refused.

A user's key is made on first use in `signing.pem` under $XDG_CONFIG_HOME/vfl or ~/.config/vfl, readable by this user only.
$VFL_KEY names a different file. `signing.pem.pub` in the same folder holds the public key, which may be given to everybody.
Both files are PEM (PKCS #8 and SubjectPublicKeyInfo), which other tools read and write.
"""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vfl.base.documents import read_key
from vfl.base.writing import create_file, replace_file
from vfl.errors import OutputError, SpecificationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ALGORITHM = "ed25519"
VARIABLE = "VFL_KEY"
FILE = "signing.pem"
PUBLIC_SUFFIX = ".pub"
HEX_DIGITS = 64
LARGEST_FILE = 1 << 16
"""Largest size of a key file in bytes. A larger file is refused, without reading it to the end."""


class SigningKey:
    """A secret key that signs. The object reveals only the public key, and cannot be pickled or copied."""

    __slots__ = ("_private",)

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @property
    def public(self) -> str:
        """Return the public key as 64 lower-case hexadecimal digits."""
        return _hex(self._private.public_key())

    def sign(self, message: bytes) -> str:
        """Return the signature (RFC 8032) as 128 lower-case hexadecimal digits. Equal messages have equal signatures."""
        return self._private.sign(message).hex()

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SpecificationError("a signing key cannot be pickled or copied: pass the path of its file")


def default_file() -> Path:
    """Return the path of this user's key: $VFL_KEY, else vfl/signing.pem under $XDG_CONFIG_HOME or ~/.config."""
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The XDG base directory specification says to ignore a relative path.
    return (base if base.is_absolute() else Path("~/.config").expanduser()) / "vfl" / FILE


def signing_key(path: str | os.PathLike[str] | None = None) -> SigningKey:
    """Return the key in a file. path : None for this user's own key, which is made on first use.

    Raises SpecificationError if the file is missing, holds no Ed25519 key, or can be read by other users. Raises OutputError if
    the user's own key cannot be made.
    """
    if path is not None:
        return _read(Path(path).expanduser())
    own = default_file()
    if not own.exists():
        _make(own)
    return _read(own)


def own_public_key() -> str | None:
    """Return this user's public key, or None if the user has no usable key. No key is made."""
    own = default_file()
    try:
        return _read(own).public if own.exists() else None
    except SpecificationError:
        return None


def public_key(given: str | os.PathLike[str]) -> str:
    """Return a public key as 64 lower-case hexadecimal digits.

    given : the 64 digits, or the path of a PEM file. Raises SpecificationError for anything else.
    """
    text = os.fspath(given).strip()
    if len(text) == HEX_DIGITS and set(text) <= set(string.hexdigits):
        return text.lower()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    path = Path(given).expanduser()
    content = _content(path, "public key")
    if b"PRIVATE KEY" in content:
        raise SpecificationError(
            f"{str(path)!r} holds a private key, which its owner should hand to nobody: name the public one "
            f"({path.name}{PUBLIC_SUFFIX})"
        )
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unreadable(path, "public key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _unreadable(path, "public key")
    return _hex(key)


def is_signed(message: bytes, *, public: str, signature: str) -> bool:
    """Return True if the signature is valid for this message and key; False also for a malformed key or signature.

    public, signature : 64 and 128 lower-case hexadecimal digits. Upper-case digits are refused, so that a signature has only
        one valid spelling.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not (_is_hex(public, HEX_DIGITS) and _is_hex(signature, 2 * HEX_DIGITS)):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and set(text) <= set("0123456789abcdef")


def _hex(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()


def _content(path: Path, what: str, harm: str = "") -> bytes:
    content, _ = read_key(path, what, "name the file that holds it", LARGEST_FILE, harm)
    if len(content) > LARGEST_FILE:
        raise _unreadable(path, what)
    return content


def _read(path: Path) -> SigningKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _content(path, "signing key", "sign in your name")
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError as error:  # the library raises TypeError for a key with a passphrase
        raise SpecificationError(
            f"the signing key {str(path)!r} has a passphrase, which a run cannot ask for: name a copy without a "
            "passphrase, readable by you alone"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unreadable(path, "signing key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _unreadable(path, "signing key")
    return SigningKey(key)


def _unreadable(path: Path, what: str) -> SpecificationError:
    return SpecificationError(
        f"{str(path)!r} holds no {what} that vfl can use: it has to be Ed25519 in PEM, as made by: "
        "openssl genpkey -algorithm ed25519"
    )


def _make(path: Path) -> None:
    """Make a key if there is none. If several processes try at once, all of them use the key of the first process."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if create_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())):
            replace_file(path.with_name(path.name + PUBLIC_SUFFIX), [public])
    except OSError as error:
        raise OutputError(
            f"cannot make a signing key at {str(path)!r}: {error.strerror}; name a file that can be written in "
            f"${VARIABLE}, or give a key that you have"
        ) from error
