"""Certificates of participants: self-signed, pinned individually, and unable to certify anybody else.

A participant's certificate binds the participant's name to a public key on the curve P-256. TLS accepts the certificate as a
trust anchor of its own, so no certificate authority is needed. The certificate is not an authority itself (CA:FALSE): the
holder of one member's key cannot make a certificate that is accepted under another member's name.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
"""Pattern of a member's name. It must be a label of a host name, because TLS compares it with the certificate's DNS name."""
LARGEST = 1 << 14
"""Largest size of a certificate in bytes. A longer text is not parsed."""
EARLY = dt.timedelta(hours=1)
"""A certificate is valid from this time before its creation on, for participants whose clocks are slow."""
LONGEST_DAYS = 3653
_NOT_FOR = (
    *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
"""Uses that a certificate's extension for the use of its key excludes."""


@dataclass(frozen=True, slots=True)
class Read:
    """One participant's certificate, after it was checked: its entry in a federation file.

    name : name of the participant. certificate_pem : UTF-8 PEM. public_key : in DER form.
    fingerprint : SHA-256 of the certificate's DER form, 64 lower-case hexadecimal digits, as printed by
        `openssl x509 -fingerprint -sha256`, but without colons.
    """

    name: str
    certificate_pem: bytes = field(repr=False)
    fingerprint: str
    public_key: bytes = field(repr=False)
    expires: dt.datetime = field(compare=False)


def check_name(name: str, what: str = "a participant") -> None:
    """Raise SpecificationError for a name that a certificate cannot contain. what : what the name is for, in errors."""
    if not NAME.fullmatch(name):
        raise SpecificationError(
            f"{name!r} cannot name {what}: use at most 63 letters, digits, '-' and '_' of ASCII, with a letter or digit at "
            "both ends"
        )


def new_certificate(name: str, key: EllipticCurvePrivateKey, days: int) -> bytes:
    """Return a self-signed certificate for `name` in PEM form, valid for `days` days at both ends of a connection."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    check_name(name)
    if not 1 <= days <= LONGEST_DAYS:
        raise SpecificationError(f"a certificate is valid for 1 to {LONGEST_DAYS} days, not {days}")
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **dict.fromkeys(_NOT_FOR, False)), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(Encoding.PEM)


def read_certificate(pem: bytes | str, where: str) -> Read:
    """Read a participant's certificate. Check its name, key and dates, and that it cannot certify any other participant.

    where : name of the certificate in errors, for instance "the certificate 'bank.pem'". Raises SpecificationError.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    content = pem.encode() if isinstance(pem, str) else pem
    if b"PRIVATE KEY" in content:
        raise SpecificationError(
            f"{where} contains a private key, which must never leave its owner: name the certificate, NAME.pem; if the key "
            "left its owner's machine, make a new identity"
        )
    unusable = SpecificationError(f"{where} is not a participant's certificate: make one with: vfl identity new NAME")
    if len(content) > LARGEST:
        raise unusable
    try:
        (certificate,) = x509.load_pem_x509_certificates(content)
        key = certificate.public_key()
        names = _names(certificate)
        certificate.verify_directly_issued_by(certificate)
    except Exception as error:  # the library raises several kinds for one malformed text
        raise unusable from error
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1) or len(names) != 1:
        raise unusable
    name = names[0]
    check_name(name)
    if _may_certify(certificate):
        raise SpecificationError(
            f"{where} may certify others (CA:TRUE), so its holder could pose as any member: make one with: vfl identity new "
            f"{name}"
        )
    now = dt.datetime.now(dt.UTC)
    if now > certificate.not_valid_after_utc:
        raise SpecificationError(
            f"{where} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: {name!r} makes a new one with vfl identity new "
            f"{name}, and all members need a new federation file"
        )
    if now < certificate.not_valid_before_utc:
        raise SpecificationError(
            f"{where} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M}: set the clock"
        )
    return Read(
        name=name,
        certificate_pem=certificate.public_bytes(Encoding.PEM),
        fingerprint=certificate.fingerprint(SHA256()).hex(),
        public_key=key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        expires=certificate.not_valid_after_utc,
    )


def _names(certificate: x509.Certificate) -> list[str]:
    from cryptography import x509

    alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(entry.value) for entry in alternative] if len(alternative.get_values_for_type(x509.DNSName)) else []


def _may_certify(certificate: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        if certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return True
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return True  # without these extensions, some verifiers treat a self-signed certificate as an authority
