"""Row shards: the same model to the bit for every number of shards, in this process and on Ray."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
import scipy.sparse

import vfl
from coordinator.coordinator import Coordinator, Outcome
from coordinator.rounds import Lost, Round
from coordinator.states.linear_predictors import StateLost
from coordinator.states.shards import LinearPredictorShards, ShardLinearPredictors
from parties import loading
from parties.loading import load
from parties.rows import Rows
from parties.storage.dense import Columns
from tests.coordinator.test_transports import PARTITION, SOLVERS, job, table
from vfl.base.losses import Logistic
from vfl.base.problem import Block
from vfl.errors import DataError, PartyLost, PrivacyError, SpecificationError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.network.shards import Each, LocalGroup, cut
from vfl.network.shards.serving import PipeGroup
from vfl.privacy.geometry import Clip
from vfl.queries import Descend, Forward, Records, Reply, Step
from vfl.queries.protocol import Derivative

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 403  # divisible by none of the numbers of shards
SEEDED = vfl.Privacy(epsilon=2.0, noise=vfl.SeededNoise(5))
PRECISE = vfl.Privacy(epsilon=45.0, noise=vfl.SeededNoise(5))
DUAL = {"penalty": vfl.L2(1e-1), "intercept": False}
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "CD": (vfl.solvers.CD(passes=2), {}),
    "SkGD, sums of what its cap cuts": (vfl.SkGD(passes=3, details=vfl.solvers.Details(excess_share=0.2)), {}),
    "SkGD, joint steps": (vfl.SkGD(passes=3, joint=True), {"privacy": replace(SEEDED, epsilon=45.0)}),
    "SkGD, curves": (vfl.SkGD(passes=2), {"columns": {"*": vfl.Curve(4)}}),
    "SkGD, intervals": (
        vfl.SkGD(passes=2),
        {"penalty": vfl.penalties.NoPenalty(), "privacy": PRECISE, "intervals": True},
    ),
    "SkGD, subsamples": (
        vfl.SkGD(passes=2),
        {"loss": "squared", "penalty": vfl.penalties.NoPenalty(), "privacy": PRECISE, "intervals": "subsamples"},
    ),
    "GCD": (vfl.solvers.GCD(rounds=4), {"penalty": vfl.L1(1e-3)}),
    "GD": (vfl.solvers.GD(passes=3), {}),
    "SVRG, public batches": (vfl.solvers.SVRG(passes=2, batch_size=100, sampling="disjoint"), {}),
    "SCD, both variables": (vfl.solvers.SCD(passes=1, batch_size=100, sampling="disjoint", release="both"), DUAL),
    "output perturbation": (vfl.solvers.OutputPerturbation(tolerance=0.1), {"penalty": vfl.L2(1.0)}),
    "noisy Gram": (vfl.solvers.NoisyGram(constant=False), {"loss": "squared", "penalty": vfl.L2(1e-2)}),
}


SECRET = {
    "SGD": (vfl.solvers.SGD(passes=1, batch_size=100, sampling="poisson"), {}),
    "SCD": (vfl.solvers.SCD(passes=1, batch_size=100, sampling="poisson"), DUAL),
}


def trained(spec: vfl.Job, data: Any, shards: int, engine: str = "inprocess", **options: Any) -> vfl.Result:
    at = vfl.InProcess(shards=shards) if engine == "inprocess" else vfl.Ray(shards=shards, pin="never")
    return vfl.train(spec, data, at=at, **options)


def same(
    spec: vfl.Job, data: Any, *, shards: tuple[int, ...] = (2, 3, 5), seen: Callable[..., Any] | None = None
) -> None:
    """Check that all releases of a run are the same to the bit."""
    runs = [trained(spec, data, s) for s in (1, *shards)]
    for other in runs[1:]:
        assert other.coef_.tobytes() == runs[0].coef_.tobytes()
        assert other.intercept_ == runs[0].intercept_
        assert other.certificate == runs[0].certificate
        if seen is not None:
            assert seen(other) == seen(runs[0])


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_the_model_of_skgd_is_the_same_for_every_number_of_shards(solver: dict[str, Any]) -> None:
    same(job(**solver), table(N), shards=(3, 5))


@pytest.mark.parametrize("solver", OTHERS.values(), ids=OTHERS)
@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_the_models_of_all_solvers(solver: tuple[Any, dict[str, Any]]) -> None:
    own, options = solver
    spec = replace(job(loss=options.get("loss", "logistic")), **({"solver": own, "privacy": SEEDED} | options))
    same(spec, table(N), shards=(2, 5))


@pytest.mark.slow
@pytest.mark.parametrize("solver", SECRET.values(), ids=SECRET)
@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_a_secret_sample_is_the_same_for_every_number_of_shards(solver: tuple[Any, dict[str, Any]]) -> None:
    """Slow because the plan searches for the noise of sampled releases."""
    own, options = solver
    same(replace(job(), **({"solver": own, "privacy": SEEDED} | options)), table(N), shards=(2, 5))


@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_a_model_without_privacy_agrees_to_rounding() -> None:
    whole, shards = (trained(job(private=False), table(N), s) for s in (1, 4))
    np.testing.assert_allclose(shards.coef_, whole.coef_, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_held_out_records_and_their_evaluation() -> None:
    """The thresholds of a group are chosen on one half of the held-out records, by their positions among all of them."""
    data = table(N) | {"sex": np.where(np.arange(N) % 3 == 0, "f", "m")}
    partition = vfl.FeaturePartition(
        {"bank": ["a0", "a1", "a2"], "telco": ["b0", "b1"]}, label=("telco", "y"), groups={"bank": ["sex"]}
    )
    spec = replace(
        job(),
        partition=partition,
        columns={"sex": vfl.Categorical(["f", "m"])},
        privacy=SEEDED,
        evaluation=vfl.Evaluation(
            holdout=0.3, fairness=vfl.Fairness(group="sex", bound=False, threshold_per_group=True), epsilon=1.0
        ),
    )
    same(spec, data, seen=lambda result: repr(result.findings))


def test_sparse_columns() -> None:
    rng = np.random.default_rng(0)
    X = {
        party: scipy.sparse.random_array((N, size), density=0.2, rng=rng) for party, size in (("bank", 3), ("telco", 2))
    }
    y = scipy.sparse.csc_array((np.arange(N) % 3 == 0).astype(float).reshape(-1, 1))
    data = {"bank": X["bank"], "telco": scipy.sparse.hstack([X["telco"], y])}
    same(
        replace(
            job(),
            partition=PARTITION.changed(sparse=["bank", "telco"]),
            bounds=dict.fromkeys(PARTITION.features, (0.0, 1.0)),
        ),
        data,
    )


def written(folder: Path, kind: str, columns: dict[str, Any]) -> Path:
    """Write a party's columns; the parts of a folder and the row groups of a file do not end where shards do."""
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    frame, path = pa.table(columns), folder / f"{next(iter(columns))}.{kind}"
    match kind:
        case "csv":
            pacsv.write_csv(frame, path)
            path.write_text(path.read_text().replace("\n", "\n\n", 3))  # blank lines are no records
        case "feather":
            feather.write_feather(frame, path, chunksize=37)
        case "parquet":
            pq.write_table(frame, path, row_group_size=51)
        case "folder":
            path.mkdir()
            for k, (start, size) in enumerate(((0, 120), (120, 0), (120, N - 120))):
                pq.write_table(frame.slice(start, size), path / f"{k}.parquet", row_group_size=70)
        case "npy":
            np.save(path, np.column_stack(list(columns.values())).astype(float))
    return path


