"""Multinomial loss across organisations: one margin per class travels for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from parties.services.training import PartyService
from tests.coordinator.organisations import federation
from tests.solvers.test_multinomial import TABLE, job_of
from vfl.errors import FederationError
from vfl.launch.sources import sources_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDED = vfl.Privacy(epsilon=8.0, noise=vfl.SeededNoise(3))


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two parties that join once and serve all tests of this module."""
    with federation(tmp_path_factory.mktemp("federation")) as joined:
        for name, source in sources_of(job_of(), TABLE).items():
            joined.start(name, source)
        yield joined


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(passes=3),
        vfl.SkGD(passes=3, details=vfl.solvers.Details(message="block"), clip=1.0),
        vfl.solvers.GD(passes=3),
    ],
    ids=["SkGD", "block by block, a clip per coordinate", "GD"],
)
def test_training_agrees_to_the_bit_with_a_run_in_process(joined: Any, solver: Any) -> None:
    spec = job_of(privacy=SEEDED, solver=solver, evaluation=vfl.Evaluation(holdout=0.3, epsilon=2.0))
    here, there = vfl.train(spec, TABLE, at="inprocess"), vfl.train(spec, at=joined.place)
    assert there.w.tobytes() == here.w.tobytes()
    assert there.told() == here.told()


def test_predictions_and_measures_agree_to_the_bit(joined: Any) -> None:
    model = vfl.train(job_of(privacy=SEEDED), TABLE, at="inprocess")
    parts = sources_of(model.job, TABLE)
    here, there = vfl.predict(model, parts), vfl.predict(model, at=joined.place)
    assert there.scores.shape == (len(TABLE), 3)
    assert there.scores.tobytes() == here.scores.tobytes()
    np.testing.assert_array_equal(there.labels, here.labels)
    measured = vfl.evaluate(model, TABLE), vfl.evaluate(model, at=joined.place)
    assert measured[0].measures == measured[1].measures


def test_a_party_that_sends_one_margin_per_record_is_refused(joined: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = PartyService.answer

    def short(self: PartyService, message: Any, vectors: Any) -> Any:
        reply, sent = answer(self, message, vectors)
        return reply, {name: vector[: len(TABLE)] if name == "vector" else vector for name, vector in sent.items()}

    monkeypatch.setattr(PartyService, "answer", short)
    with pytest.raises(FederationError, match="unexpected size"):
        vfl.train(job_of(privacy=SEEDED), at=joined.place)
