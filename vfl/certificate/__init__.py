"""The certificate: what may be said of a model's privacy, in one signed file beside it, from which ε is computed again."""

from __future__ import annotations

from vfl.certificate.document import FORMAT, SCHEMA, Certificate, Signature
from vfl.certificate.issue import certify
from vfl.certificate.verification import Check, Report, verify

__all__ = ["FORMAT", "SCHEMA", "Certificate", "Check", "Report", "Signature", "certify", "verify"]
