"""Names of encrypted messages."""

from __future__ import annotations

import pytest

from vfl.errors import FederationError
from vfl.secure.requests import ciphertext_names, given_ciphertexts, named_ciphertexts


def test_ciphertexts_arrive_in_their_order() -> None:
    ciphertexts = [bytes([place]) for place in range(12)]  # with two digits, the order of names is another
    named = named_ciphertexts(ciphertexts)
    assert list(named) == ciphertext_names(12)
    assert given_ciphertexts(dict(sorted(named.items()))) == ciphertexts
    assert given_ciphertexts({}) == []


@pytest.mark.parametrize(
    "names", [["ciphertext 1"], ["ciphertext 0", "ciphertext 2"], ["ciphertext 0", "weights"], ["ciphertext 00"]]
)
def test_vectors_with_other_names_are_refused(names: list[str]) -> None:
    with pytest.raises(FederationError, match="not encrypted messages"):
        given_ciphertexts(dict.fromkeys(names, b"encrypted"))
