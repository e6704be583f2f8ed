"""Texts that pass through somebody else: only the receiver reads them, and only what the sender encrypted, in its order."""

from __future__ import annotations

import pickle

import pytest

from vfl.crypto import encryption
from vfl.crypto.encryption import Encryptor, encrypted_size
from vfl.errors import FederationError
from vfl.network.federation.identity import new_identity

CONTEXT = ("federation", "run", "align")


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identities")
    return {name: new_identity(name, folder) for name in ("bank", "shop", "telco")}


def sealers(identities, contexts=None):
    made = {
        name: Encryptor(name, identity.key_pem, (contexts or {}).get(name, CONTEXT))
        for name, identity in identities.items()
    }
    for name, one in made.items():
        for other, their in made.items():
            if other != name and not contexts:
                one.meet(other, their.key, their.signature, identities[other].certificate_pem)
    return made


@pytest.mark.parametrize("size", [0, 1, 1000, 4096])
def test_only_the_receiver_reads_it(identities, size, monkeypatch) -> None:
    monkeypatch.setattr(encryption, "PIECE", 1000)
    made = sealers(identities)
    data = bytes(range(256)) * 16
    encrypted = made["bank"].encrypt("telco", "set", data[:size])
    assert len(encrypted) == encrypted_size(size)
    assert data[:size] not in encrypted or size < 2
    assert made["telco"].open("bank", "set", encrypted) == data[:size]
    with pytest.raises(FederationError):
        made["shop"].open("bank", "set", encrypted)


def test_changes_replays_and_other_orders_are_refused(identities) -> None:
    def fresh():
        made = sealers(identities)
        texts = [made["bank"].encrypt("telco", "set", b"one"), made["bank"].encrypt("telco", "set", b"two")]
        return made, texts

    made, (first, second) = fresh()
    assert made["telco"].open("bank", "set", first) == b"one"
    with pytest.raises(FederationError, match="is not what 'bank' encrypted"):
        made["telco"].open("bank", "set", first)  # again
    made, (first, second) = fresh()
    with pytest.raises(FederationError, match="is not what 'bank' encrypted"):
        made["telco"].open("bank", "set", second)  # first
    made, (first, second) = fresh()
    with pytest.raises(FederationError):
        made["telco"].open("bank", "salt", first)  # another label
    made, (first, second) = fresh()
    with pytest.raises(FederationError):
        made["telco"].open("shop", "set", first)  # another sender
    made, (first, second) = fresh()
    with pytest.raises(FederationError):
        made["bank"].open("telco", "set", first)  # sent back
    for altered in (first[:-1], first + b"x", bytes([first[0] ^ 1]) + first[1:], b""):
        made = fresh()[0]
        with pytest.raises(FederationError):
            made["telco"].open("bank", "set", altered)
    earlier = first
    made, _ = fresh()
    with pytest.raises(FederationError):
        made["telco"].open("bank", "set", earlier)  # of another run


def test_pieces_cannot_be_left_out_or_swapped(identities, monkeypatch) -> None:
    monkeypatch.setattr(encryption, "PIECE", 10)
    each = 10 + encryption.TAG
    for order in ((1, 0, 2), (0, 1), (0, 1, 2, 2), (0, 0, 2)):
        made = sealers(identities)
        encrypted = made["bank"].encrypt("telco", "set", bytes(30))
        pieces = [encrypted[k * each : (k + 1) * each] for k in range(3)]
        with pytest.raises(FederationError):
            made["telco"].open("bank", "set", b"".join(pieces[k] for k in order))


def test_keys_are_signed_by_the_identity_for_this_run(identities) -> None:
    made = sealers(identities)
    bank = Encryptor("bank", identities["bank"].key_pem, CONTEXT)
    for key, signature, name in (
        (made["shop"].key, made["shop"].signature, "telco"),  # signed by another
        (made["telco"].key, made["telco"].signature, "shop"),  # under another name
        (made["shop"].key, made["telco"].signature, "telco"),
        (made["telco"].key, b"", "telco"),
        (made["telco"].key[:-1], made["telco"].signature, "telco"),
        (bytes(32), made["telco"].signature, "telco"),
    ):
        with pytest.raises(FederationError, match="not signed by"):
            bank.meet(name, key, signature, identities[name].certificate_pem)
    other = Encryptor("telco", identities["telco"].key_pem, ("federation", "another run", "align"))
    with pytest.raises(FederationError, match="is not signed"):
        bank.meet("telco", other.key, other.signature, identities["telco"].certificate_pem)


