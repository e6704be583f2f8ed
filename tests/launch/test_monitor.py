"""`vfl monitor`: drift is found and named, stability is not called drift, and every counting is paid for."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import vfl
from tests.coordinator.organisations import federation
from tests.neighbours.harness import compare as compare_runs
from tests.neighbours.setting import job as neighbours_job
from tests.neighbours.setting import replaced, table
from vfl.apps.monitor import MISSING, NoisyCounts, compare, count, count_own
from vfl.apps.monitor import drift as drift_of
from vfl.base.columns import Boolean, Categorical, Numeric
from vfl.base.features import Hashed, Log
from vfl.errors import BudgetExceeded, OutputError, SpecificationError
from vfl.job.flags import flags_of, voids
from vfl.measures.confusion import calibration
from vfl.network.federation import events
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.noise import SeededNoise

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said
    from vfl.launch.run.result import Result

N = 4000
OWNED = {"bank": ["age", "income"], "telco": ["job", "member", "town"]}
COLUMNS = {
    "age": Numeric((18.0, 100.0), missing="indicator"),
    "income": Log(bounds=(1.0, 1e6)),
    "job": Categorical(("a", "b", "c"), unknown="zero"),
    "member": Boolean(),
    "town": Hashed(4),
}


def records(seed: int, shift: float = 0.0, n: int = N) -> pd.DataFrame:
    """Return records; a shift moves income and the jobs, and nothing else."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.uniform(10, 90, n)),
            "income": rng.lognormal(8 + shift, 1.0, n),
            "job": rng.choice(["a", "b", "c", "z"], n, p=[0.5 - 0.3 * (shift > 0), 0.3, 0.1 + 0.3 * (shift > 0), 0.1]),
            "member": rng.random(n) < 0.3,
            "town": rng.choice(["x", "y"], n),
        }
    )
    margin = (np.log(frame["income"]) - 8.0) + (frame["job"] == "a")
    return frame.assign(y=(rng.random(n) < 1.0 / (1.0 + np.exp(-margin))).astype(int))


@pytest.fixture(scope="module")
def result() -> Result:
    partition = vfl.FeaturePartition(OWNED, ("telco", "y"))
    given: dict[str, Any] = {"columns": COLUMNS, "privacy": vfl.Privacy(epsilon=2.0, delta=1e-6)}
    return vfl.train(vfl.Job(partition=partition, **given), records(1), at=vfl.InProcess(num_cpus=1))


def counted(result: Result, frame: pd.DataFrame, epsilon: float = 1.0, seed: int = 5) -> NoisyCounts:
    return count(result, frame, epsilon=epsilon, delta=1e-6, noise=SeededNoise(seed))


def test_a_shift_is_found_and_stability_is_not_called_drift(result: Result) -> None:
    before = counted(result, records(1))
    same, moved = (compare(result, before, counted(result, records(2, shift), seed=6)) for shift in (0.0, 1.0))
    assert same.exceeding(0.05) == ()
    assert set(moved.exceeding(0.1)) == {"income", "job", "score"}
    assert moved.unwatched == ("town",)
    assert all(drift.index < 3.0 * drift.floor for drift in same.drifts)
    for drift in moved.drifts:
        assert sum(share for share, _ in drift.bins.values()) == pytest.approx(1.0, abs=0.05)
    assert calibration(before.scores, N)


def test_counts_are_those_of_the_records(result: Result) -> None:
    """With a huge ε the counts are those of pandas, and those without noise that an owner makes of its own columns."""
    frame = records(3, n=1000)
    with pytest.warns(vfl.PrivacyWarning):
        found = counted(result, frame, epsilon=1e5)
    own = count_own(result, "telco", frame[OWNED["telco"]])
    assert own.columns == {c: pytest.approx(found.columns[c], abs=1.0) for c in ("job", "member")}
    assert own.columns["job"] == {c: (frame["job"] == c).sum() for c in "abc"} | {
        "(none of these)": (frame["job"] == "z").sum()
    }
    assert own.columns["member"]["true"] == frame["member"].sum()
    assert found.columns["age"]["(missing)"] == pytest.approx(frame["age"].isna().sum(), abs=1.0)
    assert (own.epsilon, own.scores) == (math.inf, None)
    margins = result.decision_function(frame)
    edges = np.array(found.scores.edges)
    for label, histogram in ((0, found.scores.negative), (1, found.scores.positive)):
        bins = np.searchsorted(edges, margins[frame["y"] == label], side="left")
        assert histogram == pytest.approx(np.bincount(bins, minlength=len(edges) + 1), abs=1.0)
    before = count_own(result, "telco", records(1)[OWNED["telco"]])
    (job, *_) = (drift for drift in compare(result, before, own).drifts if drift.name == "job")
    p, q = (np.array([*c.columns["job"].values()]) / c.n_records for c in (own, before))
    assert job.index == pytest.approx(float(((p - q) * np.log(p / q)).sum()))