@pytest.fixture(scope="module")
def expected() -> bytes:
    return trained(job(), table(N), 1).coef_.tobytes()


@pytest.mark.parametrize("kind", ["csv", "feather", "parquet", "folder", "npy"])
def test_a_shard_reads_its_rows_of_a_source(kind: str, tmp_path: Path, expected: bytes) -> None:
    columns = table(N)
    own = {"bank": PARTITION.columns("bank"), "telco": (*PARTITION.columns("telco"), "y")}
    sources = {party: written(tmp_path, kind, {name: columns[name] for name in names}) for party, names in own.items()}
    assert trained(job(), sources, 4).coef_.tobytes() == expected


@pytest.mark.parametrize("kind", ["csv", "folder"])
def test_a_file_that_changes_between_shards_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that moved from the first shard's range to the second's would be in both."""
    columns, read = table(N), loading.load_rows
    path = written(tmp_path, kind, {name: columns[name] for name in PARTITION.columns("bank")})

    def moving(*arguments: Any, **options: Any) -> Rows:
        rows = read(*arguments, **options)
        file = path if path.is_file() else path / "0.parquet"
        file.touch()
        return rows

    monkeypatch.setattr(loading, "load_rows", moving)
    assert load(job().for_party("bank"), str(path)).n_records == N
    with pytest.raises(DataError, match=r"'bank', file .*: the source changed while"):
        load(job().for_party("bank"), str(path), shards=2)


class Restarting(LocalGroup):
    """Shards of the margins in this process, of which one is restarted without its state before some call.

    silent : the restart is noticed by the next call to the shard, else by this one. A call that begins is made when its answers
        are waited for, so that a test sees what the coordinator does before them.
    """

    def __init__(self, moment: int, *, silent: bool) -> None:
        super().__init__([ShardLinearPredictors() for _ in range(3)])
        self.calls, self._moment, self._silent = 0, moment, silent

    def begin(self, method: str, *arguments: Any) -> Callable[[], list[Any]]:
        return partial(self.ask, method, *arguments)

    def start(self, method: str, *arguments: Any) -> Each:
        self.calls += 1
        if self.calls == self._moment:
            self.members = (self.members[0], ShardLinearPredictors(), self.members[2])
            if not self._silent:
                raise StateLost("a shard of the margins died")
        return super().start(method, *arguments)


def of_shards(spec: vfl.Job, moment: int, *, silent: bool = False, group: Any = None) -> tuple[Any, list[Any], Outcome]:
    parties = {name: load(spec.for_party(name), own, shards=3) for name, own in sources_of(spec, table(N)).items()}
    group = group or Restarting(moment, silent=silent)
    made = Coordinator(InProcessTransport(parties), margins=partial(LinearPredictorShards, group))
    *events, outcome = made.stream(spec)
    return group, events, outcome


RESTORED = {
    "record cap, held-out records": {"evaluation": vfl.Evaluation(holdout=0.3, epsilon=1.0)},
    "both parties at once": {"solver": vfl.SkGD(passes=2, details=vfl.solvers.Details(parallel=2), block_size=2)},
    "SVRG": {"solver": vfl.solvers.SVRG(passes=3, batch_size=200, sampling="disjoint"), "penalty": vfl.L2(0.1)},
}


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", RESTORED.values(), ids=RESTORED)
@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_a_lost_shard_of_the_margins_is_rebuilt_at_any_moment(options: dict[str, Any], every: int) -> None:
    """The model and the measures are those of a run without a loss: its releases are the same."""
    spec = replace(job(passes=2), privacy=SEEDED, **options)
    whole, _, expected = of_shards(spec, 0)
    assert (
        expected.w.tobytes()
        == of_shards(spec, 0, group=LocalGroup([ShardLinearPredictors() for _ in range(3)]))[2].w.tobytes()
    )
    for moment in range(2, whole.calls + 1, every):  # the first call loads the labels, before the run has begun
        for silent in (True, False):
            group, events, outcome = of_shards(spec, moment, silent=silent)
            lost = [event for event in events if isinstance(event, Lost)]
            if group.calls == whole.calls:
                assert moment == whole.calls  # nothing asked for the state after its loss
                continue
            assert {event.party for event in lost} == {""}
            assert outcome.w.tobytes() == expected.w.tobytes()
            assert repr(outcome.findings) == repr(expected.findings)


def test_a_release_that_needs_a_lost_shard_is_charged_again() -> None:
    """True noise is drawn anew for the repetition, so the lost attempt stays charged."""
    spec = replace(job(passes=2), privacy=vfl.Privacy(epsilon=2.0))
    whole, _, _ = of_shards(spec, 0)
    _, events, outcome = of_shards(spec, whole.calls // 2)
    (lost,) = [event for event in events if isinstance(event, Lost)]
    assert {key.attempt for key, _ in lost.charges} <= {0}
    again = next(event for event in events if isinstance(event, Round) and event.number == lost.number)
    assert {key.attempt for key, _ in again.charges} <= {1}
    assert outcome.statement.epsilon <= 2.0


def test_margins_that_took_in_a_part_of_a_vector_count_as_lost() -> None:
    """A party's memory may be gone for one shard of the margins only, so no shard can be kept as it is."""
    group = Restarting(0, silent=True)
    margins = LinearPredictorShards(group, Each(np.ones(n) for n in (4, 4, 4)), None, 12)
    group.begin = lambda *_: partial(group.fetch, None)  # type: ignore[method-assign]
    group.fetch = lambda _: _raise(PartyLost("'bank' was cut off", "bank"))  # type: ignore[method-assign]
    margins.take(Forward({}), {"bank": Reply(vector=np.ones(12))})
    with pytest.raises(StateLost, match="not be updated: 'bank'"):
        margins.records(Forward({}))


