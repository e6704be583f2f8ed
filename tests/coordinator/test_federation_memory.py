"""A coordinator that sends vectors which no call takes: the party refuses them before it stores them."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.federation.gathering import ConnectedMembers
from tests.coordinator.organisations import POLICY, federation
from tests.coordinator.shares import job, table
from vfl.errors import FederationError
from vfl.launch.sources import sources_of
from vfl.network.messages import ALIGN, TRAIN, Done, Introduce, Load, Notice, Offer, Phase
from vfl.network.wire.frames import Constant
from vfl.privacy.events import ReleaseKey
from vfl.queries import Forward
from vfl.secure.requests import StateRecords, ciphertext_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.federation.gathering import Link

N = 4000
CIPHERTEXT = 8 * N * 32
OFFERED = ("q0", "q1")


@pytest.fixture
def joined(tmp_path) -> Iterator[Any]:
    with federation(tmp_path, OFFERED) as joined:
        yield joined


def accepted(joined: Any, gathering: ConnectedMembers, purpose: str = TRAIN, **changes: Any) -> Link:
    """Return the stream of q0, which has agreed to a job, and has loaded its columns if it trains."""
    spec = job(**({"trust": vfl.federation.Secure(dealer="coordinator")} | changes))
    data = {name: np.resize(column, N) for name, column in table().items()}
    shared = joined.policy("q0", POLICY.replace('["trusted"]', '["trusted", "secure"]'))
    joined.start("q0", sources_of(spec, data)["q0"], policy=shared)
    link = gathering.link("q0", 60.0)
    offer = Offer(purpose, "run1", json.dumps(spec.to_dict()), spec.digest, OFFERED)
    assert isinstance(link.call(offer).wait(60.0)[0], Done)
    if purpose == TRAIN:
        link.call(Load()).wait(60.0)
    return link


CIPHERTEXTS = dict.fromkeys(ciphertext_names(16), np.zeros(CIPHERTEXT, np.uint8))
RECORDS = {name: np.zeros(N) for name in ("weights", "margins", "labels", "limits")}
HELD = {"weights": Constant(np.zeros(N), b"d" * 32)}
TRUSTED = {"trust": "trusted"}
CASES: dict[str, tuple[dict[str, Any], str, tuple[object, ...], dict[str, Any]]] = {
    "ciphertexts on a request that takes none": ({}, TRAIN, (StateRecords("session"),), CIPHERTEXTS),
    "ciphertexts with a call that is no request": ({}, TRAIN, (Load(),), CIPHERTEXTS),
    "vectors with a query that takes none": (
        TRUSTED,
        TRAIN,
        (Forward({}), ReleaseKey(0)),
        RECORDS,
    ),
    "vectors with a notice": (
        TRUSTED,
        TRAIN,
        (Notice(Phase.COMPARE, "run1", "run run1"),),
        RECORDS,
    ),
    "a constant that is none": (TRUSTED, TRAIN, (Load(),), HELD),
    "a payload before work": ({}, ALIGN, (Introduce(),), {"payload": np.zeros(1 << 24, np.uint8)}),
}


@pytest.mark.parametrize("case", CASES)
def test_vectors_that_a_call_does_not_take_are_refused_before_they_are_stored(joined, case: str) -> None:
    changes, purpose, call, vectors = CASES[case]
    with ConnectedMembers(joined.federation, joined.identities["hub"]) as gathering:
        link = accepted(joined, gathering, purpose, **changes)
        tracemalloc.start()
        answer = link.call(*call, vectors=vectors)
        with pytest.raises(FederationError, match="unexpected vector"):
            answer.wait(60.0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    if vectors is CIPHERTEXTS:
        assert peak < 10 * CIPHERTEXT  # 16 ciphertexts, and 16 copies, before
