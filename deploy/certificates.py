"""Certificates for Ray's TLS and a token for its authentication, in one command.

    python certificates.py FOLDER ADDRESS...

Writes FOLDER/ca.crt, FOLDER/token (mode 0600), and for every node's address FOLDER/ADDRESS/{node.crt,node.key,env.sh}.
Copy ca.crt, token and the node's own folder to each node. The authority's key is never written, so a further node needs
new certificates for all nodes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import ipaddress
import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365


def name(text: str) -> x509.Name:
    """Return a distinguished name that consists of a common name only."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def address(text: str) -> x509.GeneralName:
    """Return an IP address or a host name in the form of a certificate."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def issue(
    subject: str, key: ec.EllipticCurvePrivateKey, ca: str, signer: ec.EllipticCurvePrivateKey, addresses: list[str]
) -> x509.Certificate:
    """Return a certificate for a node's addresses; without addresses, the authority's own certificate."""
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(ca))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=not addresses, path_length=None), critical=True)
    )
    if addresses:
        names = [x509.DNSName("localhost"), address("127.0.0.1"), *(address(each) for each in addresses)]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(signer, hashes.SHA256())


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file, created with its final mode."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def main() -> None:
    """Write everything to a new folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("addresses", nargs="+", metavar="ADDRESS")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True)
    authority = ec.generate_private_key(ec.SECP256R1())
    ca = issue("vfl cluster", authority, "vfl cluster", authority, [])
    pem = serialization.Encoding.PEM
    write(folder / "ca.crt", ca.public_bytes(pem), 0o644)
    write(folder / "token", secrets.token_hex(32).encode(), 0o600)
    for each in arguments.addresses:
        node = folder / each
        node.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = issue(each, key, "vfl cluster", authority, [each])
        plain = serialization.NoEncryption()
        write(node / "node.key", key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), 0o600)
        write(node / "node.crt", certificate.public_bytes(pem), 0o644)
        settings = {
            "RAY_USE_TLS": "1",
            "RAY_TLS_CA_CERT": folder / "ca.crt",
            "RAY_TLS_SERVER_CERT": node / "node.crt",
            "RAY_TLS_SERVER_KEY": node / "node.key",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": folder / "token",
        }
        write(node / "env.sh", "".join(f"export {k}={v}\n" for k, v in settings.items()).encode(), 0o644)


if __name__ == "__main__":
    main()