def _raise(error: Exception) -> NoReturn:
    raise error


def test_records_are_divided_evenly() -> None:
    assert [(shard.start, shard.stop) for shard in cut(7, 3)] == [(0, 2), (2, 4), (4, 7)]
    with pytest.raises(SpecificationError, match="5 shards"):
        cut(4, 5)


@pytest.mark.parametrize("shards", [0, -1, 1.5, True, "2"])
def test_a_wrong_number_of_shards_is_refused(shards: Any) -> None:
    with pytest.raises(SpecificationError, match="shards must be"):
        vfl.Ray(shards=shards)


def test_a_party_in_shards_holds_no_rows_itself() -> None:
    columns = table(N)
    party = load(job().for_party("bank"), {name: columns[name] for name in PARTITION.columns("bank")}, shards=2)
    assert party.n_records == N
    with pytest.raises(DataError, match="holds its rows in shards"):
        _ = party.rows


def test_a_shard_checks_the_grid_for_all_records() -> None:
    """A sum of few records that fits in 64 bits is refused if the sum of all records might not."""
    columns = Columns(np.ones((4, 1), order="F"), ("a",))
    query = Descend(
        Derivative(Logistic()),
        {"bank": (Step(Block(0, "bank", 0, 1, 0), np.zeros(1), np.ones(1), Clip(1.0, 1), np.add, None),)},
        {"bank": np.zeros(1)},
        recomputes=False,
    )
    for n_trained, refused in ((4, False), (2**50, True)):
        rows = Rows("bank", columns, n_trained=n_trained)
        with pytest.raises(SpecificationError, match="grid") if refused else nullcontext():
            rows.sums(query, Records(weights=np.ones(4)))


def test_a_member_that_fails_lets_the_others_finish() -> None:
    waited = []

    def wait(number: int, ref: Any) -> Any:
        waited.append(number)
        if ref == "bad":
            raise PrivacyError("no")
        return ref

    group = PipeGroup([None] * 3, wait, lost=PartyLost, seconds=1.0)
    with pytest.raises(PrivacyError, match="no"):
        group.fetch(["a", "bad", "c"])
    assert waited == [0, 1, 2]
    assert LocalGroup([1, 2]).start("__add__", Each([1, 10])) == (2, 12)
