"""Sessions of a run on shares: keys serve once, so that no mask is made twice."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

import vfl
from parties.session import Credentials, Session
from tests.coordinator.shares import Watched, job, outcome, table
from vfl.crypto.encryption import PIECE, EncryptionKey
from vfl.errors import FederationError, PrivacyError
from vfl.network.federation.identity import new_identity
from vfl.privacy.noise import CryptographicNoise
from vfl.secure import requests
from vfl.secure.roles import DEALER
from vfl.secure.sigmoid import SERIES


def pair() -> tuple[Session, Session]:
    """Return two participants of one session that have begun."""
    a, b = (Session(name, "run 1", Credentials()) for name in "ab")
    return a, b


def test_a_session_begins_once():
    """Streams made again from one session's keys would put the masks of the first ones on other texts."""
    a, b = pair()
    first = a.begin({"b": b.key}, ["b"], CryptographicNoise())
    first.once("b", "angles", 1)
    with pytest.raises(PrivacyError, match="one session twice"):
        a.begin({"b": b.key}, ["b"], CryptographicNoise())


def test_sessions_of_one_name_have_different_masks():
    """A coordinator that repeats the name of a session gets new keys, and with them new streams."""
    words = []
    for _ in range(2):
        a, b = pair()
        streams = a.begin({"b": b.key}, ["b"], CryptographicNoise())
        same = b.begin({"a": a.key}, ["a"], CryptographicNoise())
        words.append(streams.once("b", "angles").words(64))
        assert (same.once("a", "angles").words(64) == words[-1]).all()
    assert not np.isin(words[0], words[1]).any()


def test_a_ciphertext_is_opened_once_by_its_receiver():
    a, b = pair()
    a.begin({"b": b.key}, ["b"], CryptographicNoise())
    b.begin({"a": a.key}, ["a"], CryptographicNoise())
    ciphertext = a.encrypt("b", "angles", np.arange(5, dtype=np.uint16))
    assert (b.open("a", "angles", ciphertext, np.uint16, 5) == np.arange(5)).all()
    with pytest.raises(FederationError):
        b.open("a", "angles", ciphertext, np.uint16, 5)


def test_rows_of_a_ciphertext_are_opened_some_at_a_time():
    a, b = pair()
    a.begin({"b": b.key}, ["b"], CryptographicNoise())
    b.begin({"a": a.key}, ["a"], CryptographicNoise())
    n = 2 * (PIECE // 96) + 5
    words = np.random.default_rng(0).integers(0, 2**64, (n, 12), dtype=np.uint64)
    parts = (words[start : start + PIECE // 96] for start in range(0, n, PIECE // 96))
    ciphertext = a.encrypt_parts("b", "Fourier terms", parts, words.nbytes)
    opened = [rows.copy() for rows in b.open_parts("a", "Fourier terms", ciphertext, np.uint64, n, 12)]
    assert len(opened) == 3
    assert (np.concatenate(opened) == words).all()
    with pytest.raises(FederationError, match="an encrypted message of"):
        list(b.open_parts("a", "Fourier terms", ciphertext, np.uint64, n + 1, 12))


def test_a_piece_holds_whole_records_for_every_number_of_terms():
    assert all(PIECE % (16 * series.terms) == 0 for series in SERIES)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_keys_of_a_session_stay_in_their_process(copied):
    a, b = pair()
    streams = a.begin({"b": b.key}, ["b"], CryptographicNoise())
    for secret in (streams, Credentials(key_pem=b"secret")):
        with pytest.raises(TypeError):
            copied(secret)
    with pytest.raises(TypeError):
        pickle.dumps(a)


def test_keys_that_the_coordinator_replaced_are_refused(tmp_path):
    """With identities, a key needs the signature of its owner, in this session, under its name."""
    who = {name: new_identity(name, tmp_path) for name in ("a", "b", "c")}
    certificates = {name: identity.certificate_pem for name, identity in who.items()}

    def made(name, session="run 1"):
        return Session(name, session, Credentials(("federation",), who[name].key_pem, certificates))

    a, b, unsigned = made("a"), made("b"), Session("b", "run 1", Credentials(("federation",)))
    for key in (unsigned.key, made("c").key, made("b", "run 2").key, EncryptionKey(unsigned.key.key, b.key.signature)):
        with pytest.raises(FederationError, match=r"not signed by .*'b'"):
            made("a").begin({"b": key}, ["b"], CryptographicNoise())
    a.begin({"b": b.key}, ["b"], CryptographicNoise())


def test_every_participant_refuses_the_keys_of_its_session_again():
    transport = Watched(job(solver=vfl.SkGD(passes=1, block_size=6)), table())
    outcome(transport)
    begun = {to: request for to, request in transport.requests if isinstance(request, requests.Begin)}
    assert len(begun) == 3
    for to, request in begun.items():
        with pytest.raises(PrivacyError, match="one session twice"):
            transport.post(to, request)


def test_keys_that_the_dealer_refuses_leave_the_deviation_of_its_noise_as_it_was():
    """With a larger number of records the dealer's part of the noise would be smaller, and no party could notice."""
    transport = Watched(job(solver=vfl.SkGD(passes=1, block_size=6)), table())
    outcome(transport)
    dealer = transport._dealer
    begun = next(request for to, request in transport.requests if to == DEALER and isinstance(request, requests.Begin))
    planned = dealer._sharing
    with pytest.raises(PrivacyError, match="one session twice"):
        dealer.request(replace(begun, n_records=10**7), ())
    assert dealer._sharing is planned
