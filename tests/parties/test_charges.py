"""Counts of releases at parties without a book: a coordinator that asks for more than the job's plan is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import vfl
from coordinator.charging.budget import Budget, Earlier
from coordinator.rounds import Lost
from parties.ledger import RunCount
from tests.coordinator.shares import N, Watched, job, outcome, table
from vfl.errors import ConsentRefused, PrivacyError
from vfl.planning import plan
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.queries import Moments, Records
from vfl.secure import requests

PRIVACY = vfl.Privacy(epsilon=8.0)
DATA = table()
JOBS = {
    "gradient": job(privacy=PRIVACY, solver=vfl.solvers.GD(passes=2)),
    "pass": job(privacy=PRIVACY, solver=vfl.SkGD(block_size=2, passes=2)),
    "products": job(
        privacy=PRIVACY, loss="squared", solver=vfl.solvers.NoisyGram(), bounds={"*": (-2, 2), "y": (-1, 2)}
    ),
}


@pytest.fixture(scope="module", params=list(JOBS))
def run(request: Any) -> Watched:
    """Return the transport of a run whose parties keep no book and have made all planned releases."""
    transport = Watched(JOBS[request.param], DATA)
    outcome(transport)
    assert not any(party.greet().keeps_ledger for party in transport.holders.values())
    return transport


def contributions(run: Watched) -> int:
    return sum(isinstance(request, requests.Contribute | requests.ContributeProducts) for _, request in run.requests)


@pytest.mark.parametrize("attempt", [0, 7])
def test_a_coordinator_that_repeats_a_run_learns_nothing_more(
    run: Watched, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over repeated sums would have less noise than was charged. New keys, sessions and masks change nothing."""
    monkeypatch.setattr(Budget, "earlier", lambda *_: Earlier(attempt))
    made = len([reply for reply in run.replies if isinstance(reply, requests.Commitment | requests.Contribution)])
    with pytest.raises(ConsentRefused, match="beyond the plan" if attempt else "made the release"):
        outcome(run)
    assert (
        len([reply for reply in run.replies if isinstance(reply, requests.Commitment | requests.Contribution)]) == made
    )


def test_each_party_refuses_by_itself(run: Watched) -> None:
    """A release of the plan's last kind is refused by every party once the plan is used up."""
    *_, (event, _) = plan(run.spec, N).releases
    assert isinstance(event, Gaussian)
    for party in run.holders.values():
        with pytest.raises(ConsentRefused, match="beyond the plan"):
            party._holder.charges.charge([(ReleaseKey(99), event)])


def test_moments_of_own_columns_are_counted_too() -> None:
    asked: list[Any] = []

    class Asked(Watched):
        def ask(self, shares: Any, records: Any, key: Any) -> Any:
            asked.extend(shares.values())
            return super().ask(shares, records, key)

    transport = Asked(JOBS["pass"], DATA)
    outcome(transport)
    query = next(query for query in asked if isinstance(query, Moments))
    with pytest.raises(ConsentRefused, match="beyond the plan"):
        transport.holders["q0"].answer(query, Records(), ReleaseKey(50))


def test_repeated_attempts_within_the_plan_are_made() -> None:
    """Spares are planned, so that a loss does not end the run."""
    solver = vfl.SkGD(block_size=2, passes=2, details=vfl.solvers.Details(reserve_passes=1))
    transport = Watched(job(privacy=PRIVACY, solver=solver), DATA, (requests.Contribute, "q1"), answered=True)
    _, events = outcome(transport)
    assert len([event for event in events if isinstance(event, Lost)]) == 1


class TestRunCount:
    def test_it_grants_exactly_the_plan(self) -> None:
        spec = JOBS["gradient"]
        count = RunCount(spec, "q0", N)
        items = [
            (ReleaseKey(round_), event)
            for round_, event in enumerate(event for event, n in plan(spec, N).releases for _ in range(n))
        ]
        count.charge(items)
        small = replace(items[-1][1], sigma=1e3 * items[-1][1].sigma)
        with pytest.raises(ConsentRefused, match="beyond the plan"):
            count.charge([(ReleaseKey(len(items)), small)])

    def test_a_job_without_privacy_has_nothing_to_count(self) -> None:
        with pytest.raises(PrivacyError, match="no cost to count"):
            RunCount(job(trust="trusted", privacy=None), "q0", N)
