"""Jobs as nested tables, lists and scalars. A job is written, sent and hashed in this plain form."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import numbers
from collections.abc import Mapping
from typing import Any

FORMAT = 1


def plain_of(value: Any) -> Any:
    """Return dataclasses and mappings as dicts, sequences as lists; fields that are None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain_of(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {name: plain for name, plain in fields.items() if plain is not None}
    if isinstance(value, Mapping):
        return {str(key): plain_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_of(item) for item in value]
    return value


def canonical(plain: Mapping[str, Any]) -> str:
    """Return a text that is the same for equal jobs. The order of parties matters; the order of declarations does not."""
    partition = {
        key: list(value.items()) if isinstance(value, Mapping) else value for key, value in plain["partition"].items()
    }
    return json.dumps(
        _numbers({**plain, "partition": partition}), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )


def digest_of(plain: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of a job's plain values, in hexadecimal."""
    return hashlib.sha256(canonical(plain).encode()).hexdigest()


def _numbers(value: Any) -> Any:
    """Return plain values in which equal numbers, such as 18, 18.0 and NumPy's 18, are written alike."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(item) for item in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        whole = int(value)  # keep large integers, since different ones could round to the same double
        return float(whole) if whole.bit_length() < 1024 and int(float(whole)) == whole else whole
    return float(value) if isinstance(value, numbers.Real) else value
