"""Weight of evidence: counts come near the exact ones, sensitivities are attained and never exceeded, everything is charged."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import vfl
from parties.rows import Rows
from parties.storage.dense import Columns
from tests.parties.alone import party_over
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, PrivacyError, SpecificationError
from vfl.launch.paid_releases.woe import evidence
from vfl.planning import plan as make_plan
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.ledger import SqliteLedger
from vfl.privacy.noise import CryptographicNoise
from vfl.queries import Counts, Records
from vfl.solvers.releases.bins import LabelledCounts, Ones

if TYPE_CHECKING:
    from pathlib import Path

N = 4000
PARTITION = vfl.FeaturePartition({"bank": ["age_group", "income"], "telco": ["tariff"]}, label=("bank", "y"))
COLUMNS: dict[str, Any] = {
    "age_group": vfl.columns.Binned((30.0, 50.0), of="age", missing="indicator"),
    "tariff": vfl.Categorical(("S", "M", "L")),
}
JOB = vfl.Job(partition=PARTITION, bounds={"income": (0.0, 1.0)}, columns=COLUMNS, privacy=vfl.Privacy(epsilon=1.0))


def parts() -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(1)
    age = np.where(rng.random(N) < 0.1, np.nan, rng.uniform(18, 80, N))
    y = (rng.random(N) < np.where(age > 50, 0.6, 0.3)).astype(int)
    return {
        "bank": {"age": age, "income": rng.random(N), "y": y},
        "telco": {"tariff": rng.choice(["S", "M", "L"], N, p=[0.5, 0.3, 0.2])},
    }


def buy(job: vfl.Job = JOB, data: Any = None, **options: Any) -> Any:
    return vfl.releases.woe(job, data or parts(), **({"epsilon": 1.0, "at": "inprocess"} | options))


def test_counts_and_weights_are_near_the_exact_ones() -> None:
    data = parts()
    found = buy()
    assert list(found.columns) == ["age_group", "tariff"]
    age, y = data["bank"]["age"], data["bank"]["y"]
    bins = found.columns["age_group"].bins
    assert [one.name for one in bins] == ["(-inf, 30)", "[30, 50)", "[50, inf)", "(missing)"]
    inside = [age < 30, (age >= 30) & (age < 50), age >= 50, np.isnan(age)]
    for one, chosen in zip(bins, inside, strict=True):
        P, Q = int(y[chosen].sum()), int((1 - y)[chosen].sum())
        assert one.positives == pytest.approx(P, abs=5 * found.noise)
        assert one.negatives == pytest.approx(Q, abs=5 * found.noise)
        exact = math.log((P / y.sum()) / (Q / (1 - y).sum()))
        assert one.weight == pytest.approx(exact, abs=5 * one.error)
    assert not found.columns["age_group"].too_noisy
    assert found.columns["tariff"].too_noisy
    assert 0.99 < found.epsilon <= 1.0
    assert found.noise < 40


@pytest.mark.parametrize("bounds", ["declared", "bounds"])
def test_a_weight_scales_no_count(bounds: str) -> None:
    data = parts()
    data["bank"]["s"] = np.full(N, 0.25)
    given = {"columns": COLUMNS | {"s": vfl.Numeric(bounds=(0.0, 1.0))}}
    if bounds == "bounds":
        given = {"bounds": dict(JOB.bounds) | {"s": (0.0, 1.0)}}
    weighted = replace(JOB, partition=PARTITION.changed(weight="s"), **given)
    options = {"noise": vfl.SeededNoise(3), "columns": ["tariff"]}
    assert buy(weighted, data, **options).columns == buy(**options).columns


def test_noise_is_as_stated() -> None:
    """Of 40 runs with other noise, each count's spread is that of `noise`."""
    noisy = np.array(
        [
            [one.positives for one in buy(noise=vfl.SeededNoise(seed), columns=["tariff"]).columns["tariff"].bins]
            for seed in range(40)
        ]
    )
    stated = buy(columns=["tariff"]).noise
    assert math.sqrt(noisy.var(axis=0, ddof=1).mean()) == pytest.approx(stated, rel=0.25)


def counted(query: Counts, party: str, row: Any, y: float) -> Any:
    """Return the exact counts of a party with one record, whose weight is that of logistic loss at a margin of 0."""
    names = tuple(f"c{j}" for j in range(len(row)))
    rows = Rows(party, Columns(np.asfortranarray([row], dtype=np.float64), names))
    r, state = query.weighting(np.zeros(1), np.array([y]), {})
    assert state == {}
    return rows.sums(query, Records(weights=r))[0]


