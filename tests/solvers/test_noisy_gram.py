"""Noisy Gram: sensitivity of the products, one charge for all pieces, and the optimum on the released matrix."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import sklearn.linear_model as peers
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import beta

import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.loading import load
from parties.rows import Rows
from parties.storage.dense import Columns
from tests.parties.alone import party_over
from vfl.base.problem import Block
from vfl.errors import ConsentRefused, PrivacyError, SpecificationError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.network.messages import Notice, Phase
from vfl.planning import plan, problem_of
from vfl.privacy.events import ReleaseKey
from vfl.privacy.gaussian_dp import mu_of
from vfl.privacy.noise import SeededNoise
from vfl.queries import Fold, Gram, Piece, Records, gram
from vfl.solvers import noisy_gram
from vfl.solvers.iterates.quadratic import least_squares
from vfl.solvers.joint import unscaled
from vfl.solvers.noisy_gram import GramClip, Row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.coordinator.shared_parties import SharedParties
    from vfl.queries.protocol import Solver

N = 300
COLUMNS = ("a0", "a1", "b0", "b1")
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1"], "telco": ["b0", "b1"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(COLUMNS, (-1.0, 1.0)) | {"y": (-2.0, 6.0)}


@functools.cache
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.uniform(-1.0, 1.0, (N, 4))
    X[:, 3] = 0.5 * X[:, 0] + 0.5 * X[:, 3]
    y = X @ np.array([2.0, -1.0, 0.5, 0.0]) + 2.0 + 0.3 * rng.normal(size=N)
    return {c: X[:, j] for j, c in enumerate(COLUMNS)} | {"y": y}


def job(**options: object) -> vfl.Job:
    given_ = {"loss": "squared", "privacy": None, "bounds": BOUNDS, "solver": vfl.solvers.NoisyGram()}
    return vfl.Job(partition=PARTITION, **(given_ | options))


def private(seed: int = 0, epsilon: float = 1.0) -> vfl.Privacy:
    return vfl.Privacy(epsilon=epsilon, delta=1e-5, noise=vfl.SeededNoise(seed))


PEERS = {
    "none": (vfl.penalties.NoPenalty(), peers.LinearRegression()),
    "l1": (vfl.L1(0.05), peers.Lasso(0.05, tol=1e-14)),
    "l2": (vfl.L2(0.1), peers.Ridge(0.1 * N)),
    "elastic_net": (vfl.ElasticNet(0.1, l1_ratio=0.4), peers.ElasticNet(0.1, l1_ratio=0.4, tol=1e-14)),
    "box": (vfl.penalties.Box(low=0.0), peers.LinearRegression(positive=True)),
}


class TestTheOptimum:
    @pytest.mark.parametrize("case", PEERS)
    def test_without_noise_it_reaches_the_peers_solution(self, case: str) -> None:
        penalty, peer = PEERS[case]
        peer.fit(np.column_stack([table()[c] for c in COLUMNS]), table()["y"])
        result = vfl.train(job(penalty=penalty), table(), at="inprocess")
        np.testing.assert_allclose([*result.coef_, result.intercept_], [*peer.coef_, peer.intercept_], atol=1e-6)

    @pytest.mark.filterwarnings("ignore:.*protects next to nothing:vfl.PrivacyWarning")
    def test_with_little_noise_it_comes_near(self) -> None:
        peer = peers.Lasso(0.05, tol=1e-14).fit(np.column_stack([table()[c] for c in COLUMNS]), table()["y"])
        spec = job(penalty=vfl.L1(0.05), privacy=private(epsilon=1e8), solver=vfl.solvers.NoisyGram(clip=4.0))
        result = vfl.train(spec, table(), at="inprocess")
        np.testing.assert_allclose([*result.coef_, result.intercept_], [*peer.coef_, peer.intercept_], atol=0.02)

    def test_shrunk_rows_stay_on_the_line(self) -> None:
        """A clip that binds every record reweighs least squares; records on a line still give that line."""
        X = np.column_stack([table()[c] for c in COLUMNS])
        data = table() | {"y": X @ np.array([1.0, -0.5, 0.5, 0.0])}
        result = vfl.train(job(intercept=False, solver=vfl.solvers.NoisyGram(clip=0.3)), data, at="inprocess")
        np.testing.assert_allclose(result.coef_, [1.0, -0.5, 0.5, 0.0], atol=1e-3)

    def test_group_lasso_over_blocks(self) -> None:
        blocks = {"bank": [["a1", "a0"]], "telco": [["b0"], ["b1"]]}
        partition = vfl.FeaturePartition(
            {"bank": ["a0", "a1"], "telco": ["b0", "b1"]}, label=("telco", "y"), blocks=blocks
        )
        spec = replace(job(penalty=vfl.penalties.GroupLasso(0.1)), partition=partition)
        descent = replace(spec, solver=vfl.SkGD(passes=500))
        here, there = (vfl.train(each, table(), at="inprocess") for each in (spec, descent))
        np.testing.assert_allclose(here.coef_, there.coef_, atol=1e-6)


def products(u: np.ndarray) -> np.ndarray:
    """Return one record's contribution to the entries, in the units of the geometry."""
    outer = np.outer(u, u)
    lower = np.tril(outer, -1)[np.tril_indices(len(u), -1)] * math.sqrt(2.0)
    return np.concatenate([np.diag(outer)[:-1], lower])


