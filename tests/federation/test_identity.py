"""Identities: file modes, owners and certificates, and what TLS between two processes makes of them."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import stat
from concurrent import futures
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from vfl.errors import OutputError, SpecificationError
from vfl.network.federation.identity import Identity, load_identity, new_identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


def certificate(
    name: str,
    key: CertificateIssuerPrivateKeyTypes,
    *,
    issuer: str | None = None,
    signer: CertificateIssuerPrivateKeyTypes | None = None,
    authority: bool = False,
    begins: dt.datetime = NOW - DAY,
    ends: dt.datetime = NOW + DAY,
) -> bytes:
    """Return a certificate like ours but for the given differences."""

    def called(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    built = (
        x509.CertificateBuilder()
        .subject_name(called(name))
        .issuer_name(called(issuer or name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(True, *[False] * 8), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(signer or key, hashes.SHA256())
    )
    return built.public_bytes(Encoding.PEM)


def kept(folder: Path, name: str, key: CertificateIssuerPrivateKeyTypes, pem: bytes) -> Path:
    """Write a key and a certificate as an identity's files."""
    path = folder / f"{name}.key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)
    path.with_suffix(".pem").write_bytes(pem)
    return path


class TestNewIdentity:
    def test_files_and_their_modes(self, tmp_path: Path) -> None:
        previous = os.umask(0)
        try:
            made = new_identity("bank", tmp_path)
        finally:
            os.umask(previous)
        assert {file.name for file in tmp_path.iterdir()} == {"bank.key", "bank.pem"}
        assert stat.S_IMODE((tmp_path / "bank.key").stat().st_mode) == 0o600
        assert (tmp_path / "bank.pem").read_bytes() == made.certificate_pem
        assert load_identity(tmp_path / "bank.key") == load_identity(tmp_path / "bank.pem") == made
        read = x509.load_pem_x509_certificate(made.certificate_pem)
        assert read.fingerprint(hashes.SHA256()).hex() == made.fingerprint
        assert not read.extensions.get_extension_for_class(x509.BasicConstraints).value.ca

    def test_the_key_is_never_readable_by_others_while_it_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        modes = []
        opened = os.fdopen

        def watched(descriptor: int, *rest: str) -> object:
            if "w" in rest[0]:
                modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
            return opened(descriptor, *rest)

        monkeypatch.setattr(os, "fdopen", watched)
        previous = os.umask(0)
        try:
            new_identity("bank", tmp_path)
        finally:
            os.umask(previous)
        assert modes == [0o600, 0o644]

    @pytest.mark.parametrize("taken", ["bank.key", "bank.pem"])
    def test_no_file_is_replaced(self, tmp_path: Path, taken: str) -> None:
        (tmp_path / taken).write_text("mine")
        with pytest.raises(OutputError, match=rf"{taken}' exists and is not replaced"):
            new_identity("bank", tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == [taken]
        assert (tmp_path / taken).read_text() == "mine"

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "bank.key").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OutputError):
            new_identity("bank", tmp_path)
        assert not (tmp_path / "elsewhere").exists()

    @pytest.mark.parametrize("name", ["", "a b", "../bank", "-bank", "bank.", "bänk", "b" * 64, "bank\n", "*"])
    def test_names_that_no_certificate_can_have(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(SpecificationError, match="cannot name a participant"):
            new_identity(name, tmp_path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("days", [0, -1, 4000])
    def test_days(self, tmp_path: Path, days: int) -> None:
        with pytest.raises(SpecificationError, match="valid for 1 to 3653 days"):
            new_identity("bank", tmp_path, days=days)

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="No such file"):
            new_identity("bank", tmp_path / "none")

    def test_the_key_is_not_shown_or_pickled(self, tmp_path: Path) -> None:
        made = new_identity("bank", tmp_path)
        assert "PRIVATE" not in repr(made)
        assert "bank" in repr(made)
        with pytest.raises(SpecificationError, match="cannot be pickled"):
            pickle.dumps(made)


class TestLoadIdentity:
    @pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
    def test_a_key_that_others_can_use_is_refused(self, tmp_path: Path, mode: int) -> None:
        new_identity("bank", tmp_path)
        (tmp_path / "bank.key").chmod(mode)
        with pytest.raises(SpecificationError, match=rf"mode {mode:04o}.*chmod 600"):
            load_identity(tmp_path / "bank.pem")

    def test_a_stricter_mode_is_accepted(self, tmp_path: Path) -> None:
        made = new_identity("bank", tmp_path)
        (tmp_path / "bank.key").chmod(0o400)
        assert load_identity(tmp_path / "bank.key") == made

    def test_a_key_of_another_user_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        new_identity("bank", tmp_path)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(SpecificationError, match="belongs to another user"):
            load_identity(tmp_path / "bank.key")

    @pytest.mark.parametrize(("missing", "said"), [("bank.key", "no key"), ("bank.pem", "no certificate")])
    def test_missing_files(self, tmp_path: Path, missing: str, said: str) -> None:
        new_identity("bank", tmp_path)
        (tmp_path / missing).unlink()
        with pytest.raises(SpecificationError, match=f"there is {said}"):
            load_identity(tmp_path / "bank.key")

    def test_another_certificate(self, tmp_path: Path) -> None:
        new_identity("bank", tmp_path)
        (tmp_path / "other").mkdir()
        (tmp_path / "bank.pem").write_bytes(new_identity("bank", tmp_path / "other").certificate_pem)
        with pytest.raises(SpecificationError, match="does not belong"):
            load_identity(tmp_path / "bank.key")

    def test_dates(self, tmp_path: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        past = certificate("bank", key, begins=NOW - 2 * DAY, ends=NOW - DAY)
        with pytest.raises(SpecificationError, match="expired on"):
            load_identity(kept(tmp_path, "bank", key, past))
        future = certificate("bank", key, begins=NOW + DAY, ends=NOW + 2 * DAY)
        with pytest.raises(SpecificationError, match="not valid before"):
            load_identity(kept(tmp_path, "bank", key, future))

    def test_a_certificate_that_may_certify_others(self, tmp_path: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        with pytest.raises(SpecificationError, match="may certify others"):
            load_identity(kept(tmp_path, "bank", key, certificate("bank", key, authority=True)))

    @pytest.mark.parametrize("kind", ["rsa", "another curve", "issued by another", "no text", "two", "empty", "huge"])
    def test_certificates_of_another_kind(self, tmp_path: Path, kind: str) -> None:
        key: CertificateIssuerPrivateKeyTypes = ec.generate_private_key(ec.SECP256R1())
        if kind == "rsa":
            key = rsa.generate_private_key(65537, 2048)
        if kind == "another curve":
            key = ec.generate_private_key(ec.SECP384R1())
        pem = certificate("bank", key)
        if kind == "issued by another":
            pem = certificate("bank", key, issuer="hub", signer=ec.generate_private_key(ec.SECP256R1()))
        pem = {"no text": b"\xff\x00", "two": pem * 2, "empty": b"", "huge": pem + b"\n" * (1 << 20)}.get(kind, pem)
        with pytest.raises(SpecificationError, match="is not a participant's certificate"):
            load_identity(kept(tmp_path, "bank", key, pem))

    def test_a_key_in_place_of_the_certificate(self, tmp_path: Path) -> None:
        new_identity("bank", tmp_path)
        (tmp_path / "bank.pem").write_bytes((tmp_path / "bank.key").read_bytes())
        with pytest.raises(SpecificationError, match="contains a private key") as raised:
            load_identity(tmp_path / "bank.key")
        assert "BEGIN" not in str(raised.value)

    def test_a_key_file_without_a_key(self, tmp_path: Path) -> None:
        new_identity("bank", tmp_path)
        (tmp_path / "bank.key").write_bytes(b"a secret that is no key")
        with pytest.raises(SpecificationError, match="holds no private key") as raised:
            load_identity(tmp_path / "bank.key")
        assert "secret" not in str(raised.value)

    def test_another_suffix(self, tmp_path: Path) -> None:
        with pytest.raises(SpecificationError, match="names no identity"):
            load_identity(tmp_path / "bank")


class TestMutualTls:
    """gRPC accepts the certificates as their own trust anchors, and nobody else's."""

    @pytest.fixture
    def members(self, tmp_path: Path) -> dict[str, Identity]:
        return {name: new_identity(name, tmp_path) for name in ("hub", "bank", "telco", "stranger")}

    @pytest.fixture
    def port(self, members: dict[str, Identity]) -> Iterator[int]:
        """Serve as the hub, for the bank and the telco; the answer is the peer's name."""

        class Answering(grpc.GenericRpcHandler):
            def service(self, handler_call_details: object) -> grpc.RpcMethodHandler:
                del handler_call_details
                return grpc.unary_unary_rpc_method_handler(
                    lambda _, context: b" ".join(
                        context.auth_context()[entry][0] for entry in ("peer_dns", "ssl_tls_version")
                    )
                )

        server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Answering()])
        roots = members["bank"].certificate_pem + members["telco"].certificate_pem
        pair = (members["hub"].key_pem, members["hub"].certificate_pem)
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([pair], roots, require_client_auth=True)
        )
        server.start()
        yield port
        server.stop(None).wait()

    @staticmethod
    def asked(port: int, own: tuple[bytes, bytes], pinned: bytes, name: str = "hub") -> bytes:
        credentials = grpc.ssl_channel_credentials(pinned, *own)
        options = [("grpc.ssl_target_name_override", name)]
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            return bytes(channel.unary_unary("/vfl/name")(b"", timeout=60))

    def test_members_reach_one_another_over_tls_1_3(self, members: dict[str, Identity], port: int) -> None:
        for name in ("bank", "telco"):
            own = (members[name].key_pem, members[name].certificate_pem)
            assert self.asked(port, own, members["hub"].certificate_pem) == f"{name} TLSv1.3".encode()

    def test_a_stranger_is_refused(self, members: dict[str, Identity], port: int) -> None:
        own = (members["stranger"].key_pem, members["stranger"].certificate_pem)
        with pytest.raises(grpc.RpcError):
            self.asked(port, own, members["hub"].certificate_pem)

    def test_another_server_is_refused(self, members: dict[str, Identity], port: int) -> None:
        own = (members["bank"].key_pem, members["bank"].certificate_pem)
        with pytest.raises(grpc.RpcError):
            self.asked(port, own, members["telco"].certificate_pem, "telco")

    def test_a_member_cannot_certify_a_key_under_another_name(self, members: dict[str, Identity], port: int) -> None:
        banks = load_pem_private_key(members["bank"].key_pem, None)
        assert isinstance(banks, ec.EllipticCurvePrivateKey)
        forged = ec.generate_private_key(ec.SECP256R1())
        pem = certificate("telco", forged, issuer="bank", signer=banks)
        key = forged.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for chain in (pem, pem + members["bank"].certificate_pem):
            with pytest.raises(grpc.RpcError):
                self.asked(port, (key, chain), members["hub"].certificate_pem)
