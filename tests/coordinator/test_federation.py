"""Training across organisations, over gRPC with mutual TLS on loopback."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.federation.transport import FederationTransport
from coordinator.transport import Traffic
from tests.coordinator.organisations import federation
from tests.coordinator.test_transports import PARTITION, SOLVERS, job, table
from vfl.apps.monitor import count
from vfl.errors import ConsentRefused, PartyLost, SpecificationError
from vfl.launch.sources import sources_of
from vfl.network.federation import events

N = 700


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """Two parties that join once and serve all tests of this module."""
    with federation(tmp_path_factory.mktemp("federation")) as joined:
        for name, source in sources_of(job(), table(N)).items():
            joined.start(name, source)
        yield joined


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_across_organisations_and_in_process_agree_to_the_bit(
    joined, solver: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors between organisations have the bytes that the plan predicts."""
    spec, traffic = job(**solver), Traffic()
    here = vfl.train(spec, table(N), at="inprocess")
    monkeypatch.setattr("coordinator.transport.Traffic", lambda: traffic)
    there = vfl.train(spec, at=joined.place)
    assert traffic.n_bytes == pytest.approx(vfl.plan(spec, N).n_bytes, rel=0.1)
    assert here.coef_.tobytes() == there.coef_.tobytes()
    assert here.intercept_ == there.intercept_
    for name in ("bank", "telco"):
        asked = [event for event in joined.events[name] if isinstance(event, events.Requested)][-1]
        assert asked.digest == spec.digest
        assert asked.columns == spec.wanted(name)


@pytest.mark.parametrize(
    "spec",
    [
        job(loss="squared"),
        job(private=False),
        vfl.Job(
            partition=PARTITION,
            bounds=job().bounds,
            penalty=vfl.L2(1e-2),
            privacy=vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(3)),
            solver=vfl.solvers.GCD(rounds=4),
        ),
        vfl.Job(
            partition=PARTITION,
            bounds=job().bounds,
            penalty=vfl.L2(1e-2),
            privacy=vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(3)),
            solver=vfl.SkGD(passes=3, clip="record", details=vfl.solvers.Details(excess_share=0.2)),
            evaluation=vfl.Evaluation(holdout=0.25, epsilon=1.0),
        ),
        vfl.Job(
            partition=PARTITION,
            bounds=job().bounds,
            penalty=vfl.L2(1e-2),
            privacy=vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(3)),
            solver=vfl.solvers.SGD(passes=1, sampling="disjoint"),
        ),
        vfl.Job(
            partition=PARTITION,
            bounds=job().bounds,
            privacy=vfl.Privacy(epsilon=45.0, noise=vfl.SeededNoise(3)),
            intervals="subsamples",
            solver=vfl.SkGD(passes=2),
        ),
    ],
    ids=["squared", "without noise", "GCD", "record cap and hold-out", "SGD", "subsamples"],
)
def test_other_jobs_agree_to_the_bit(joined, spec) -> None:
    here = vfl.train(spec, table(N), at="inprocess")
    there = vfl.train(spec, at=joined.place)
    np.testing.assert_array_equal(here.coef_, there.coef_)
    assert here.certificate.private == there.certificate.private
    assert {name: str(found) for name, found in here.findings.items()} == {
        name: str(found) for name, found in there.findings.items()
    }


BINNED = {"a0": vfl.columns.Binned((0.0, 0.5))}
RELEASES: dict[str, Any] = {
    "bounds": lambda data, **terms: vfl.releases.private_bounds(
        replace(job(), bounds={}, privacy=None, scaling="none"), data, **terms
    ),
    "quantiles": lambda data, **terms: vfl.releases.private_quantiles(job(), data, **terms),
    "weight of evidence": lambda data, **terms: vfl.releases.woe(
        replace(job(), columns=BINNED, bounds={"*": (-1, 1)}), data, **terms
    ),
    "drift": lambda data, **terms: count(vfl.train(job(), table(N), at="inprocess"), data, **terms),
}


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_releases_about_columns_agree(joined, release: Any) -> None:
    terms: dict[str, Any] = {"epsilon": 1.0, "noise": vfl.SeededNoise(4)}
    assert str(release(None, at=joined.place, **terms)) == str(release(table(N), at="inprocess", **terms))


def test_a_private_run_is_in_the_books_and_the_certificate(joined, tmp_path) -> None:
    spec = vfl.Job(
        partition=PARTITION, bounds=job().bounds, privacy=vfl.Privacy(epsilon=1.0), solver=vfl.SkGD(passes=2)
    )
    result = vfl.train(spec, at=vfl.Federated(joined.file), output=tmp_path / "run")
    assert result.certificate.private
    ended = [event for event in joined.events["bank"] if isinstance(event, events.Ended)][-1]
    assert ended.why == ""
    assert ended.epsilon == pytest.approx(1.0, rel=1e-6)
    assert ended.records == N


def test_a_policy_that_does_not_accept_the_trust_setting_refuses(tmp_path) -> None:
    with federation(tmp_path) as joined:
        sources = sources_of(job(), table(50))
        without = joined.policy("telco").read_text().replace('trust = ["trusted"]\n', "")
        joined.start("bank", sources["bank"])
        joined.start("telco", lambda: pytest.fail("the source was opened"), policy=joined.policy("telco", without))
        with pytest.raises(ConsentRefused, match=r"'telco' refuses.*trust = \[\"trusted\"\]"):
            vfl.train(job(), at=joined.place)
        refused = [event for event in joined.events["telco"] if isinstance(event, events.Refused)]
        assert len(refused) == 1


def test_options_of_the_parties_are_not_the_coordinators(joined) -> None:
    with pytest.raises(SpecificationError, match="cannot be combined with a federation"):
        vfl.train(job(), vfl.Source(None, policy={"bank": "policy.toml"}), at=joined.place)
    with pytest.raises(SpecificationError, match="parties hold the data"):
        vfl.train(job(), table(50), at=joined.place)
    with pytest.raises(SpecificationError, match=r"a source named 'other': .*--data NAME=FILE"):
        vfl.train(job(), {"bank": "other"}, at=joined.place)


def test_a_refusal_goes_before_a_loss() -> None:
    """A query that one party refuses is not repeated, and charged again, because another party was lost over it."""
    errors = {"bank": PartyLost("'bank' was lost", "bank"), "telco": ConsentRefused("beyond the plan")}

    class Gathering:
        def connected(self) -> dict[str, Any]:
            return {}

        def link(self, party: str, _: float) -> Any:
            def wait(_: float) -> None:
                raise errors[party]

            return SimpleNamespace(process=b"", call=lambda *_, **__: SimpleNamespace(wait=wait))

    transport = FederationTransport(Gathering(), ("bank", "telco"), timeout=1.0)
    with pytest.raises(ConsentRefused):
        transport.greet()
    errors["telco"] = PartyLost("'telco' was lost", "telco")
    with pytest.raises(PartyLost, match="bank"):
        transport.greet()
