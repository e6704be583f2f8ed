"""Streams: the same for both ends, never the same twice."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tests.secure.session import exchanged, model, session
from vfl.errors import FederationError, PrivacyError, SpecificationError
from vfl.privacy.events import ReleaseKey
from vfl.secure import streams as streams_module
from vfl.secure.requests import Opening, Version, digest_of
from vfl.secure.roles import DEALER, Roles
from vfl.secure.streams import LARGEST, Stream, Streams, zero_share

ROLES = Roles(("a", "b", "c"), "a", 1)


def test_both_ends_have_the_same_stream_and_nobody_else():
    streams = exchanged(ROLES)
    assert (streams["a"].once("b", "x", 1).words(9) == streams["b"].once("a", "x", 1).words(9)).all()
    others = [streams["a"].once("c", "x", 1), streams["b"].once("c", "x", 1), streams["a"].once("b", "x", 2)]
    texts = [other.words(4).tobytes() for other in others] + [streams["c"].once(DEALER, "x", 1).words(4).tobytes()]
    assert len(set(texts)) == 4


def test_a_session_has_new_streams():
    first, second = exchanged(ROLES), exchanged(ROLES)
    assert first["a"].once("b", "x").words(4).tobytes() != second["a"].once("b", "x").words(4).tobytes()
    seeds = {"b": bytes(32)}
    runs = [Streams(run, seeds).once("b", "x").words(4).tobytes() for run in ("one", "two")]
    assert runs[0] != runs[1]


def test_a_used_name_is_refused():
    streams = exchanged(ROLES)["a"]
    streams.once("b", "angles", 1)
    streams.once("b", "angles", 2)
    streams.once("c", "angles", 1)
    with pytest.raises(PrivacyError, match="asked for twice"):
        streams.once("b", "angles", 1)
    streams.reserve("b", "block", 1)
    streams.again("b", "block", 1)
    streams.again("b", "block", 1)
    with pytest.raises(PrivacyError, match="asked for twice"):
        streams.reserve("b", "block", 1)


def test_names_have_one_encoding():
    streams = Streams("run", {"b": bytes(32)})
    names = [("x", 1), ("x", "1"), ("x1",), ("x", "", 1), ("x", 11), ("x", 1, 1), ("again", "x", 1)]
    texts = {streams.once("b", *name).words(2).tobytes() for name in names}
    assert len(texts) == len(names)


def test_pieces_of_a_stream_are_its_whole():
    streams = [Streams("run", {"b": bytes(32)}) for _ in range(2)]
    whole = streams[0].once("b", "x").words(100_000)
    stream = streams[1].once("b", "x")
    pieces = np.concatenate([stream.words(size) for size in (1, 40_000, 33_333, 26_666)])
    assert (whole == pieces).all()
    assert stream.words(0).size == 0


def test_words_are_outputs_of_a_block_cipher_on_counters_that_never_repeat():
    seed, name = bytes(range(32)), ("x", 1)
    stream = Streams("run", {"b": seed}).once("b", *name)
    parts = (b"vfl shares, version 2", b"run", b"sx", b"i1")
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    key = HKDFExpand(hashes.SHA256(), 32, info).derive(seed)
    blocks = Cipher(AES256(key), CTR(bytes(15) + b"\x02")).encryptor().update(bytes(800_000))
    assert stream.words(100_000).tobytes() == blocks


def test_a_stream_ends_before_its_counters_repeat(monkeypatch):
    monkeypatch.setattr(streams_module, "LARGEST", 800)
    stream = Stream(bytes(32))
    stream.words(60)
    with pytest.raises(PrivacyError, match="ends after"):
        stream.words(41)
    assert stream.words(40).size == 40
    assert LARGEST == 16 * (2**32 - 2)


def test_streams_stay_in_their_process():
    streams = exchanged(ROLES)["a"]
    for secret in (streams, streams.once("b", "x")):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(secret)
    stream = streams.once("b", "y")
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: stream.words(1), lambda: streams.once("b", "z")):
            try:
                call()
            except PrivacyError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_a_seed_that_is_none_is_refused():
    with pytest.raises(FederationError, match="no seed"):
        exchanged(ROLES)["a"].once("d", "x")
    with pytest.raises(PrivacyError, match="32 bytes"):
        Streams("run", {"b": b"short"})


@pytest.mark.parametrize("m", [2, 3, 5])
def test_zero_shares_add_up_to_zero_and_short_of_one_to_nothing(m):
    roles = Roles(tuple("abcde"[:m]), "a", 1)
    streams = exchanged(roles)
    shares = [zero_share(streams[party], party, roles.parties, ("x", 1), 64) for party in roles.parties]
    assert (sum(shares[1:], start=shares[0]) == 0).all()
    assert (sum(shares[2:], start=shares[1]) != 0).all()


def test_no_stream_is_used_twice_over_attempts_of_every_request(monkeypatch):
    """Run a version, its openings and repetitions of all of them: a name never comes twice, or is refused."""
    names: list[tuple] = []
    once = Streams.once

    def noted(self, other, *name):
        stream = once(self, other, *name)
        names.append((id(self), other, name))
        return stream

    monkeypatch.setattr(Streams, "once", noted)
    run = session(3, 2, n=50)
    for setup_of in run.roles.parties:
        run.set_up(setup_of, 0, 3)
    number = 0
    for attempt in range(3):
        version = run.share(model(run), attempt=attempt)
        for owner in run.roles.parties:
            run.residuals(version, owner)
            run.residuals(version, owner)  # sent again: the same words
            for _ in range(2):
                number += 1
                run.open(version, owner, 0, 3, number)
    assert len(set(names)) == len(names)
    with pytest.raises(PrivacyError, match="asked for twice"):
        run.open(version, owner, 0, 3, number)


def test_versions_and_openings_are_named_by_all_that_their_masks_depend_on():
    w = {"a": np.ones(2), "b": np.zeros(1)}
    assert digest_of(w) == digest_of({"b": np.zeros(1), "a": np.ones(2)})
    models = [w, {"a": np.ones(3), "b": np.zeros(1)}, {"a": np.ones(2)}, {"a": np.ones(2), "b": np.array([-0.0])}]
    assert len({digest_of(one) for one in models}) == 4
    assert digest_of(w, ["centre 1"]) != digest_of(w, ["centre 2"])
    version = Version("m", 2)
    openings = [
        Opening("a", 0, 2, version, ReleaseKey(1)),
        Opening("a", 0, 2, version, ReleaseKey(1, 0, 1)),
        Opening("a", 0, 2, version, ReleaseKey(1), setup=1),
        Opening("a", 0, 1, version, ReleaseKey(1)),
        Opening("a", 0, 2, Version("m", 2, 1), ReleaseKey(1)),
        Opening("a", 0, 2, Version("m", 3), ReleaseKey(1)),
    ]
    assert len({opening.name for opening in openings}) == len(openings)


@pytest.mark.parametrize(
    ("parties", "label", "collude", "message"),
    [
        (("a", "b"), "c", 1, "one of them has to hold the label"),
        (("a", "a"), "a", 1, "different names"),
        (("a", "dealer"), "a", 1, "is reserved"),
        (("a", "b"), "a", 2, "give a number from 1 to 1"),
        (("a", "b"), "a", 0, "give a number from 1 to 1"),
    ],
)
def test_roles_that_cannot_be_are_refused(parties, label, collude, message):
    with pytest.raises(SpecificationError, match=message):
        Roles(parties, label, collude)


def test_there_is_one_holder_more_than_parties_that_may_pool():
    roles = Roles(("a", "b", "c"), "b", 1)
    assert roles.holders == ("b", "a")
    assert roles.receivers("a") == ("b",)
    assert roles.receivers("c") == ("b", "a")
    assert roles.summed("c") == ("c", "b", "a")
    assert roles.price == pytest.approx(1.1547, abs=1e-4)