class TestTheSensitivity:
    @settings(deadline=None, max_examples=200)
    @given(seed=st.integers(0, 2**32 - 1), p=st.integers(1, 6), spread=st.sampled_from([0.5, 1.0, 1e6]))
    def test_no_pair_of_rows_exceeds_the_sensitivity(self, seed: int, p: int, spread: float) -> None:
        rng = np.random.default_rng(seed)
        rows = spread * rng.standard_cauchy((2, p + 1))
        rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / 1.5)
        geometry = GramClip(2.25, p * (p + 1) // 2 + p)
        rounded = [np.rint(products(u) / geometry.grid) * geometry.grid for u in rows]
        assert np.linalg.norm(rounded[0] - rounded[1]) <= geometry.sensitivity

    def test_the_sensitivity_is_reached(self) -> None:
        geometry = GramClip(1.0, 5)
        far = np.linalg.norm(products(np.array([1.0, 0.0, 0.0])) - products(np.array([0.0, 1.0, 0.0])))
        assert far == pytest.approx(math.sqrt(2.0))
        assert far <= geometry.sensitivity <= far * (1 + 2.0**-18)

    @settings(deadline=None, max_examples=100)
    @given(
        x=st.lists(st.sampled_from([0.0, 1e-200, -1.0, 3.0, 1e150, math.inf, math.nan]), min_size=3, max_size=3),
        y=st.sampled_from([0.0, -2.0, 1e160, math.inf, math.nan]),
    )
    def test_any_row_of_floats_is_bounded(self, x: list[float], y: float) -> None:
        """Through the margins' weighting and a party's kernel, NaN, infinities and overflow add nothing."""
        X, label = np.asfortranarray([x, [0.0] * 3]), np.array([y, 0.0])
        geometry, ones = GramClip(4.0, 9), (np.zeros(3), np.ones(3))
        with np.errstate(all="ignore"):
            kept = {"norms": (X**2).sum(axis=1)}
        rows = {"a": (Block(0, "a", 0, 3, 0), *ones)}
        weighting = Row(4.0, 0.5, 0.0, of_label=True)
        (piece,) = noisy_gram.pieces(rows, 2, lambda _: weighting, geometry, None)
        weights, _ = weighting(np.zeros(2), label, kept)
        (q,) = Rows("a", Columns(X, ("x", "y", "z"))).sums(piece, Records(weights=weights))
        assert len(q) == 9
        assert np.linalg.norm(q * geometry.grid) <= 4.0 * (1 + 1e-12) + geometry.grid * 3.0 / 2.0


class TestTheCharge:
    def test_all_pieces_are_one_release(self) -> None:
        seen: list[object] = []
        spec = job(privacy=private())
        result = vfl.train(spec, table(), at="inprocess", watch=seen.append)
        rounds = [event for event in seen if isinstance(event, Round)]
        planned = plan(spec, N)
        ((event, count),) = planned.releases
        assert count == 1
        assert result.certificate.releases == 1
        assert planned.epsilon == pytest.approx(1.0)
        assert [record.events for record in rounds if record.events] == [(event,)]
        assert sum(u.size for record in rounds for u in record.released) == event.dimension == 15 + 5
        assert len(rounds) == planned.messages

    def test_an_unpaid_piece_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = noisy_gram.Piece
        monkeypatch.setattr(noisy_gram, "Piece", lambda number, of, seed: true(number + 1, of + 1, seed))
        monkeypatch.setattr(noisy_gram, "within_triangle", lambda *_: True)
        monkeypatch.setattr(noisy_gram, "Row", lambda *given, of_label: Row(*given, of_label=False))
        with pytest.raises(PrivacyError, match="not charged"):
            vfl.train(job(privacy=private()), table(), at="inprocess")

    def test_a_piece_contains_every_record_and_a_fold_some(self) -> None:
        assert Piece(0, 3, ()).members(7).sum() == 7
        assert Fold(0, 3, (1,)).members(7).sum() < 7

    def test_the_noise_is_that_of_the_event(self) -> None:
        """The releases of two seeds differ by √2σ in every entry."""
        spec = [job(privacy=private(seed, epsilon=0.1)) for seed in (1, 2)]
        released = []
        for each in spec:
            seen: list[object] = []
            vfl.train(each, table(), at="inprocess", watch=seen.append)
            released.append(np.concatenate([u for e in seen if isinstance(e, Round) for u in e.released]))
        ((event, _),) = plan(spec[0], N).releases
        deviation = np.std(released[0] - released[1]) / (math.sqrt(2.0) * event.sigma)
        assert 0.6 < deviation < 1.5


def audit(x: float, seed: int, solver: vfl.solvers.NoisyGram) -> float:
    """Return the attacker's statistic of one run: all released entries, projected on the canary's effect."""
    spec = job(intercept=False, privacy=private(seed, epsilon=16.0), solver=solver)
    parties = {}
    for name, own in (("bank", [x, 0.0]), ("telco", [1.0 - x, 0.0])):
        X = np.zeros((2, 2), order="F")
        X[0] = own
        parties[name] = party_over(name, Columns(X, PARTITION.columns(name)), SeededNoise(seed), np.zeros(2))
    *events, _ = Coordinator(InProcessTransport(parties)).stream(spec)
    u = np.concatenate([u for e in events if isinstance(e, Round) for u in e.released])
    # Entries in order: at the bank the label's two and a0a0 a1a0 a1a1; at telco the label's two, four with a0 and a1, and
    # b0b0 b1b0 b1b1. The canary is e_a0, or e_b0.
    return float(u[2] - u[11]) / math.sqrt(2.0)


class TestAudit:
    RUNS = 300

    def bound(self, solver: vfl.solvers.NoisyGram) -> tuple[float, float]:
        arms = [np.array([audit(x, 2 * s + k, solver) for s in range(self.RUNS)]) for k, x in enumerate((1.0, 0.0))]
        middle = np.mean([audit(x, 10**6 + s, solver) for s in range(20) for x in (1.0, 0.0)])
        wrong = [int((arms[1] > middle).sum()), int((arms[0] <= middle).sum())]
        rates = [beta.ppf(0.99, k + 1, self.RUNS - k) for k in wrong]
        spread = math.sqrt((arms[0].var(ddof=1) + arms[1].var(ddof=1)) / 2)
        return float(-ndtri(rates[0]) - ndtri(rates[1])), float((arms[0].mean() - arms[1].mean()) / spread)

    @pytest.mark.slow  # tests/solvers/test_audits.py says the same by the exact likelihood ratio
    def test_the_claim_holds_and_is_tight(self) -> None:
        claimed = mu_of(16.0, 1e-5)
        lower, seen = self.bound(vfl.solvers.NoisyGram(clip=1.0))
        assert 2.0 <= claimed <= 4.0
        assert lower <= claimed
        assert abs(seen - claimed) < 3 * math.sqrt(2 / self.RUNS + claimed**2 / (4 * self.RUNS))

    def test_a_sensitivity_of_c_squared_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """C² instead of √2·C², the bound for adding or removing a record."""
        true = GramClip.sensitivity.fget
        monkeypatch.setattr(GramClip, "sensitivity", property(lambda clip: true(clip) / math.sqrt(2.0)))
        assert self.bound(vfl.solvers.NoisyGram(clip=1.0))[0] > mu_of(16.0, 1e-5)


class TestLeastSquares:
    def test_a_matrix_without_full_rank_is_solved(self) -> None:
        G = np.ones((5, 5))
        problem = problem_of(job(penalty=vfl.L1(0.01)), N)
        w = least_squares(problem, G, np.ones(5))
        assert np.isfinite(w).all()

    def test_lifting_changes_small_eigenvalues_only(self) -> None:
        G = np.diag([5.0, -1.0, 0.1])
        np.testing.assert_allclose(noisy_gram.lifted(G, 0.5), np.diag([5.0, 0.5, 0.5]), atol=1e-12)


def test_ray_gives_the_same_bits(parties_on_ray: SharedParties) -> None:
    spec = job(penalty=vfl.L1(0.05), privacy=private(4))
    here = vfl.train(spec, table(), at="inprocess")
    np.testing.assert_array_equal(parties_on_ray.train(spec, table()).w, here.w)


def test_all_products_of_two_parties_take_two_messages() -> None:
    planned = plan(job(privacy=private()), N)
    schedule = planned.solver.schedule(planned.problem)
    found = [next(schedule)]
    for _ in range(2):
        found.append(schedule.send(tuple(np.zeros(size) for size in found[-1].sizes())))
    assert [type(query).__name__ for query in found] == ["RecordNorms", "Columns", "Gram"]
    assert set(found[1].shares()) == {"bank"}  # the last party's columns stay there
    assert planned.messages == 3


def test_many_records_of_wide_parties_travel_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job(penalty=vfl.L2(0.1))
    whole = vfl.train(spec, table(), at="inprocess")
    monkeypatch.setattr(gram, "MOST_HELD_BYTES", 8 * N)
    planned = plan(spec, N)
    assert planned.messages == 4  # twice a column and its products; norms bound nothing without privacy
    np.testing.assert_array_equal(vfl.train(spec, table(), at="inprocess").w, whole.w)


REFUSED = {
    "another loss": (
        {"loss": "logistic", "bounds": {c: BOUNDS[c] for c in COLUMNS}},
        SpecificationError,
        "needs loss=",
    ),
    "huber": ({"loss": "huber"}, SpecificationError, "use SkGD for loss='huber'"),
    "no clip": (
        {"solver": vfl.solvers.NoisyGram(clip=math.inf)},
        PrivacyError,
        "clip=inf bounds no record's influence",
    ),
    "groups": (
        {"penalty": vfl.penalties.GroupLasso(0.1)},
        SpecificationError,
        "groups columns by the partition's blocks",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_missing_requirement(case: str) -> None:
    options, kind, said = REFUSED[case]
    with pytest.raises(kind, match=said):
        plan(job(privacy=private(), **options), N)


@pytest.mark.parametrize("option", ["clip", "label_scale"])
def test_options_are_positive(option: str) -> None:
    with pytest.raises(SpecificationError, match=f"NoisyGram: {option} must be positive"):
        vfl.solvers.NoisyGram(**{option: 0.0})


def test_label_bounds_are_needed_for_the_defaults() -> None:
    bounds = {c: BOUNDS[c] for c in COLUMNS}
    spec = job(privacy=private(), bounds=bounds, solver=vfl.solvers.NoisyGram(clip=1.0))
    with pytest.raises(PrivacyError, match="needs bounds"):
        plan(spec, N)
    plan(replace(spec, solver=vfl.solvers.NoisyGram(clip=1.0, label_scale=0.2)), N)


def test_owners_books_charge_the_release_once(tmp_path: object) -> None:
    """Every party sees its pieces in an unbroken order, so its own ledger counts one release too."""
    policies = {}
    for party in PARTITION.parties:
        path = tmp_path / f"{party}.toml"  # type: ignore[operator]
        path.write_text(
            'format = 1\njobs = ["*"]\nproducts = true\nallow_non_private = true\n[total]\nepsilon = 1.0\ndelta = 1e-5\n',
            encoding="utf-8",
        )
        policies[party] = path
    spec = job(privacy=private(), solver=vfl.solvers.NoisyGram())
    result = vfl.train(spec, vfl.Source(table(), policy=policies), at="inprocess")
    np.testing.assert_array_equal(result.w, vfl.train(spec, table(), at="inprocess").w)


def test_an_owners_book_refuses_unplanned_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One charge pays for all pieces: the same sum as a further piece would average out its noise."""
    monkeypatch.setattr(gram, "MOST_HELD_BYTES", 1)  # one column at a time
    path = tmp_path / "telco.toml"
    path.write_text(
        'format = 1\njobs = ["*"]\nproducts = true\n[total]\nepsilon = 1.0\ndelta = 1e-5\n', encoding="utf-8"
    )
    spec = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-5))
    party = load(spec.for_party("telco"), {c: table()[c] for c in ("b0", "b1", "y")}, str(path))
    party.hear(Notice(Phase.OPEN, "r1", "run r1"))
    planned = plan(spec, N)
    first, second = (piece.shares()["telco"] for piece in planned.solver.pieces(planned.problem))

    def ask(query: Gram, number: int) -> None:
        party.answer(query, Records(weights=np.ones(N * query.width)), ReleaseKey(number))

    ask(first, 1)
    block, one = replace(first.blocks[0], start=1), (np.ones(2),)
    for refused in (
        replace(first, fold=Piece(1, 2, ())),  # the label's products under the number of the next piece
        replace(second, fold=Piece(0, 2, ())),
        replace(second, own=True),
        replace(second, scales=(np.full(3, 4.0),)),
        replace(second, weighting=replace(second.weighting, label_centre=0.5)),
        replace(second, weighting=replace(second.weighting, square=0.5 * second.weighting.square)),
        replace(second, clip=replace(second.clip, cap=0.5 * second.clip.cap)),
        replace(second, event=None),
        replace(second, blocks=(block,), centres=(np.zeros(2),), scales=one),
        replace(second, held=replace(second.held, stop=3)),  # more columns than the bank has
        replace(second, fold=Piece(1, 10**6, ())),
    ):
        with pytest.raises(ConsentRefused, match="plan does not contain"):
            party._charges.record(refused, ReleaseKey(2))
        with pytest.raises((ConsentRefused, PrivacyError)):
            ask(refused, 2)
    ask(second, 3)
    with pytest.raises(ConsentRefused, match="beyond the plan"):
        ask(first, 4)


PRIVATE = vfl.Privacy(epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("privacy", "solver", "loss"),
    [
        (PRIVATE, vfl.SkGD(passes=2), "squared"),
        (None, vfl.SkGD(passes=2), "squared"),
        (PRIVATE, vfl.SkGD(joint=True), "squared"),
        (PRIVATE, vfl.solvers.NoisyGram(constant=True), "squared"),
        (PRIVATE, vfl.solvers.OutputPerturbation(), "huber"),
    ],
    ids=["no joint steps", "no privacy", "joint steps declined", "the constant model", "exact gradients"],
)
def test_a_party_shows_no_column_for_a_job_whose_plan_has_no_products(
    privacy: vfl.Privacy | None, solver: Solver, loss: str
) -> None:
    """A coordinator cannot ask for columns before noise, or for exact products, that nobody was asked to allow."""
    planned = plan(job(privacy=PRIVATE), N)
    piece = planned.solver.pieces(planned.problem)[0]
    own = {c: table()[c] for c in ("b0", "b1", "y")}
    spec = job(privacy=privacy, solver=solver, loss=loss, penalty=vfl.L2(0.1))
    assert not plan(spec, N).has_products
    for query in (
        *noisy_gram.asked((replace(piece, held=piece.blocks[1]),), unscaled(planned.problem)),
        replace(piece, clip=GramClip(math.inf, 14), event=None),
    ):
        share = query.shares()["telco"]
        with pytest.raises(PrivacyError, match="which shows columns before noise: the plan of its job has no products"):
            load(spec.for_party("telco"), own).answer(share, Records(weights=np.ones(N * share.width)), ReleaseKey(1))


class CutOffError(Exception):
    """Stands for a driver that died."""


@pytest.mark.parametrize("last", [0, 1, 2, 3, 4])
def test_a_resumed_run_continues(tmp_path: object, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms, and the columns that margins held, are requested again; no piece is released twice."""
    from vfl.launch.train import resume

    monkeypatch.setattr(gram, "MOST_HELD_BYTES", 1)  # two pieces

    spec = job(privacy=private())

    def cut(event: object) -> None:
        if isinstance(event, Round) and event.number == last:
            raise CutOffError

    folder = tmp_path / "run"  # type: ignore[operator]
    with pytest.raises(CutOffError):
        vfl.train(spec, table(), at="inprocess", output=folder, watch=cut)
    result = resume(folder, table(), at="inprocess")
    np.testing.assert_array_equal(result.w, vfl.train(spec, table(), at="inprocess").w)
    assert result.certificate.releases == 1


def test_the_certificate_says_that_parties_see_labels_and_columns() -> None:
    seen = vfl.train(job(privacy=vfl.Privacy(epsilon=5.0)), table(), at="inprocess").certificate.who_sees_what
    assert "the columns of the parties before it and a weight per record" in seen["party"]
    assert "every label" in seen["party"]
    assert "the columns of all parties but the last" in seen["coordinator"]
