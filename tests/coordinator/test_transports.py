"""Every transport carries the same algorithm: the same seeded noise gives the same model, to the bit."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.coordinator import Coordinator, Outcome, agreed_records
from coordinator.rounds import Round
from parties.loading import load
from vfl.errors import DataError, PartyLost, SpecificationError, VersionMismatch
from vfl.job.site import Faults
from vfl.kernels import dense as kernels
from vfl.launch.sites import ray as cluster
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sites.open_site import usable_cores
from vfl.launch.sources import sources_of
from vfl.network.messages import Greeting
from vfl.planning import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from tests.coordinator.shared_parties import SharedParties

N = 14_000  # large enough that an n-vector is not sent inline
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"))
BOUNDS = {**dict.fromkeys(("a0", "a1", "a2", "b0", "b1"), (-1.0, 2.0)), "y": (0.0, 1.0)}

SOLVERS = {
    "message per party": {},
    "record cap, visits of blocks of two": {"message": "consecutive", "block_size": 2, "reserve_passes": 1},
    "record cap, both parties at once": {"parallel": 2, "block_size": 2},
    "consecutive blocks of two": {"message": "consecutive", "block_size": 2, "sampling": "importance"},
    "message per party, float32 margins": {"precision": "float32"},
    "one block a message": {"message": "block", "block_size": 3},
    "τ-nice": {"sampling": "nice", "tau": 2, "block_size": 1},
    "full": {"sampling": "full", "block_size": 2},
    "joint steps": {"joint": True},
}

# Solvers whose parties load the same columns as those of SkGD.
OTHERS: dict[str, Any] = {
    "CD": vfl.solvers.CD(passes=3),
    "GCD, GS-s": vfl.solvers.GCD(rule="GS-s", rounds=8),
    "GCD, GS-q": vfl.solvers.GCD(rule="GS-q", rounds=8),
    "GCD, GS-r": vfl.solvers.GCD(rule="GS-r", rounds=8),
    "GD": vfl.solvers.GD(passes=3),
    "SGD": vfl.solvers.SGD(passes=2, batch_size=700),
    "SVRG": vfl.solvers.SVRG(passes=2, batch_size=700),
    "SCD": vfl.solvers.SCD(passes=2, batch_size=700),
}


def table(n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    X = rng.uniform(-1.5, 2.5, (n, 5))  # some of it outside the bounds
    columns = {name: X[:, j] for j, name in enumerate(PARTITION.features)}
    return columns | {"y": (X[:, 0] - X[:, 3] + rng.logistic(size=n) > 0).astype(int)}


def job(
    *, loss: str = "logistic", private: bool = True, seed: int = 11, precision: str = "float64", **solver: Any
) -> vfl.Job:
    return vfl.Job(
        precision=precision,
        partition=PARTITION,
        loss=loss,
        penalty=vfl.ElasticNet(1e-3),
        bounds={k: b for k, b in BOUNDS.items() if loss == "squared" or k != "y"},
        privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(seed)) if private else None,
        solver=vfl.SkGD().changed(**({"passes": 3} | solver)),
    )


def drive(coordinator: Coordinator, spec: vfl.Job) -> tuple[list[Round], Outcome]:
    *events, outcome = coordinator.stream(spec)
    return [event for event in events if isinstance(event, Round)], outcome


def in_process(spec: vfl.Job, data: Any, **options: Any) -> tuple[list[Round], Outcome]:
    parties = {name: load(spec.for_party(name), source) for name, source in sources_of(spec, data).items()}
    return drive(Coordinator(InProcessTransport(parties), **options), spec)


def releases_of(went_by: list[Round]) -> list[np.ndarray]:
    return [u for record in went_by for u in record.released]


@pytest.fixture
def on_ray(parties_on_ray: SharedParties) -> Any:
    """Make a transport to actors that have just loaded the table, because parties remember what a run has paid for."""
    return parties_on_ray.transport(job(), table())


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_ray_and_in_process_agree_to_the_bit(parties_on_ray: SharedParties, solver: dict[str, Any]) -> None:
    spec = job(**solver)
    there = drive(Coordinator(parties_on_ray.transport(spec, table())), spec)
    here = in_process(spec, table())
    for u, v in zip(releases_of(here[0]), releases_of(there[0]), strict=True):
        assert u.tobytes() == v.tobytes()
    assert here[1].w.tobytes() == there[1].w.tobytes()
    assert here[1].statement == there[1].statement


@pytest.mark.parametrize("near", [True, False], ids=["lent", "stored"])
def test_vectors_in_shared_memory_and_in_the_store_of_ray_are_the_same(
    on_ray: Any, monkeypatch: pytest.MonkeyPatch, near: bool
) -> None:
    """Parties of other machines get vectors through the object store. Vectors that margins keep do not change later."""
    spec = job(parallel=2, block_size=2)
    monkeypatch.setattr(on_ray, "_near", None if near else frozenset())
    here, there = in_process(spec, table()), drive(Coordinator(on_ray), spec)
    assert on_ray._near == (set(PARTITION.parties) if near else set())
    for u, v in zip(releases_of(here[0]), releases_of(there[0]), strict=True):
        assert u.tobytes() == v.tobytes()


@pytest.mark.parametrize("name", OTHERS)
def test_ray_and_every_other_solver_agree_to_the_bit(on_ray: Any, name: str) -> None:
    spec = replace(job(), solver=OTHERS[name], penalty=vfl.L2(0.1))
    here, there = in_process(spec, table()), drive(Coordinator(on_ray), spec)
    assert here[1].w.tobytes() == there[1].w.tobytes()
    assert here[1].statement == there[1].statement


@pytest.mark.parametrize("private", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["seeded", "no noise"])
def test_the_public_call_on_ray_agrees_to_the_bit(local_ray: Any, private: bool) -> None:
    """`vfl.train` from end to end, with the coordinator in an actor of its own; a small n is sent inline.

    Two parties run on a user's Ray that has one CPU left.
    """

    @local_ray.remote(num_cpus=7)
    class Busy:
        def here(self) -> None:
            pass

    spec, data, busy = job(loss="squared", private=private), table(400), Busy.remote()
    local_ray.get(busy.here.remote(), timeout=60)
    watched: dict[str, list[Any]] = {"ray": [], "inprocess": []}
    results = {e: vfl.train(spec, data, at=e, watch=seen.append) for e, seen in watched.items()}
    local_ray.kill(busy)
    assert results["ray"].coef_.tobytes() == results["inprocess"].coef_.tobytes()
    assert results["ray"].intercept_ == results["inprocess"].intercept_
    assert results["ray"].certificate == results["inprocess"].certificate
    assert [type(event) for event in watched["ray"]] == [type(event) for event in watched["inprocess"]]
    assert isinstance(watched["ray"][0], Plan)
    went_by = {engine: [event for event in seen if isinstance(event, Round)] for engine, seen in watched.items()}
    for u, v in zip(releases_of(went_by["ray"]), releases_of(went_by["inprocess"]), strict=True):
        assert u.tobytes() == v.tobytes()


def datasets(tables: dict[str, Any]) -> dict[str, Any]:
    """Return Ray datasets whose blocks end where no shard does: Arrow tables at one party, pandas frames at the other."""
    import ray.data

    bank, telco = tables["bank"], tables["telco"]
    return {
        "bank": ray.data.from_arrow([bank.slice(0, 70), bank.slice(70, 0), bank.slice(70)]),
        "telco": ray.data.from_pandas([telco.slice(0, 41).to_pandas(), telco.slice(41).to_pandas()]),
    }


def _tested(result: vfl.Result, hypothesis: str) -> Any:
    """Return a test, or the sentence by which its standard errors are withheld."""
    try:
        return result.test(hypothesis)
    except SpecificationError as error:
        return str(error)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # in Ray's own code
@pytest.mark.parametrize("intervals", [pytest.param(True, marks=pytest.mark.slow), "subsamples"])
def test_intervals_in_row_shards_of_datasets_on_ray_agree_to_the_bit(local_ray: Any, intervals: bool | str) -> None:
    """Shards on Ray read blocks of datasets; in process they read tables."""
    privacy = vfl.Privacy(epsilon=45.0, noise=vfl.SeededNoise(5))
    spec = replace(job(loss="squared"), solver=vfl.SkGD(passes=2), penalty=vfl.penalties.NoPenalty(), privacy=privacy)
    spec = replace(spec, intervals=intervals)
    tables = sources_of(spec, table(403))
    here, there = (
        vfl.train(spec, data, at=at)
        for data, at in ((tables, "inprocess"), (datasets(tables), vfl.Ray(shards=2, pin="never")))
    )
    assert here.w.tobytes() == there.w.tobytes()
    assert here.summary(0.9).to_dict() == there.summary(0.9).to_dict()
    assert here.cov_params().tobytes() == there.cov_params().tobytes()
    for hypothesis in ("b0 = 0", "a0 = 0, b0 = a1"):
        assert _tested(here, hypothesis) == _tested(there, hypothesis)
    assert here.mean_confint(table(9)).tobytes() == there.mean_confint(table(9)).tobytes()


@pytest.mark.parametrize(
    "loss",
    ["logistic", "squared", "smoothed_hinge"],
)
def test_sparse_columns_under_a_record_cap_on_ray_agree_to_the_bit(parties_on_ray: SharedParties, loss: str) -> None:
    """Blocks of two of sparse and dense parties: fused kernels of two losses, and one that has none."""
    data = table(400)
    data["a1"] = np.where(data["a0"] > 0.5, data["a1"], 0.0)
    spec = replace(job(loss=loss, block_size=2, passes=4), partition=PARTITION.changed(sparse=["bank"]))
    assert vfl.plan(spec, 400).solver.clip == "record"
    here, there = in_process(spec, data)[1], parties_on_ray.train(spec, data)
    assert here.w.tobytes() == there.w.tobytes()
    assert here.statement == there.statement


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_expanding_descend_into_its_parts_changes_only_rounding(loss: str, solver: dict[str, Any]) -> None:
    """The releases have the same keys and therefore the same noise; a contribution may round differently."""
    spec, data = job(loss=loss, **solver), table(500)
    whole, parts = in_process(spec, data), in_process(spec, data, expand=True)
    for u, v in zip(releases_of(whole[0]), releases_of(parts[0]), strict=True):
        np.testing.assert_allclose(u, v, rtol=0, atol=1e-3)  # a grid step is 10⁻⁶; the noise is about 100
    np.testing.assert_allclose(whole[1].w, parts[1].w, rtol=0, atol=1e-6)
    assert whole[1].statement == parts[1].statement
    assert [record.events for record in whole[0]] == [record.events for record in parts[0]]


def test_noise_of_the_run_depends_on_the_seed() -> None:
    """The comparisons above assume this: another seed shows in every release."""
    data = table(400)
    one, other = (releases_of(in_process(job(seed=seed), data)[0]) for seed in (1, 2))
    assert all((u != v).all() for u, v in zip(one, other, strict=True))


@pytest.mark.faults
class TestFailures:
    def test_a_partys_own_error_passes_through_unchanged(self, local_ray: Any) -> None:
        data = {"bank": {"a0": ["1", "x"], "a1": [0.0, 1.0], "a2": [0.0, 1.0]}, "telco": table(2)}
        data["telco"] = {c: data["telco"][c] for c in ("b0", "b1", "y")}
        said = []
        for engine in ("inprocess", "ray"):
            with pytest.raises(DataError) as raised:
                vfl.train(job(), data, at=engine)
            assert type(raised.value) is DataError
            said.append(str(raised.value))
        assert said[0] == said[1]
        assert "party 'bank'" in said[0]
        assert "column 'a0'" in said[0]

    def test_different_numbers_of_rows(self, local_ray: Any) -> None:
        data = {name: dict(source) for name, source in _split(table(30)).items()}
        data["telco"] = {c: v[:-1] for c, v in data["telco"].items()}
        for engine in ("inprocess", "ray"):
            with pytest.raises(DataError) as raised:
                vfl.train(job(), data, at=engine)
            assert re.search("'bank' and 'telco' hold different numbers.*id=", str(raised.value))
            assert not re.search(r"\d", str(raised.value))  # counts of records stay with their parties

    def test_another_version_is_refused(self) -> None:
        with pytest.raises(VersionMismatch, match=r"'telco' runs vfl 0\.0\.0.*install one version"):
            agreed_records({"bank": Greeting(vfl.__version__, 3), "telco": Greeting("0.0.0", 3)})

    def test_a_party_that_dies_while_loading(self, local_ray: Any) -> None:
        """The failed run leaves no actor that holds data or a CPU."""

        def free() -> float:
            return float(local_ray.available_resources().get("CPU", 0))

        def die() -> None:
            os._exit(1)

        before = free()
        with pytest.raises(PartyLost, match="'telco' died"):
            vfl.train(job(), _split(table(30)) | {"telco": die}, at="ray")
        deadline = time.monotonic() + 120
        while free() < before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert free() >= before

    def test_a_party_that_is_killed_between_rounds(self, local_ray: Any, tmp_path: Path) -> None:
        file, telco = tmp_path / "pid", _split(table(30))["telco"]

        def source() -> Any:
            file.write_text(str(os.getpid()))
            return telco

        killed = []

        def kill(event: Any) -> None:
            if isinstance(event, Round) and event.number == 3:
                os.kill(int(file.read_text()), signal.SIGKILL)
                killed.append(event)

        long = job(message="block", passes=5000)
        # A restart between two calls is found by the restarted process, which has no data.
        with pytest.raises(PartyLost, match=r"'telco' (died|was restarted)") as raised:
            vfl.train(
                long,
                _split(table(30)) | {"telco": source},
                watch=kill,
                at=vfl.Ray(faults=Faults(on_party_lost="abort")),
            )
        assert killed
        assert type(raised.value) is PartyLost
        assert raised.value.party == "telco"

    def test_a_party_that_does_not_answer_in_time(self, local_ray: Any) -> None:
        from vfl.network.shards.ray_transport import answer_of

        @local_ray.remote
        def sleep() -> None:
            time.sleep(120)  # it is cancelled below

        ref = sleep.remote()
        with pytest.raises(PartyLost, match=r"'bank' did not answer within 0\.2 s"):
            answer_of("bank", ref, 0.2)
        local_ray.cancel(ref, force=True)


def _split(whole: dict[str, np.ndarray]) -> dict[str, Any]:
    return {q: {c: whole[c] for c in PARTITION.wanted(q)} for q in PARTITION.parties}


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    """Sums do not depend on the cores of a party; another test checks that its kernels use them."""
    asked, data, each = [], table(40_000), kernels.each
    monkeypatch.setattr(kernels, "TASK", 1)

    def noted(rows: Any, n: int, cells: int, threads: int) -> Any:
        asked.append(threads)
        return each(rows, n, cells, threads)

    monkeypatch.setattr(kernels, "each", noted)
    models = []
    for cores in (1, 3):
        asked.clear()
        models.append(vfl.train(job(), data, at=vfl.InProcess(num_cpus=cores)))
        assert max(asked) == cores
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


@pytest.mark.parametrize(
    ("address", "cores", "cpus", "each"),
    [
        (None, None, 1.0, 4),  # eight cores for two parties
        (None, 3, 1.0, 3),
        ("auto", None, 1.0, 1),
        ("auto", None, 4.5, 4),
        ("auto", None, 0.0, 1),
        ("auto", 2, 4.0, 2),
    ],
)
def test_a_party_uses_the_cores_that_it_is_given(monkeypatch, address, cores, cpus, each):
    monkeypatch.setattr("vfl.launch.sites.open_site.usable_cores", lambda: 8)
    assert cluster.cores_of(vfl.Ray(address, num_cpus=cores, party_cpus=cpus), 2) == each


def test_cores_are_those_that_joblib_leaves_to_a_worker(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    assert usable_cores() == 1


SQUARED = {"loss": "squared", "solver": vfl.solvers.NoisyGram(), "bounds": {"*": (-2, 2), "y": (0, 1)}}


PAIR = {"trust": vfl.federation.Secure(dealer=None)}


@pytest.mark.parametrize(
    "options", [{}, PAIR, pytest.param(SQUARED, marks=pytest.mark.slow)], ids=["logistic", "no dealer", "squared"]
)
def test_shares_on_ray_and_in_process_agree_to_the_bit(local_ray: Any, options: dict[str, Any]) -> None:
    from tests.coordinator import shares

    spec, data = shares.job(**options), shares.table()
    ray, inprocess = (vfl.train(spec, data, at=engine) for engine in ("ray", "inprocess"))
    assert (ray.w == inprocess.w).all()
    assert any("one Ray cluster" in flag for flag in ray.certificate.flags)
    assert ray.certificate.trust == inprocess.certificate.trust


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # in Ray's own code
@pytest.mark.parametrize("shards", [1, 3])
def test_blocks_of_ray_datasets_agree_with_tables_to_the_bit(local_ray: Any, shards: int) -> None:
    tables = sources_of(job(), table(400))
    there = vfl.train(job(), datasets(tables), at=vfl.Ray(shards=shards, pin="never"))
    assert there.coef_.tobytes() == vfl.train(job(), tables, at="inprocess").coef_.tobytes()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")  # in Ray's own code
def test_datasets_of_ray_are_refused_elsewhere_and_before_they_are_computed(local_ray: Any) -> None:
    given = datasets(sources_of(job(), table(400)))
    late = given | {"bank": given["bank"].map_batches(dict)}
    for data, at, problem in (
        (late, vfl.Ray(), r"party 'bank', the Ray dataset: not computed yet, .* give dataset.materialize\(\)"),
        (given, vfl.InProcess(shards=2), "party 'bank', the Ray dataset: only Ray can read it"),
        (given["bank"], vfl.Ray(), "the Ray dataset: only Ray can read it"),
    ):
        with pytest.raises(DataError, match=problem):
            vfl.train(job(), data, at=at)
