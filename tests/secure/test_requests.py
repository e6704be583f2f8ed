"""Names of sealed parcels."""

from __future__ import annotations

import pytest

from vfl.errors import FederationError
from vfl.secure.requests import given_parcels, named_parcels, parcel_names


def test_parcels_arrive_in_their_order() -> None:
    parcels = [bytes([place]) for place in range(12)]  # with two digits, the order of names is another
    named = named_parcels(parcels)
    assert list(named) == parcel_names(12)
    assert given_parcels(dict(sorted(named.items()))) == parcels
    assert given_parcels({}) == []


@pytest.mark.parametrize("names", [["parcel 1"], ["parcel 0", "parcel 2"], ["parcel 0", "weights"], ["parcel 00"]])
def test_vectors_with_other_names_are_refused(names: list[str]) -> None:
    with pytest.raises(FederationError, match="other than sealed parcels"):
        given_parcels(dict.fromkeys(names, b"sealed"))