def test_each_counting_is_charged_before_and_refused_without_room(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    SqliteLedger(path).set_cap("credit", epsilon=1.2, delta=1e-6)
    first = count(result, records(1), dataset="credit", epsilon=1.0, delta=1e-6, ledger=path)
    assert first.epsilon <= 1.0
    with pytest.raises(BudgetExceeded):
        count(result, records(1), dataset="credit", epsilon=1.0, delta=1e-6, ledger=path)
    first.save(tmp_path / "baseline.json")
    assert NoisyCounts.load(tmp_path / "baseline.json") == first
    (tmp_path / "baseline.json").write_text("{}")
    with pytest.raises(OutputError, match="no counts"):
        NoisyCounts.load(tmp_path / "baseline.json")


def test_counts_of_another_model_are_refused(result: Result) -> None:
    other = vfl.train(result.job, records(9), at=vfl.InProcess(num_cpus=1))
    with pytest.raises(SpecificationError, match="another model"):
        compare(other, counted(result, records(1)), counted(result, records(2)))


@pytest.mark.parametrize("privacy", [None, vfl.Privacy(epsilon=2.0, delta=1e-6)])
def test_a_policy_refuses_to_count_scores_of_a_model_without_a_guarantee(
    privacy: vfl.Privacy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every party receives all coefficients with the job, so the owners of other columns would learn them."""
    offered: list[vfl.Job] = []

    def release(job: vfl.Job, data: Any, solver: Any, privacy: Any, **terms: Any) -> Any:
        offered.append(replace(job, solver=solver, privacy=privacy))
        raise LookupError

    monkeypatch.setattr("vfl.apps.monitor.paid_release", release)
    partition = vfl.FeaturePartition(OWNED, ("telco", "y"))
    model = vfl.train(
        vfl.Job(partition=partition, columns=COLUMNS, privacy=privacy), records(1), at=vfl.InProcess(num_cpus=1)
    )
    with pytest.raises(LookupError):
        count(model, records(2), epsilon=1.0)
    assert voids(flags_of(offered[0])) == (privacy is None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1.0, "b": -1.0, "c": np.inf, "y": 1}, {"a": -1e300, "b": 0.3, "c": -np.inf, "y": 0}),
        ({"a": 1.0, "c": 1.0, "y": 0}, {"a": 1.0, "c": 1.0, "y": 1}),
    ],
)
def test_counts_of_neighbours_differ_within_their_sensitivity(before: dict[str, Any], after: dict[str, Any]) -> None:
    first, second = replaced(table(), **before), replaced(table(), **after)
    spec = neighbours_job(vfl.SkGD(passes=1, block_size=1))
    model = vfl.train(replace(spec, privacy=None), first, at=vfl.InProcess(num_cpus=1))

    def released(job: vfl.Job, source: Any, folder: Path) -> None:
        (folder / "counts").write_text(repr(count(model, source, epsilon=1.0, delta=1e-6, at="inprocess")))

    found = compare_runs(spec, first, second, run=released)
    assert found.raised == (None, None)
    assert found.complaints == ()
    assert 0 < found.path <= found.charged


def test_the_command_prints_drift_and_exits_with_7(result: Result, tmp_path: Path, call: Callable[..., Said]) -> None:
    run, ledger = str(result.save(tmp_path / "run")), str(tmp_path / "ledger.db")
    for name, frame in {"then": records(1), "same": records(2), "moved": records(3, 1.0)}.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        frame[OWNED["bank"]].to_csv(tmp_path / f"bank-{name}.csv", index=False)
    files = {name: str(tmp_path / f"{name}.csv") for name in ("then", "same", "moved")}
    assert call("ledger", "cap", ledger, "credit", "--epsilon", "20", "--delta", "1e-3").code == 0
    paid = ("--epsilon", "2", "--ledger", ledger, "--dataset", "credit")
    assert "give --training" in call("monitor", run, "--data", files["same"], *paid).err
    quiet = call("monitor", run, "--data", files["same"], "--training", files["then"], *paid)
    assert quiet.code == 0, quiet.err
    page = tmp_path / "drift.html"
    loud = call("monitor", run, "--data", files["moved"], *paid, "--output", str(page), "--json")
    assert loud.code == 7
    assert "income" in json.loads(loud.out)["exceeding"]
    shown = page.read_text("utf-8")
    assert "Calibration over time" in shown
    assert "index at 2 times" in shown
    assert "Shares carry noise" in shown
    assert len([*(tmp_path / "run" / "monitored").iterdir()]) == 2
    counted = len(SqliteLedger(ledger, readonly=True).show()[0].runs)
    # The first command, on another day: the baseline is not counted again, and the page is replaced.
    both = ("--data", files["same"], "--training", files["then"], *paid, "--output", str(page))
    again = call("monitor", run, *both)
    assert again.code == 0, again.err
    assert "not read or charged again" in again.err
    assert len(SqliteLedger(ledger, readonly=True).show()[0].runs) == counted + 1
    assert "index at 3 times" in page.read_text("utf-8")
    page.write_text("mine")
    assert call("monitor", run, *both).code == 6
    assert page.read_text() == "mine"
    own = call(
        "monitor",
        run,
        "--party",
        "bank",
        "--data",
        f"bank={tmp_path}/bank-moved.csv",
        "--training",
        f"bank={tmp_path}/bank-then.csv",
    )
    assert (own.code, "income" in own.out, "score" in own.out) == (7, True, False)
    for words, why in (
        ((), "--data"),
        (("--data", files["same"]), "--epsilon"),
        (("--data", files["same"], "--drift", "0"), "positive"),
    ):
        failed = call("monitor", run, *words)
        assert (failed.code, why in failed.err) == (2, True), failed.err


def test_the_command_counts_across_organisations(result: Result, tmp_path: Path, call: Callable[..., Said]) -> None:
    """Both parties join with three sources each; drift exits with 7, and each counting is in both party ledgers."""
    run, ledger = str(result.save(tmp_path / "run")), str(tmp_path / "ledger.db")
    frames = {"then": records(1), "same": records(2), "moved": records(3, 1.0)}
    assert call("ledger", "cap", ledger, "credit", "--epsilon", "7", "--delta", "1e-3").code == 0
    with federation(tmp_path) as joined:
        for party, columns in OWNED.items():
            own = [*columns, *(["y"] if party == "telco" else [])]
            joined.start(party, {"": frames["then"][own], **{name: frame[own] for name, frame in frames.items()}})

        def monitor(name: str, *more: str) -> Said:
            given = [word for party in OWNED for word in ("--data", f"{party}={name}")]
            paid = ("--epsilon", "2", "--ledger", ledger, "--dataset", "credit")
            return call("monitor", run, "--at", str(joined.file), *given, *paid, *more)

        training = [word for party in OWNED for word in ("--training", f"{party}=then")]
        quiet = monitor("same", *training)
        assert quiet.code == 0, quiet.err
        loud = monitor("moved", "--json")
        assert (loud.code, loud.err) == (7, "")
        assert {"income", "job", "score"} == set(json.loads(loud.out)["exceeding"])
        spent = [[e.epsilon for e in own if isinstance(e, events.Ended)] for own in joined.events.values()]
        assert spent == [[pytest.approx(2.0, rel=0.01)] * 3] * 2
        assert not joined.failed


@pytest.mark.parametrize("ordered", [True, False])
def test_bins_that_empty_count_as_drift(ordered: bool) -> None:
    counts = np.array([[0.0, 0.0, 1000.0, 1000.0], [500.0, 500.0, 500.0, 500.0]])
    for one in (counts, counts[::-1]):
        assert drift_of("income", list("abcd"), one, (10.0, 10.0), ordered=ordered).exceeds(0.2)


RARE = np.array([0.8, *[0.02] * 10])


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("shares", [np.array([0.95, 0.05]), RARE], ids=["two", "rare"])
@pytest.mark.parametrize(("now", "before", "sigma"), [(1000, 100_000, 20.0), (4000, 4000, 8.0), (500, 500, 0.0)])
def test_noise_and_sampling_alone_hardly_exceed_the_limit(
    shares: np.ndarray, now: int, before: int, sigma: float, rest: bool
) -> None:
    """The probability is .001 at most; a small set of today hides counts that the baseline shows.

    rest : True for records of no bin, here none, whose number is that of all records minus all noisy counts.
    """
    rng, names, exceeded = np.random.default_rng(7), [str(k) for k in range(len(shares))], 0
    names += ["(none of these)"] * rest
    for _ in range(500):
        counts = np.array([rng.multinomial(n, shares) for n in (now, before)]) + rng.normal(
            0.0, sigma, (2, len(shares))
        )
        if rest:
            counts = np.column_stack([counts, np.array([now, before]) - counts.sum(axis=1)])
        one = drift_of("job", names, counts, (sigma, sigma), ordered=False)
        exceeded += one.index > one.limit
    assert exceeded <= 3


def test_shards_count_the_same(result: Result, tmp_path: Path) -> None:
    """A purchase is made on Ray in tests/launch/test_aligned_releases.py."""
    frame = records(2)
    for party, columns in OWNED.items():
        frame[[*columns, *(["y"] if party == "telco" else [])]].to_csv(tmp_path / f"{party}.csv", index=False)
    data = {party: str(tmp_path / f"{party}.csv") for party in OWNED}
    one, other = (
        count(result, data, epsilon=1.0, delta=1e-6, noise=SeededNoise(5), at=vfl.InProcess(num_cpus=1, shards=shards))
        for shards in (1, 3)
    )
    assert (one.columns, one.scores) == (other.columns, other.scores)


def test_shares_that_noise_may_explain_are_shown_as_bounds() -> None:
    """Nobody is missing; the noisy count of 16 of 1,000 is no share of 1.6 %."""
    counts = np.array([[600.0, 384.0, 16.0], [590.0, 394.0, 16.0]])
    one = drift_of("job", ["a", "b", MISSING], counts, (12.0, 6.0), ordered=False)
    assert one.shown("a") == ("59.0%", "60.0%")
    assert one.shown(MISSING) == ("1.6%", "at most 4.0%")
    exact = drift_of("job", ["a", "b", MISSING], np.round(counts) - [0, 0, 16], (0.0, 0.0), ordered=False)
    assert exact.shown(MISSING) == ("0.0%", "0.0%")