def test_keys_that_come_again_use_no_nonce_again(identities) -> None:
    """Two texts under one nonce would show the coordinator their difference."""
    made = sealers(identities)
    bank, telco = made["bank"], made["telco"]
    first = bank.encrypt("telco", "set", b"one")
    bank.meet("telco", telco.key, telco.signature, identities["telco"].certificate_pem)
    assert bank.encrypt("telco", "set", b"one") != first
    assert telco.open("bank", "set", first) == b"one"
    telco.meet("bank", bank.key, bank.signature, identities["bank"].certificate_pem)
    with pytest.raises(FederationError, match="is not what 'bank' encrypted"):
        telco.open("bank", "set", first)


def test_a_second_key_of_a_party_is_refused(identities) -> None:
    bank = sealers(identities)["bank"]
    again = Encryptor("telco", identities["telco"].key_pem, CONTEXT)
    with pytest.raises(FederationError, match=r"two keys.*'telco'"):
        bank.meet("telco", again.key, again.signature, identities["telco"].certificate_pem)


def test_secrets_stay(identities) -> None:
    with pytest.raises(TypeError, match="holds secrets"):
        pickle.dumps(Encryptor("bank", identities["bank"].key_pem, CONTEXT))
    with pytest.raises(FederationError, match="have no key"):
        Encryptor("bank", identities["bank"].key_pem, CONTEXT).encrypt("telco", "set", b"x")


def test_pieces_are_sealed_and_opened_one_after_the_other(identities, monkeypatch) -> None:
    monkeypatch.setattr(encryption, "PIECE", 10)
    made, data = sealers(identities), bytes(range(25))
    pieces = [memoryview(data)[start : start + 10] for start in (0, 10, 20)]
    out = bytearray(encrypted_size(25))
    assert made["bank"].encrypt_pieces("telco", "set", iter(pieces), 25, out) is out
    opened = [bytes(piece) for piece in made["telco"].open_pieces("bank", "set", memoryview(out))]
    assert opened == [bytes(piece) for piece in pieces]
    whole = memoryview(bytearray(25))
    encrypted = made["bank"].encrypt("telco", "set", data)
    assert len(list(made["telco"].open_pieces("bank", "set", memoryview(encrypted), whole))) == 3
    assert whole == data


def test_texts_are_opened_in_the_order_of_the_calls_though_their_pieces_are_read_later(identities) -> None:
    made = sealers(identities)
    texts = [made["bank"].encrypt("telco", "set", text) for text in (b"one", b"two")]
    first, second = (made["telco"].open_pieces("bank", "set", memoryview(text)) for text in texts)
    assert [bytes(next(pieces)) for pieces in (second, first)] == [b"two", b"one"]


def test_a_piece_is_verified_before_it_is_yielded(identities, monkeypatch) -> None:
    monkeypatch.setattr(encryption, "PIECE", 10)
    made = sealers(identities)
    encrypted = bytearray(made["bank"].encrypt("telco", "set", bytes(30)))
    encrypted[10 + encryption.TAG] ^= 1  # of the second piece
    pieces = made["telco"].open_pieces("bank", "set", memoryview(encrypted))
    assert bytes(next(pieces)) == bytes(10)
    with pytest.raises(FederationError, match="is not what 'bank' encrypted"):
        next(pieces)


@pytest.mark.parametrize("sizes", [(10, 10), (10, 5, 10), (10, 10, 5, 0), (25,)])
def test_other_pieces_than_the_length_asks_for_are_refused(identities, monkeypatch, sizes) -> None:
    monkeypatch.setattr(encryption, "PIECE", 10)
    bank = sealers(identities)["bank"]
    with pytest.raises(FederationError, match="pieces"):
        bank.encrypt_pieces("telco", "set", (memoryview(bytes(size)) for size in sizes), 25)
