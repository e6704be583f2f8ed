"""Secret samples: each serves one release, and a lost attempt at a sampled step counts as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.charging.charger import Charger
from coordinator.coordinator import Coordinator
from coordinator.executor import Executor
from coordinator.rounds import LOSSES_A_QUERY, Lost, Round
from coordinator.states.linear_predictors import LinearPredictors
from parties.loading import load
from tests.solvers import setting
from vfl.base.losses import Squared
from vfl.base.problem import Block
from vfl.base.types import Adjacency
from vfl.errors import PartyLost, PrivacyError
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.noise import CryptographicNoise, SeededNoise
from vfl.queries import Backward, Descend, Fold, Moments, Need, Query, Sample, Step, Tally
from vfl.queries.protocol import Derivative
from vfl.queries.rules import ProxStep
from vfl.queries.statistics import LabelMean

WAIT = Faults(on_party_lost="wait", wait_timeout_s=1.0)


class LosesEverySampledStep(InProcessTransport):
    """A transport that loses the answers of each sampled step as often as the recovery permits."""

    def __init__(self, spec: vfl.Job) -> None:
        sources = sources_of(spec, setting.table(spec.loss)).items()
        super().__init__({name: load(spec.for_party(name), source) for name, source in sources})
        self.batches: list[bytes] = []
        """The records with a weight, in every attempt at a sampled step."""

    def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
        replies = super().ask(shares, records, key)
        if any(isinstance(e, PoissonSubsampledGaussian) for share in shares.values() for e in share.events()):
            self.batches.append((records.weights != 0.0).tobytes())
            if len(self.batches) % (LOSSES_A_QUERY + 1):
                raise PartyLost("'bank' died", "bank")
        return replies

    def revive(self, party: str, seconds: float) -> Any:
        return self._parties[party].greet()


def spec(solver: Any, noise: Any) -> vfl.Job:
    return setting.job(solver, privacy=vfl.Privacy(epsilon=1.0, delta=1e-5, noise=noise))


SOLVERS = {
    "SGD": vfl.solvers.SGD(batch_size=75, passes=5, sampling="poisson"),
    "SVRG": vfl.solvers.SVRG(batch_size=75, passes=5, sampling="poisson"),
    "SCD": vfl.solvers.SCD(batch_size=75, passes=5, sampling="poisson"),
}


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_twenty_charged_steps_are_twenty_batches(solver: Any) -> None:
    """Each of 5 steps is lost three times: 20 charges of independent samples need 20 independent samples."""
    transport = LosesEverySampledStep(spec(solver, None))
    *events, outcome = Coordinator(transport, faults=WAIT).stream(spec(solver, None))
    charged = [
        event
        for made in events
        if isinstance(made, Round | Lost)
        for _, event in made.charges
        if isinstance(event, PoissonSubsampledGaussian)
    ]
    assert len(charged) == len(transport.batches) == 20
    assert len(set(transport.batches)) == 20
    assert outcome.statement.epsilon <= 1.0


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_seeded_noise_repeats_the_same_release_on_the_same_batch(solver: Any) -> None:
    """With seeded noise a second attempt is the same release to the bit, so the model is that of an undisturbed run."""
    seeded = spec(solver, vfl.SeededNoise(5))
    transport = LosesEverySampledStep(seeded)
    *_, outcome = Coordinator(transport, faults=WAIT).stream(seeded)
    assert len(set(transport.batches)) == len(transport.batches) / (LOSSES_A_QUERY + 1) == 20
    assert outcome.w.tobytes() == setting.drive(seeded)[1].w.tobytes()


class _Release(Query):
    """A query that releases under an event."""

    need = Need.WEIGHTS

    def __init__(self, event: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_event", event)

    def events(self) -> tuple[Any, ...]:
        return (self._event,)  # type: ignore[attr-defined]


def sampled(rate: float) -> Query:
    return _Release(PoissonSubsampledGaussian(Adjacency.REPLACE_ONE, 1.0, 2.0, rate))


class Unlimited:
    """A reservation that refuses nothing."""

    def charge(self, items: Any) -> None: ...


def charger() -> Charger:
    return Charger(Unlimited(), noise=CryptographicNoise())  # type: ignore[arg-type]


def test_a_sampled_release_needs_a_sample_of_its_rate() -> None:
    charging = charger()
    with pytest.raises(PrivacyError, match="no sample of its rate"):
        charging.charge(sampled(0.25), 0)
    charging.charge(Sample(0.5), 1)
    with pytest.raises(PrivacyError, match="no sample of its rate"):
        charging.charge(sampled(0.25), 2)
    assert charging.charge(_Release(Gaussian(Adjacency.REPLACE_ONE, 1.0, 2.0, 3)), 3).sample is None


def test_a_sample_serves_one_release() -> None:
    charging = charger()
    charging.charge(Sample(0.5), 0)
    assert charging.charge(sampled(0.5), 1).sample is None
    with pytest.raises(PrivacyError, match="another release has used"):
        charging.charge(sampled(0.5), 2)


def test_a_loss_over_another_query_keeps_the_sample_that_nobody_has_used() -> None:
    charging = charger()
    charging.charge(Sample(0.5), 0)
    charging.charge(Query(), 1)
    charging.lost()
    assert charging.charge(sampled(0.5), 2).sample is None


def test_every_repetition_has_a_key_of_its_own() -> None:
    charging, keys = charger(), []
    charging.charge(Sample(0.5), 3)
    charging.charge(sampled(0.5), 4)
    for _ in range(3):
        charging.lost()
        again = charging.charge(sampled(0.5), 4)
        assert again.sample is not None
        keys.append((again.sample[1], again.key))
    assert keys == [(ReleaseKey(3, attempt=k), ReleaseKey(4, attempt=k)) for k in (1, 2, 3)]


@pytest.mark.parametrize("noise", [CryptographicNoise(), SeededNoise(1)], ids=["true", "seeded"])
def test_the_executor_refuses_before_it_charges(noise: Any) -> None:
    execute = Executor(InProcessTransport({}), LinearPredictors(np.ones(4)), Charger(None, noise=noise))
    query: Query = sampled(0.25)
    with pytest.raises(PrivacyError, match="no sample of its rate"):
        execute(query)


def test_a_sample_that_was_given_up_serves_no_release() -> None:
    """The margins still have the sample before it, which a release has used."""
    charging = charger()
    charging.charge(Sample(0.5), 0)
    charging.charge(sampled(0.5), 1)
    charging.charge(Sample(0.5), 2)
    charging.lost()
    charging.given_up(Sample(0.5), 2)
    with pytest.raises(PrivacyError, match="no sample of its rate"):
        charging.charge(sampled(0.5), 3)


def test_releases_that_use_no_sample_are_not_charged_as_sampled() -> None:
    """Amplification holds for one sum over the sample. A statistic of all records, and a second sum, would cost more."""
    event = PoissonSubsampledGaussian(Adjacency.REPLACE_ONE, 2.0, 4.0, 0.5)
    block, one = Block(0, "bank", 0, 1, 0), np.ones(1)
    step = Step(block, 0.0 * one, one, Clip(0.5, 1), ProxStep(one, one, vfl.L2(1.0)), event)  # type: ignore[arg-type]
    visit = Descend(Derivative(Squared()), {"bank": (step, step)}, {"bank": one})
    for query in (
        Tally(LabelMean(0.0, 1.0), event),  # type: ignore[arg-type]
        Moments({"bank": 1}, {"bank": one}, False, event),  # type: ignore[arg-type]
        visit,
        replace(visit, recomputes=False),
    ):
        charging = charger()
        charging.charge(Sample(0.5), 0)
        with pytest.raises(PrivacyError, match="no single sum over a sample"):
            charging.charge(query, 1)


def test_no_weight_outside_the_sample_reaches_a_sum_that_is_charged_as_sampled() -> None:
    """The weighting may be any, and a public batch may have been used after the sample was drawn."""
    margins, sample = LinearPredictors(np.arange(1.0, 9.0)), np.arange(8) % 3 == 0
    margins.absorb("batch", [sample.astype(float)])
    block, one = Block(0, "bank", 0, 1, 0), np.ones(1)
    query = Backward(Derivative(Squared()), (block,), (0.0 * one,), (one,), Clip(0.5, 1), None, 0, Fold(0, 2, (3,)))
    members = query.fold.members(8)  # type: ignore[union-attr]
    assert (np.asarray(margins.records(query).weights) != 0.0).tolist() == (members > 0.0).tolist()
    event = PoissonSubsampledGaussian(Adjacency.REPLACE_ONE, 2.0, 4.0, 0.5)
    weights = margins.records(replace(query, fold=None, event=event)).weights
    assert (np.asarray(weights) != 0.0).tolist() == sample.tolist()
