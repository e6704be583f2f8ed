"""Keys that only their owner can use, and signatures that are valid for one text only."""

from __future__ import annotations

import copy
import os
import pickle
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from vfl.crypto import signatures
from vfl.crypto.signatures import SigningKey, default_file, is_signed, own_public_key, public_key, signing_key
from vfl.errors import OutputError, SpecificationError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this test's user keeps a key; it is still empty."""
    path = tmp_path / "config" / "vfl" / "signing.pem"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("VFL_KEY", raising=False)
    return path


def private_pem(key: object, passphrase: bytes | None = None) -> bytes:
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def public_pem(key: object) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def written(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


class TestOwnKey:
    def test_it_is_created_on_first_use_for_its_owner_only(self, own: Path) -> None:
        key = signing_key()
        assert stat.S_IMODE(own.stat().st_mode) == 0o600
        assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700
        assert sorted(path.name for path in own.parent.iterdir()) == ["signing.pem", "signing.pem.pub"]
        assert signing_key().public == signing_key(own).public == key.public
        assert public_key(own.with_name("signing.pem.pub")) == key.public

    def test_a_lax_umask_does_not_matter(self, own: Path) -> None:
        before = os.umask(0)
        try:
            signing_key()
        finally:
            os.umask(before)
        assert stat.S_IMODE(own.stat().st_mode) == 0o600

    def test_its_location(self, tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert default_file() == own
        monkeypatch.setenv("HOME", str(tmp_path))
        for value in ("", "relative"):
            monkeypatch.setenv("XDG_CONFIG_HOME", value)
            assert default_file() == tmp_path / ".config" / "vfl" / "signing.pem"
        monkeypatch.setenv("VFL_KEY", "~/mine.pub")
        assert default_file() == tmp_path / "mine.pub"
        assert signing_key().public == public_key(tmp_path / "mine.pub.pub")

    def test_looking_for_it_creates_nothing(self, own: Path) -> None:
        assert own_public_key() is None
        assert not own.exists()
        assert own_public_key() != signing_key().public == own_public_key()
        own.chmod(0o644)
        assert own_public_key() is None

    def test_concurrent_first_uses_create_one_key(self, own: Path) -> None:
        with ThreadPoolExecutor(8) as pool:
            keys = {key.public for key in pool.map(lambda _: signing_key(), range(32))}
        assert keys == {signing_key().public} == {public_key(own.with_name("signing.pem.pub"))}
        assert len(list(own.parent.iterdir())) == 2

    def test_a_place_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("VFL_KEY", str(tmp_path / "file" / "key.pem"))
        with pytest.raises(OutputError, match=r"cannot make a signing key .*\$VFL_KEY"):
            signing_key()


class TestGivenKey:
    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o777])
    def test_a_key_that_others_can_use_is_refused(self, tmp_path: Path, mode: int) -> None:
        path = written(tmp_path / "key.pem", private_pem(Ed25519PrivateKey.generate()), mode)
        with pytest.raises(SpecificationError, match=rf"mode {mode:04o}.*chmod 600 "):
            signing_key(path)
        path.chmod(0o600)
        signing_key(path)

    @pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
    def test_a_key_that_only_its_owner_can_use(self, tmp_path: Path, mode: int) -> None:
        key = Ed25519PrivateKey.generate()
        assert signing_key(written(tmp_path / "key.pem", private_pem(key), mode)).public == SigningKey(key).public

    def test_an_own_key_that_became_readable_is_refused_too(self, own: Path) -> None:
        signing_key()
        own.chmod(0o660)
        with pytest.raises(SpecificationError, match="can be used by others"):
            signing_key()

    def test_a_missing_key_is_not_created(self, tmp_path: Path) -> None:
        with pytest.raises(SpecificationError, match=r"no signing key at .*gone.pem"):
            signing_key(tmp_path / "gone.pem")
        assert not (tmp_path / "gone.pem").exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"secret",
            private_pem(X25519PrivateKey.generate()),
            public_pem(Ed25519PrivateKey.generate()),
            private_pem(Ed25519PrivateKey.generate()) + b" " * signatures.LARGEST_FILE,
        ],
        ids=["empty", "text", "another algorithm", "public", "too large"],
    )
    def test_invalid_keys_are_refused(self, tmp_path: Path, content: bytes) -> None:
        with pytest.raises(SpecificationError, match=r"no signing key .*openssl genpkey"):
            signing_key(written(tmp_path / "key.pem", content))

    def test_a_key_under_a_passphrase(self, tmp_path: Path) -> None:
        pem = private_pem(Ed25519PrivateKey.generate(), b"word")
        with pytest.raises(SpecificationError, match="has a passphrase"):
            signing_key(written(tmp_path / "key.pem", pem))

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SpecificationError, match="cannot read the signing key"):
            signing_key(tmp_path)


class TestPublicKey:
    def test_digits_and_files(self, tmp_path: Path) -> None:
        key = Ed25519PrivateKey.generate()
        digits = key.public_key().public_bytes_raw().hex()
        path = written(tmp_path / "key.pub", public_pem(key), 0o644)
        assert public_key(digits) == public_key(digits.upper()) == public_key(str(path)) == digits

    def test_a_private_key_in_place_of_a_public_one_is_refused(self, tmp_path: Path) -> None:
        path = written(tmp_path / "key.pem", private_pem(Ed25519PrivateKey.generate()))
        with pytest.raises(SpecificationError, match=r"private key, .*\(key.pem.pub\)"):
            public_key(path)

    def test_invalid_public_keys_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SpecificationError, match="no public key at 'ab12'"):
            public_key("ab12")
        for content in (b"", b"text", public_pem(X25519PrivateKey.generate())):
            with pytest.raises(SpecificationError, match="no public key"):
                public_key(written(tmp_path / "x.pub", content))


class TestSignature:
    def test_the_first_example_of_rfc_8032(self) -> None:
        secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
        key = SigningKey(Ed25519PrivateKey.from_private_bytes(secret))
        assert key.public == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        assert key.sign(b"") == (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b"
        )

    def test_it_is_valid_for_one_message_one_key_and_one_encoding(self) -> None:
        key, message = SigningKey(Ed25519PrivateKey.generate()), b"all that was released"
        value = key.sign(message)
        assert is_signed(message, public=key.public, signature=value)
        for position in range(len(message) * 8):
            flipped = bytearray(message)
            flipped[position // 8] ^= 1 << position % 8
            assert not is_signed(bytes(flipped), public=key.public, signature=value)
        for position, digit in enumerate(value):
            other = value[:position] + f"{int(digit, 16) ^ 1:x}" + value[position + 1 :]
            assert not is_signed(message, public=key.public, signature=other)
        for public in (SigningKey(Ed25519PrivateKey.generate()).public, "0" * 64, "", key.public[:-1], "g" * 64):
            assert not is_signed(message, public=public, signature=value)
        assert not is_signed(message, public=key.public, signature=value.upper())
        assert not is_signed(message, public=key.public, signature=value + " ")


def test_a_key_shows_only_its_public_half() -> None:
    private = Ed25519PrivateKey.generate()
    key = SigningKey(private)
    assert key.public in repr(key)
    assert private.private_bytes_raw().hex() not in repr(key)
    for carry in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SpecificationError, match="cannot be pickled or copied"):
            carry(key)
