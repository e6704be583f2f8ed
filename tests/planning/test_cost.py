"""Predicted memory, bytes and time: against what runs take, and the paper calculation of docs/studies/cluster.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.cluster.shard_transport import ShardTransport
from coordinator.coordinator import Coordinator
from parties.loading import load
from tests.benchmarks.timing import follow
from tests.tuning.setting import job as tuning_job
from vfl.errors import SpecificationError
from vfl.launch.measuring import Echo, measure
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.launch.train import stream
from vfl.network.shards.lending import Borrower, Lender
from vfl.planning import cheapest, plan
from vfl.planning.cost import (
    CLUSTER,
    FEDERATION,
    INPROCESS,
    MESSAGE_CALLS,
    MESSAGE_WARMUP,
    RAY,
    Machine,
    Sizes,
    advice,
    cost_of,
    duration,
    size,
    stored_at,
    table,
)
from vfl.planning.run_plan import sizes_of
from vfl.privacy.ledger.composition import accounting_for, plan_cost
from vfl.solvers import SOLVERS

if TYPE_CHECKING:
    from pathlib import Path

PARTIES = {"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1", "b2", "b3", "b4"]}


SEEDED = vfl.Privacy(epsilon=1.0, delta=1e-9, noise=vfl.SeededNoise(1))


def job(*, private: bool = True, **options: Any) -> vfl.Job:
    names = [name for columns in PARTIES.values() for name in columns]
    return vfl.Job(
        partition=vfl.FeaturePartition(PARTIES, label=("telco", "y")),
        bounds=dict.fromkeys([*names, *["y"] * (options.get("loss") == "squared")], (-1.0, 1.0)),
        **{"solver": vfl.SkGD(passes=4), "privacy": SEEDED if private else None} | options,
    )


def records(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    X = {name: rng.uniform(-1, 1, n) for columns in PARTIES.values() for name in columns}
    return X | {"y": (X["a0"] > 0).astype(int)}


class Counting(InProcessTransport):
    """Counts bytes as transports between processes do: without shards, with shards, and those that parties send."""

    def __init__(self, parties: Any, spec: vfl.Job) -> None:
        super().__init__(parties)
        self.shards = ShardTransport({}, 1.0)
        self.shards.targets = spec.targets
        self.sharded = self.sent = 0

    def ask(self, shares: Any, records: Any, key: Any) -> Any:
        replies = super().ask(shares, records, key)
        for name, reply in replies.items():
            self.sharded += self.shards.moved(name, shares[name], answered=reply.vector is not None)
            self.sent += 0 if reply.vector is None else reply.vector.nbytes
        return replies


FOUR = {"passes": 4}
COUNTED: tuple[dict[str, Any], ...] = (
    {"solver": vfl.SkGD().changed(**FOUR)},
    {"solver": vfl.SkGD().changed(**FOUR), "precision": "float32"},
    {"solver": vfl.SkGD().changed(**FOUR, details=vfl.solvers.Details(tol=0.0)), "private": False},
    {"solver": vfl.SkGD().changed(**FOUR, details=vfl.solvers.Details(message="block"))},
    {"solver": vfl.SkGD().changed(**FOUR, details=vfl.solvers.Details(parallel=2))},
    {"solver": vfl.SkGD(passes=10), "loss": "squared", "privacy": replace(SEEDED, epsilon=100.0)},
    {"solver": vfl.SkGD().changed(**FOUR), "loss": "multinomial", "classes": (0, 1)},
    {"solver": vfl.SkGD().changed(**FOUR), "evaluation": vfl.Evaluation(holdout=0.3)},
    {"solver": vfl.solvers.GD(passes=12)},
    {"solver": vfl.solvers.GCD(rounds=10)},
)


@pytest.mark.parametrize("options", COUNTED)
def test_bytes_are_within_a_tenth(options: dict[str, Any]) -> None:
    """The bytes that all parties send, and those that they receive."""
    spec, n = job(**options), 400
    sources = sources_of(spec, records(n))
    transport = Counting({name: load(spec.for_party(name), source) for name, source in sources.items()}, spec)
    list(Coordinator(transport).stream(spec))
    planned = plan(spec, n)
    received = transport.traffic.n_bytes - transport.sent
    assert planned.traffic == (pytest.approx(received, rel=0.1), pytest.approx(transport.sent, rel=0.1))
    if spec.split is None:
        assert n * transport.sharded == transport.traffic.n_bytes
    *parties, coordinator = cost_of(sizes_of(planned), Machine(), RAY).nodes
    assert sum(node.received for node in parties) == coordinator.sent == planned.traffic[0]
    assert sum(node.sent for node in parties) == coordinator.received - 8 * n == planned.traffic[1]


def test_float32_margins_take_half_the_bytes() -> None:
    """Those of both ways of a message. Labels, limits, norms and a rebuild of the margins stay float64."""
    n, made = 400, []
    for kind in ("float64", "float32"):
        spec = job(precision=kind)
        sources = sources_of(spec, records(n))
        transport = Counting({name: load(spec.for_party(name), source) for name, source in sources.items()}, spec)
        list(Coordinator(transport).stream(spec))
        made.append((transport.traffic.n_bytes - transport.sent, transport.sent, plan(spec, n)))
    (received, sent, whole), (less, back, half) = made
    visits = 4 * len(PARTIES)
    assert received - less == sent - back == visits * 4 * n
    assert [a - b for a, b in zip(whole.traffic, half.traffic, strict=True)] == [visits * 4 * n] * 2
    costs = [cost_of(sizes_of(planned), Machine(), RAY) for planned in (whole, half)]
    assert costs[1].parts["vectors"] == 0.5 * costs[0].parts["vectors"]


@pytest.mark.slow
@pytest.mark.parametrize("n", [3_000, 300_000])
def test_the_time_of_a_pass_is_within_a_factor_of_2(n: int) -> None:
    machine, spec, table_ = measure(ray=False), job(solver=vfl.SkGD(passes=20)), records(n)
    predicted = cost_of(sizes_of(plan(spec, n)), machine).seconds
    taken = min(follow(stream(spec, table_, at="inprocess")).processor for _ in range(3))
    assert 0.5 < predicted / taken < 2.0


MEMORY = """
import sys
import numpy as np, pyarrow as pa, vfl
from tests.benchmarks.large import peak
from tests.planning.test_cost import PARTIES, job
n = int(sys.argv[1])
rng = np.random.default_rng(0)
X = {name: rng.uniform(-1, 1, n) for columns in PARTIES.values() for name in columns}
vfl.train(job(solver=vfl.SkGD(passes=2)), pa.table(X | {"y": (X["a0"] > 0) * 1.0}))
print(peak() - 8 * n * 9)
"""


@pytest.mark.slow
def test_the_memory_of_a_process_is_within_a_factor_of_2() -> None:
    """The table that this process makes for the test is taken off."""
    n = 3_000_000
    said = subprocess.run(
        [sys.executable, "-c", MEMORY, str(n)], capture_output=True, text=True, check=True, timeout=300
    )
    predicted = cost_of(sizes_of(plan(job(solver=vfl.SkGD(passes=2)), n)), Machine()).memory
    assert 0.5 < predicted / float(said.stdout) < 2.0


def test_costs_add_up() -> None:
    sizes = sizes_of(plan(job(), 10_000))
    alone, apart = cost_of(sizes, Machine()), cost_of(sizes, Machine(), RAY)
    assert alone.seconds < apart.seconds
    assert alone.parts["messages"] == alone.parts["vectors"] == 0.0
    assert apart.memory == sum(node.memory for node in apart.nodes)
    assert cost_of(sizes, Machine(), CLUSTER).memory == max(n.memory for n in cost_of(sizes, Machine(), CLUSTER).nodes)
    halved = cost_of(replace(sizes, n_records=5_000), Machine(), RAY)
    assert halved.parts["kernels"] == pytest.approx(apart.parts["kernels"] / 2)
    assert cost_of(sizes, Machine(), RAY, threads=2).parts["kernels"] == pytest.approx(apart.parts["kernels"] / 2)
    assert cost_of(sizes, Machine(), RAY, processes=1).start < apart.start
    assert cost_of(sizes, Machine(), CLUSTER, shards=4).parts["vectors"] == pytest.approx(
        cost_of(sizes, Machine(), CLUSTER).parts["vectors"] / 4
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transport": "pigeon"}, "transport must be one of inprocess, ray, cluster, federation, not 'pigeon'"),
        ({"shards": 2}, "only Ray has shards"),
        ({"transport": FEDERATION, "shards": 2}, "only Ray has shards"),
        ({"transport": CLUSTER, "shards": 0}, "shards must be a whole number of at least 1"),
        ({"threads": 1.5}, "threads must be a whole number, not 1.5"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        cost_of(sizes_of(plan(job(), 100)), Machine(), **options)


def passing(exchanges: int) -> dict[str, int]:
    """Return the sizes of a run with one message per exchange, without the bytes, which no memory depends on."""
    return {"exchanges": exchanges, "messages": exchanges, "received": 0, "sent": 0}


def test_a_job_that_outgrows_the_machine_is_told_a_placement() -> None:
    sizes = Sizes(n_records=10**8, widths={"a": 40, "b": 40}, updates=80, releases=80, **passing(2))
    assert advice(sizes, Machine(memory=1e12)) == ()
    cluster = advice(sizes, Machine(memory=64e9))
    assert re.search("73.8 GB .* 64 GB", cluster[0])
    assert "a Ray cluster of 3 such machines" in cluster[1]
    assert 'precision = "float32"' in advice(sizes, Machine(memory=40e9))[1]
    assert "over 9 such machines, [ray] shards = 9" in advice(sizes, Machine(memory=6e9))[1]


def test_the_number_of_machines_advised_is_enough() -> None:
    sizes = Sizes(n_records=10**8, widths={"a": 40, "b": 40}, updates=80, releases=80, **passing(2))
    assert cost_of(sizes, Machine(), CLUSTER, shards=9).memory < 0.8 * 6e9
    assert cost_of(sizes, Machine(), CLUSTER, shards=8).memory > 0.8 * 6e9


def test_a_billion_records_on_a_hundred_machines() -> None:
    """Ten parties of 100 columns, each over ten machines: the calculation of docs/studies/cluster.md."""
    widths = {f"party{k}": 100 for k in range(10)}
    sizes = Sizes(n_records=10**9, widths=widths, updates=100 * 1000, releases=100 * 1000, **passing(1000), itemsize=4)
    cost = cost_of(sizes, Machine(), CLUSTER, shards=10, threads=16)
    assert cost.nodes[0].memory == pytest.approx(48.2e9, rel=0.01)
    assert cost.parts["kernels"] == pytest.approx(100 * 1000 * 1e8 * 2e-9 / 16)
    assert cost.parts["vectors"] == pytest.approx(100 * 10 * 16e8 / 0.62e9)
    assert cost.seconds == pytest.approx(4396, rel=0.01)


def test_constants_are_stored_on_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Machine.here().measured == ""
    mine = Machine(cores=3, trip_seconds=0.5, measured="1.2.3")
    assert mine.store() == stored_at() == tmp_path / "vfl" / "machine.json"
    assert Machine.here() == mine
    stored_at().write_text(json.dumps({"unknown": 1}))
    assert Machine.here().measured == ""
    stored_at().write_text("{")
    assert Machine.here().measured == ""


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True, "fast"])
def test_constants_are_positive_numbers(value: Any) -> None:
    with pytest.raises(SpecificationError, match="trip_seconds must be"):
        Machine(trip_seconds=value)


def test_a_table_names_nodes_and_parts() -> None:
    said = table(cost_of(sizes_of(plan(job(), 10_000)), Machine(), RAY))
    assert [line.split()[0] for line in said.splitlines()[:4]] == ["ray:", "bank", "telco", "coordinator"]
    assert "kernels" in said


def test_the_first_reading_and_the_warmup_count_once() -> None:
    sizes, more = sizes_of(plan(job(), 10_000)), sizes_of(plan(job(solver=vfl.SkGD(passes=9)), 10_000))
    first = cost_of(sizes, Machine()).parts["first"]
    assert first == pytest.approx(2 * sum(sizes.widths.values()) * 10_000 * Machine().update_seconds)
    assert cost_of(more, Machine()).parts["first"] == first
    assert cost_of(more, Machine()).parts["warmup"] == Machine().warmup_seconds
    each = MESSAGE_WARMUP * Machine().warmup_seconds
    assert cost_of(more, Machine(), RAY).parts["warmup"] == pytest.approx(3 * each)
    assert cost_of(more, Machine(), RAY, processes=1).parts["warmup"] == pytest.approx(2 * each)
    assert cost_of(more, Machine(), RAY, shards=2).parts["warmup"] == pytest.approx(9 * each)
    assert cost_of(sizes, Machine(), RAY, threads=4).parts["first"] == pytest.approx(first / 4)


def test_shards_of_one_machine_share_it() -> None:
    """Their records add up to those of one shard; each of the processes has its own memory, and calls go to all of them."""
    sizes, machine = sizes_of(plan(job(), 10**6)), Machine()
    one, two = cost_of(sizes, machine, RAY), cost_of(sizes, machine, RAY, shards=2)
    assert {node.name: node.count for node in two.nodes} == {
        "bank, each of 2 shards": 2,
        "telco, each of 2 shards": 2,
        "main actors": 3,
        "coordinator, each of 2 shards": 2,
    }
    assert two.memory == pytest.approx(one.memory + 6 * machine.worker_bytes)
    assert {name for name in one.parts if one.parts[name] != two.parts[name]} == {"warmup", "calls"}
    assert two.parts["calls"] == 2 * (sizes.releases + MESSAGE_CALLS * sizes.messages) * machine.call_seconds
    parallel = cost_of(sizes, machine, RAY, shards=2, threads=2).parts
    assert all(parallel[part] == one.parts[part] / 2 for part in ("kernels", "vectors", "margins"))


def test_organisations_need_a_machine_each_and_exchange_vectors_over_tls() -> None:
    sizes, machine = sizes_of(plan(job(), 10**6)), Machine()
    cost = cost_of(sizes, machine, FEDERATION)
    assert cost.memory == max(node.memory for node in cost.nodes)
    assert cost.parts["vectors"] == sizes.exchanges * 16e6 / machine.organisation_bytes_a_second
    assert cost.parts["messages"] == sizes.messages * machine.organisation_trip_seconds


def test_the_rate_of_vectors_is_that_of_memory_that_processes_share() -> None:
    """The actor copies a lent vector out and lends the copy, as a party does; other vectors it returns as they are."""
    vector, echo, lender = np.arange(5.0), Echo(), Lender()
    assert echo.answer(vector) is vector
    lent = lender.lend(vector)
    if lent is None:
        pytest.skip("this machine cannot share memory")
    found = Borrower().borrow(echo.answer(lent))
    assert found is not None
    assert np.array_equal(found, vector)


def test_units() -> None:
    assert [size(x) for x in (1e3, 2.5e6, 3e9, 4e12)] == ["1 kB", "2.5 MB", "3 GB", "4 TB"]
    assert [duration(x) for x in (1.0, 150.0, 8000.0, 2e5)] == ["1 s", "2.5 min", "2.22 h", "2.31 days"]


def test_a_machine_is_measured_without_ray() -> None:
    found = measure(ray=False)
    assert found.measured == vfl.__version__
    assert 1e-11 < found.update_seconds < 1e-6
    assert found.trip_seconds == Machine().trip_seconds
    assert cost_of(sizes_of(plan(job(), 1000)), found, INPROCESS).seconds > 0.0


@pytest.mark.parametrize("name", sorted(set(SOLVERS) - {"NoisyGram"}))
@pytest.mark.parametrize("delta", [1e-6, None])
def test_a_job_is_refused_before_its_n_is_known_only_if_every_n_costs_too_much(name: str, delta: float | None) -> None:
    spec = tuning_job(solver=SOLVERS[name](), evaluation=None, privacy=vfl.Privacy(epsilon=1.0, delta=delta))
    least = cheapest(spec)  # raises for no job that some n lets run
    for n_records in (300, 100_000):
        made = plan(spec, n_records)
        way = accounting_for(made.releases)
        assert least is None or plan_cost(least.releases, way) <= plan_cost(made.releases, way) * (1 + 1e-12)
