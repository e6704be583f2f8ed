"""Certificate: a signed statement of a model's privacy, stored beside the model, from which ε can be recomputed."""

from __future__ import annotations

from vfl.planning.certificate.document import FORMAT, SCHEMA, Certificate, Signature
from vfl.planning.certificate.issue import certify
from vfl.planning.certificate.verification import Check, Report, verify

__all__ = ["FORMAT", "SCHEMA", "Certificate", "Check", "Report", "Signature", "certify", "verify"]
