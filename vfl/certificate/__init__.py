"""The certificate: what may be said of a model's privacy, in one signed file beside it, from which ε is computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.certificate.document import FORMAT, SCHEMA, Certificate, Signature
from vfl.certificate.issue import certify, flags_of

if TYPE_CHECKING:
    from vfl.certificate.verification import Check as Check
    from vfl.certificate.verification import Report as Report

__all__ = ["FORMAT", "SCHEMA", "Certificate", "Signature", "certify", "flags_of"]