def test_no_cells_and_no_weights_move_the_counts_further() -> None:
    """Rows and weights may be anything: negative, fractions, not finite, in more bins than declared."""
    cells = (-3.0, 0.0, 0.4, 1.0, 1e300, math.nan, math.inf)
    for m in (1, 2):
        query = Counts(Ones(), {"bank": (0, 1, 2)}, {"bank": m}, None)
        found = []
        for row in itertools.product(cells, repeat=3):
            rows = Rows("bank", Columns(np.asfortranarray([row]), ("a", "b", "c")))
            found += [rows.sums(query, Records(weights=np.array([r])))[0] for r in (-1e9, -0.5, 0.0, 2.0, math.nan)]
        distinct = np.unique(found, axis=0)
        moves = np.linalg.norm(distinct[:, None] - distinct, axis=2)
        assert moves.max() == pytest.approx(math.sqrt(2 * m))  # attained, and never exceeded
        with pytest.raises(PrivacyError, match="does not cover"):
            replace(query, event=Gaussian(Adjacency.REPLACE_ONE, 0.999 * math.sqrt(2 * m), 1.0, 6)).check()


@pytest.mark.parametrize(("columns", "most"), [((0, 0), 1), ((0, 1), 0), ((0, 1), -4), ((0, 1), 1.01)])
def test_a_lying_query_of_counts_is_refused(columns: tuple[int, ...], most: float) -> None:
    """A coordinate counted twice would move by two; a bound below 1, or between 1 and 2, would make the noise too small."""
    event = Gaussian(Adjacency.REPLACE_ONE, 2.0, 1.0, 4)
    query = Counts(Ones(), {"bank": columns}, {"bank": most}, event)  # type: ignore[dict-item]  # a lie
    party = party_over("bank", Columns(np.asfortranarray(np.eye(2)), ("a", "b")), CryptographicNoise())
    with pytest.raises(PrivacyError, match="query of"):
        party.answer(query, Records(weights=np.ones(2)), ReleaseKey(0))
    weak = Gaussian(Adjacency.REPLACE_ONE, 1.0, 1.0, 4)
    honest = replace(query, columns={"bank": (0, 1)}, most={"bank": 1})
    with pytest.raises(PrivacyError, match="does not cover"):
        party.answer(replace(honest, event=weak), Records(weights=np.ones(2)), ReleaseKey(0))
    assert len(party.answer(honest, Records(weights=np.ones(2)), ReleaseKey(0)).released[0]) == 4
    with pytest.raises(PrivacyError, match="not its own"):
        replace(query, columns={"bank": (0, 7)}).require_addressed("bank", 2, 2)


class TestSensitivity:
    """Replacing a record by any other moves the sums of a party by at most Δ of the charged events, which is attained."""

    SQUARES: ClassVar[dict[str, int]] = {"bank": 2, "telco": 1}

    def rows(self) -> dict[str, np.ndarray]:
        two = [np.concatenate(pair) for pair in itertools.product(np.eye(3), np.eye(2))]
        return {"bank": np.array(two), "telco": np.eye(3)}

    def test_it_is_attained_by_every_kind_of_replacement(self) -> None:
        """Over all pairs of records with any bins and labels, the counts of each party move by at most Δ, which is attained."""
        spec = replace(
            JOB,
            columns=COLUMNS | {"age_group": vfl.columns.Binned((30.0, 50.0)), "income": vfl.columns.Binned((0.5,))},
            bounds={},
        )
        problem = make_plan(replace(spec, intercept=False), 100).problem
        asked = LabelledCounts(self.SQUARES).queries(problem)
        assert [list(query.columns) for query in asked] == [["bank"], ["telco"]]
        for query in asked:
            ((party, positions),) = query.columns.items()
            rows, m = self.rows()[party], self.SQUARES[party]
            assert positions == tuple(range(rows.shape[1]))
            query.check()
            assert query.event is not None
            assert query.event.sensitivity == pytest.approx(math.sqrt(2 * m), rel=1e-12)
            sums = [counted(query, party, row, y) for row in rows for y in (-1.0, 1.0)]
            moves = [float(np.linalg.norm(a - b)) for a in sums for b in sums]
            assert max(moves) <= query.event.sensitivity <= max(moves) * (1.0 + 1e-12)

    def test_all_releases_together_cost_the_whole_budget(self) -> None:
        problem = make_plan(replace(JOB, intercept=False), N).problem
        events = LabelledCounts({"bank": 2, "telco": 1}).releases(problem)
        mu = math.sqrt(sum(count * (event.sensitivity / event.sigma) ** 2 for event, count in events))  # type: ignore[attr-defined]
        assert problem.mu is not None
        assert problem.mu * (1 - 1e-9) <= mu <= problem.mu


def test_a_record_with_more_entries_than_declared_is_clipped() -> None:
    """A party that holds other rows than it declared releases no more of them than is charged."""
    data = parts()
    job = replace(
        JOB, columns=COLUMNS | {"age_group": vfl.columns.Binned((30.0, 50.0), of="age", missing="indicator", fill=40.0)}
    )
    bins = buy(job, data, epsilon=50.0).columns["age_group"].bins
    missing = np.isnan(data["bank"]["age"])
    assert bins[3].positives == pytest.approx(data["bank"]["y"][missing].sum(), abs=20)
    assert sum(one.positives for one in bins[:3]) == pytest.approx(data["bank"]["y"].sum(), abs=40)


