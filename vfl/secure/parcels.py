"""Names of sealed parcels in a call to a participant. A call carries them as vectors, beside its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfl.errors import FederationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def parcel_names(count: int) -> list[str]:
    """Return the names of `count` parcels, in order."""
    return [f"parcel {place}" for place in range(count)]


def named_parcels(parcels: Sequence[Any]) -> dict[str, Any]:
    """Return {name: parcel}, for `given_parcels` at the receiver."""
    return dict(zip(parcel_names(len(parcels)), parcels, strict=True))


def given_parcels(vectors: Mapping[str, Any]) -> list[Any]:
    """Return the sealed parcels of a call, in order. Raises FederationError for vectors with other names."""
    names = parcel_names(len(vectors))
    if set(vectors) != set(names):
        raise FederationError("a request carried vectors that are no sealed parcels")
    return [vectors[name] for name in names]
