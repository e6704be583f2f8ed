"""No run takes more rounds or bytes than its plan bounds for a link."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import vfl
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.network.kinds import to_plain, to_plain_call
from vfl.network.wire.values import serialise
from vfl.planning.cost import JOINING, Link, Transfer

N = 4000
JOBS: dict[str, dict[str, Any]] = {
    "held out": {"evaluation": vfl.Evaluation(holdout=0.25)},
    "classes": {"loss": "multinomial", "classes": (0, 1, 2)},
    "one column at a time": {"solver": vfl.SkGD(passes=3, block_size=1)},
    "on shares": {"trust": "secure", "solver": vfl.SkGD(passes=3, block_size=1)},
    "on shares, coordinate descent": {"trust": "secure", "solver": vfl.solvers.CD(passes=2)},
    "products on shares": {"trust": "secure", "solver": vfl.solvers.NoisyGram(), "loss": "squared"},
}


class Counted:
    """Rounds in sequence and bytes of a run: a message waits for the vectors that it brings and for collected answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds, self.n_bytes = 0, 0
        self._levels: dict[int, int] = {}
        self._kept: list[Any] = []
        self._constant: set[tuple[str, str, int]] = set()
        post, collect, follow = InProcessTransport._post, InProcessTransport.collect, InProcessTransport.follow

        def posting(transport: Any, call: Any) -> Any:
            posted = post(transport, call)
            own = {name: vector for name, vector in call.vectors.items() if self._travels(call.to, name, vector)}
            self.n_bytes += len(serialise(to_plain_call(call.message))) + sum(
                memoryview(vector).nbytes for vector in own.values()
            )
            level = 1 + max([self.rounds, *(self._levels.get(id(vector), 0) for vector in call.vectors.values())])
            if not call.steps:
                reply, sent = posted.answer
                self.n_bytes += len(serialise(to_plain(reply))) + sum(
                    memoryview(v).nbytes for v in (posted.vectors or sent).values()
                )
            for handle in (posted, *posted.vectors.values()):
                self._levels[id(handle)] = level
                self._kept.append(handle)
            return posted

        def collecting(transport: Any, posted: Any) -> Any:
            self._wait(posted)
            return collect(transport, posted)

        def following(transport: Any, posted: Any) -> Any:
            self._wait(posted)
            return (yield from follow(transport, posted))

        monkeypatch.setattr(InProcessTransport, "_post", posting)
        monkeypatch.setattr(InProcessTransport, "collect", collecting)
        monkeypatch.setattr(InProcessTransport, "follow", following)

    def _wait(self, posted: Any) -> None:
        self.rounds = max([self.rounds, *(self._levels[id(own)] for own in posted)])

    def _travels(self, to: str, name: str, vector: Any) -> bool:
        """Return False for labels and limits that the party holds already."""
        known = (to, name, id(vector))
        first = known not in self._constant
        if name in ("labels", "limits"):
            self._constant.add(known)
            self._kept.append(vector)
        return first


def table(n: int = N) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 6))
    return {f"x{j}": X[:, j] for j in range(6)} | {"y": (X[:, 0] > 0).astype(int)}


@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
@pytest.mark.parametrize("name", JOBS)
def test_a_run_stays_within_the_bounds_of_its_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = vfl.FeaturePartition({"a": ["x0", "x1"], "b": ["x2", "x3"], "c": ["x4", "x5"]}, label=("a", "y"))
    given = {"bounds": {"*": (-1, 1), "y": (0, 1)} if JOBS[name].get("loss") == "squared" else {"*": (-1, 1)}}
    job = vfl.Job(partition=partition, privacy=vfl.Privacy(epsilon=3.0), penalty=vfl.L2(1e-2), **(given | JOBS[name]))
    counted = Counted(monkeypatch)
    vfl.train(job, table(), at="inprocess")
    (bound,) = vfl.plan(job, N).transfers.values()
    assert counted.rounds <= bound.rounds <= 2 * counted.rounds + JOINING
    assert bound.n_bytes / 4 < counted.n_bytes <= bound.n_bytes


def test_an_alignment_stays_within_the_bounds_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = {"a": ["x0", "x1"], "b": ["x2", "x3"], "c": ["x4", "x5"]}
    whole = pd.DataFrame(table()).assign(id=range(N))
    data = {q: whole[["id", *own, *(["y"] if q == "a" else [])]] for q, own in parties.items()}
    partition = vfl.FeaturePartition(parties, label=("a", "y"))
    job = vfl.Job(partition=partition, bounds={"*": (-1, 1)}, privacy=vfl.Privacy(epsilon=3.0), id="id")
    counted = Counted(monkeypatch)
    vfl.align(job, data, at="inprocess")
    bound = vfl.plan(job, N).transfers["alignment"]
    assert 0 < counted.rounds <= bound.rounds
    assert bound.n_bytes / 4 < counted.n_bytes <= bound.n_bytes


def test_the_time_of_a_link() -> None:
    assert Link.of("100Mbit/20ms") == Link(1e8, 0.02)
    assert Link.of("1.5 Gbit/s / 3ms") == Link(1.5e9, 0.003)
    slow, fast = Link(1e6, 0.02), Link(1e8, 0.02)
    few, many = Transfer(10, 10**7), Transfer(80, 10**7)
    assert few.seconds(slow) > 80.0
    assert few.seconds(fast) < many.seconds(fast) < few.seconds(slow)
    assert Transfer(80, 1).seconds(fast) == pytest.approx(1.6, rel=1e-3), "80 round trips of 20 ms"
    for wrong in ("fast", "100Mbit", "0Mbit/2ms", "100MB/20ms"):
        with pytest.raises(vfl.errors.SpecificationError, match="100Mbit/20ms"):
            Link.of(wrong)


def test_the_plan_states_the_link() -> None:
    partition = vfl.FeaturePartition({"a": ["x0"], "b": ["x1"]}, label=("a", "y"))
    job = vfl.Job(partition=partition, bounds={"*": (-1, 1)}, privacy=vfl.Privacy(epsilon=3.0), id="id")
    plan = vfl.plan(job, 10**6, link="100Mbit/20ms")
    assert "100 Mbit/s, 20 ms: training: at most" in str(plan)
    assert "alignment: at most" in plan.explain()
    assert "Mbit" not in str(vfl.plan(job, 10**6))
