"""Callers of a scoring service: their identities, and their limits of records per second."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from parties.daily_count import Rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.apps.serving.file import Caller


def new_token() -> tuple[str, str]:
    """Return a fresh bearer token of 256 random bits, and the token's SHA-256, which belongs in the service file.

    A random token needs no slow hash: guessing the token takes 2^255 trials on average.
    """
    token = secrets.token_urlsafe(32)
    return token, hash_of(token)


def hash_of(token: str) -> str:
    """Return the SHA-256 of a token, in hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


class Callers:
    """The callers of a service, each with a token bucket that limits its records per second."""

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._rates: dict[str, Rate] = {}
        self.update(callers)

    def update(self, callers: Mapping[str, Caller]) -> None:
        """Replace the callers. A caller whose rate is unchanged keeps its token bucket."""
        for name, caller in callers.items():
            known = self._rates.get(name)
            if caller.rate is None:
                self._rates.pop(name, None)
            elif known is None or known.per_second != caller.rate:
                self._rates[name] = Rate(caller.rate)
        self._callers = dict(callers)
        self.quotas = {name: caller.records for name, caller in callers.items() if caller.records is not None}

    def identified(self, token: str, certificate: str) -> Caller | None:
        """Return the caller with this token or client certificate; None if no caller has it.

        All hashes are compared, each in constant time. certificate : fingerprint that TLS verified; '' without a certificate.
        """
        shown = hash_of(token) if token else ""
        found: Caller | None = None
        for caller in self._callers.values():
            by_token = bool(shown and caller.token) & hmac.compare_digest(shown, caller.token)
            pinned = "" if caller.certificate is None else caller.certificate.fingerprint
            by_certificate = bool(certificate and pinned) & hmac.compare_digest(certificate, pinned)
            if by_token or by_certificate:
                found = caller
        return found

    def in_time(self, caller: Caller, records: int) -> bool:
        """Return True if the caller's rate allows these records now."""
        rate = self._rates.get(caller.name)
        return rate is None or rate.take(records)
