"""Training on shares across organisations: over gRPC on loopback, the dealer at the coordinator."""

from __future__ import annotations

from typing import Any

import pytest

import vfl
from tests.coordinator.organisations import POLICY, federation
from tests.coordinator.shares import job, table
from vfl.errors import ConsentRefused, SpecificationError
from vfl.launch.sources import sources_of

SHARED = POLICY.replace('["trusted"]', '["secure"]')
AT_COORDINATOR = vfl.Secure(dealer="coordinator")
SQUARED = {"loss": "squared", "solver": vfl.NoisyGram(), "bounds": {"*": (-2, 2), "y": (0, 1)}}


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """Two parties whose owners accept training on shares alone."""
    with federation(tmp_path_factory.mktemp("federation"), ("q0", "q1")) as joined:
        for name, source in sources_of(job(), table()).items():
            joined.start(name, source, policy=joined.policy(name, SHARED))
        yield joined


@pytest.mark.parametrize("options", [{}, SQUARED], ids=["logistic", "squared"])
def test_across_organisations_and_in_process_agree_to_the_bit(joined: Any, options: dict[str, Any]) -> None:
    spec = job(secure=AT_COORDINATOR, **options)
    there, here = vfl.train(spec, federation=joined.place), vfl.train(spec, table(), engine="inprocess")
    assert (there.w == here.w).all()
    assert there.certificate.trust["dealer"] == "coordinator"
    assert not any("one process" in flag or "one Ray" in flag for flag in there.certificate.flags)
    assert there.certificate.books.keys() == {"q0", "q1"}


def test_fresh_noise_is_booked_by_every_party(joined: Any) -> None:
    spec = job(secure=AT_COORDINATOR, privacy=vfl.Privacy(epsilon=8.0), solver=vfl.SkGD(block_size=4, passes=3))
    found = vfl.train(spec, federation=joined.place)
    assert found.certificate.private
    assert found.certificate.flags == ()


def test_owners_who_accept_shares_alone_refuse_trusted_mode(joined: Any) -> None:
    with pytest.raises(ConsentRefused, match=r"trust = \[\"secure\"\]|trust"):
        vfl.train(job(trust="trusted"), federation=joined.place)


def test_a_separate_dealer_is_refused_before_parties_are_asked(joined: Any) -> None:
    with pytest.raises(SpecificationError, match="has its dealer at the coordinator"):
        vfl.train(job(), federation=joined.place)