def test_it_is_charged_to_the_data_set(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "l.db")
    ledger.set_cap("d", epsilon=2.0, delta=1e-6)
    job = replace(JOB, dataset="d")
    buy(job, ledger=tmp_path / "l.db", epsilon=1.9, delta=1e-6)
    (balance,) = ledger.show()
    assert 1.89 < balance.spent <= 1.9
    assert balance.runs[0].releases == 2
    with pytest.raises(BudgetExceeded):
        buy(job, ledger=tmp_path / "l.db", epsilon=1.9, delta=1e-6)


@pytest.mark.parametrize(
    ("job", "options", "wrong"),
    [
        (JOB, {"columns": ["income"]}, r"'income' is no Binned or Categorical column.*declare vfl.columns.Binned"),
        (JOB, {"columns": ["tarif"]}, "did you mean 'tariff'"),
        (JOB, {"columns": ["tariff", "tariff"]}, "each once"),
        (JOB, {"columns": []}, "each once"),
        (replace(JOB, loss="squared", bounds={"income": (0.0, 1.0), "y": (0.0, 1.0)}), {}, "compare two classes"),
    ],
)
def test_what_it_refuses(job: vfl.Job, options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(SpecificationError, match=wrong):
        buy(job, **options)


class TestEvidence:
    NAMES = ("a", "b", "c", "d")

    def test_without_noise_it_is_exact(self) -> None:
        counts = np.array([[40.0, 30.0, 20.0, 10.0], [10.0, 20.0, 30.0, 40.0]])
        found = evidence("bank", self.NAMES, counts, 0.0)
        p, q = counts / 100.0
        assert [one.weight for one in found.bins] == pytest.approx(np.log(p / q).tolist())
        assert found.value == pytest.approx(float(((p - q) * np.log(p / q)).sum()))
        assert not found.too_noisy

    def test_bins_with_two_hidden_counts_have_no_weight(self) -> None:
        found = evidence("bank", self.NAMES, np.array([[40.0, 3.0, -2.0, 50.0], [50.0, 30.0, 9.0, 0.0]]), 5.0)
        assert [one.weight is None for one in found.bins] == [False, False, True, False]
        assert evidence("bank", self.NAMES, np.full((2, 4), -1.0), 5.0).value == 0.0

    def test_errors_cover_noise_and_sampling(self) -> None:
        rng = np.random.default_rng(3)
        p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.25, 0.25, 0.25, 0.25])
        exact, sigma = float(((p - q) * np.log(p / q)).sum()), 20.0
        inside, weights = 0, 0
        for _ in range(500):
            counts = np.array([rng.multinomial(2000, p), rng.multinomial(3000, q)]) + sigma * rng.normal(size=(2, 4))
            found = evidence("bank", self.NAMES, counts, sigma)
            inside += abs(found.value - found.floor - exact) <= 2 * found.error
            first = found.bins[0]
            assert first.weight is not None
            assert first.error is not None
            weights += abs(first.weight - math.log(p[0] / q[0])) <= 2 * first.error
        assert inside >= 460
        assert weights >= 460

    def test_the_floor_is_the_mean_of_a_column_without_information(self) -> None:
        rng = np.random.default_rng(4)
        p, sigma = np.array([0.4, 0.3, 0.2, 0.1]), 15.0
        found = [
            evidence(
                "bank",
                self.NAMES,
                np.array([rng.multinomial(2000, p), rng.multinomial(3000, p)]) + sigma * rng.normal(size=(2, 4)),
                sigma,
            )
            for _ in range(400)
        ]
        values, floors = np.array([one.value for one in found]), np.array([one.floor for one in found])
        assert values.mean() == pytest.approx(floors.mean(), rel=0.2)


def test_the_scorecard_shows_it() -> None:
    columns: dict[str, Any] = {
        "age_group": vfl.columns.Binned((30.0, 50.0), of="age", missing="indicator"),
        "tariff": COLUMNS["tariff"],
    }
    partition = vfl.FeaturePartition({"bank": ["age_group"], "telco": ["tariff"]}, label=("bank", "y"))
    job = vfl.Job(partition=partition, columns=columns, privacy=vfl.Privacy(epsilon=4.0), solver=vfl.SkGD(passes=2))
    result = vfl.train(job, parts(), at="inprocess")
    found = vfl.releases.woe(job, parts(), epsilon=4.0, at="inprocess")
    rows = result.scorecard(digits=1, woe=found).to_csv().splitlines()
    assert rows[0] == "party,column,category,points,woe,information value"
    first = found.columns["age_group"]
    assert rows[1].split(",", 4)[0] == "bank"
    assert rows[1].endswith(f",{first.bins[0].weight},{first.value}")
    assert result.scorecard().to_csv().splitlines()[0] == "party,column,category,points"


def test_a_bin_of_one_class_informs() -> None:
    counts = np.array([[500.0, -3.0, 500.0], [0.0, 4.0, 1000.0]])
    found = evidence("bank", ["one class", "hidden", "both"], counts, 10.0)
    weights = [one.weight for one in found.bins]
    assert weights[0] > 2.0
    assert weights[1] is None
    assert not found.too_noisy
    shares = found.bins[0].positives / 1000.0, 20.0 / 1020.0  # the least visible count takes the place of 0
    assert weights[0] == pytest.approx(np.log(shares[0] / shares[1]))
