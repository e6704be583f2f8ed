"""Releases of curvature and of residuals' variance: their sensitivity, their charge, and the refusals of other pieces."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from coordinator.rounds import Round
from parties.ledger import RunCount
from parties.party import Party
from parties.rows import Rows
from parties.storage.dense import Columns
from tests.inference.setting import NAMES, N, job, table
from vfl import queries
from vfl.base.losses import loss_of
from vfl.base.problem import Block
from vfl.errors import ConsentRefused, PrivacyError
from vfl.kernels.geometry import capped, record_limits
from vfl.planning import plan
from vfl.privacy.events import ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.ledger import SqliteLedger
from vfl.queries import Backward, Paid, RecordCap, RecordNorms, Records, gram
from vfl.solvers import noisy_gram
from vfl.solvers.releases import products
from vfl.solvers.releases.curvature import Curvature
from vfl.solvers.releases.products import ProductClip, Products

LOSSES = ("logistic", "squared", "huber", "poisson")
CELLS = [0.0, 1e-200, 1e-8, -1.0, 3.0, 1e9, -1e150, math.inf, math.nan]


def contribution(x, centre, scale, margin, label, weighting, split=0, most=1 << 26, damping=1.0):
    """Return the entries that one record adds to all pieces, through the margins' weighting and the parties' rows.

    split : number of columns of a first party; a second one owns the others. most : bytes of columns that margins hold at once.
    damping : factors of the scales in the release. The record cap is one on rows without these factors.
    """
    p, geometry = len(x), ProductClip(1.0, len(x) * (len(x) + 1) // 2)
    parts = {"q": slice(0, split), "r": slice(split, p)} if 0 < split < p else {"q": slice(0, p)}
    undamped, rows = (
        {
            party: (Block(k, party, 0, own.stop - own.start, own.start), centre[own], scales[own])
            for k, (party, own) in enumerate(parts.items())
        }
        for scales in (scale, scale * damping)
    )
    held = {
        party: Rows(party, Columns(np.asfortranarray([x[own], [0.0] * (own.stop - own.start)]), NAMES[own]))
        for party, own in parts.items()
    }
    queries_of = (RecordNorms(undamped), RecordNorms(rows, into=products.LENGTHS))
    kept = {query.target: sum(held[q].vector(query, Records()) for q in rows) for query in queries_of}
    found = []
    with mock.patch.object(gram, "MOST_HELD_BYTES", most):
        pieces = noisy_gram.pieces(rows, 2, lambda _: weighting, geometry, None)
    for query in noisy_gram.asked(pieces, rows):
        if isinstance(query, queries.Columns):
            ((party, share),) = query.shares().items()
            kept["columns"] = held[party].vector(share, Records())
            continue
        r, replaced = weighting(np.array([margin, 0.0]), np.array([label, 0.0]), kept)
        kept.update(replaced)
        weights = (r.reshape(-1, 2) * [1.0, 0.0]).ravel()
        for party, share in query.shares().items():
            (sums,) = held[party].sums(share, Records(weights=weights))
            found.append(sums * geometry.grid)
    return np.concatenate(found), geometry


def triangle(x, t):
    """Return the entries of t·xxᵀ with off-diagonal ones times √2, in any order."""
    return np.sort(np.concatenate([t * x**2, math.sqrt(2.0) * t * np.outer(x, x)[np.tril_indices(len(x), -1)]]))


@pytest.mark.parametrize("split", [0, 1, 2, 4])
@pytest.mark.parametrize("most", [1, 1 << 26])
def test_the_pieces_hold_every_product_once(split, most):
    """This holds for all parties and for any number of columns that travel at a time."""
    x, weighting = np.array([1.0, -2.0, 3.0, 0.5, -0.25]), Products(loss_of("squared"), 1e6, 100.0, 1e-4, True)
    found, geometry = contribution(x, np.zeros(5), np.ones(5), 0.0, 1.0, weighting, split, most)
    assert len(found) == geometry.dimension
    np.testing.assert_allclose(np.sort(found), triangle(x, 0.01), atol=geometry.grid)


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(
        st.lists(st.sampled_from(CELLS) | st.floats(-5.0, 5.0), min_size=3, max_size=3), min_size=2, max_size=2
    ),
    centre=st.lists(st.sampled_from([0.0, 0.5, -1e4]), min_size=3, max_size=3),
    scale=st.lists(st.sampled_from([1e-3, 1.0, 1e3]), min_size=3, max_size=3),
    margins=st.lists(st.floats(-20.0, 20.0) | st.sampled_from([1e300, math.nan]), min_size=2, max_size=2),
    labels=st.lists(st.sampled_from([-1.0, 1.0, 1e8]), min_size=2, max_size=2),
    loss=st.sampled_from(LOSSES),
    cap=st.sampled_from([1e-6, 1.0, 1e6]),
    bound=st.sampled_from([1e-9, 1.0, 1e9]),
    of_curvature=st.booleans(),
    damping=st.lists(st.sampled_from([1.0, 0.5, 1e-3]), min_size=3, max_size=3),
    split=st.integers(0, 2),
    most=st.sampled_from([1, 1 << 26]),
)
def test_no_pair_of_records_exceeds_the_sensitivity(
    rows, centre, scale, margins, labels, loss, cap, bound, of_curvature, damping, split, most
):
    """Records hold any cells, margins and labels, under any caps, bounds and factors of columns, at one party or two."""
    weighting = Products(loss_of(loss), cap, bound, 1e-4, of_curvature, damped=min(damping) < 1.0)
    with np.errstate(all="ignore"):
        (a, geometry), (b, _) = (
            contribution(x, np.array(centre), np.array(scale), v, y, weighting, split, most, np.array(damping))
            for x, v, y in zip(rows, margins, labels, strict=True)
        )
    assert np.linalg.norm(a) <= geometry.sensitivity / math.sqrt(2.0)
    assert np.linalg.norm(a - b) <= geometry.sensitivity


@pytest.mark.parametrize("split", [0, 1])
def test_the_sensitivity_is_reached(split):
    weighting = Products(loss_of("squared"), 1e6, 1e-9, 1e-4, of_curvature=True)
    far = [contribution(x, np.zeros(2), np.ones(2), 0.0, 1.0, weighting, split)[0] for x in ([2.0, 0.0], [0.0, 3.0])]
    Δ = ProductClip(1.0, 3).sensitivity
    assert np.linalg.norm(far[0] - far[1]) <= Δ <= np.linalg.norm(far[0] - far[1]) * (1 + 1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cap", [0.3, 1.5, 100.0])
def test_weights_are_the_slope_and_the_square_of_capped_residuals(loss, cap):
    rng = np.random.default_rng(0)
    v, y = rng.normal(size=400), rng.choice([-1.0, 1.0], 400)
    if loss == "poisson":
        y = rng.poisson(2.0, 400).astype(float)
    norms, chosen = rng.uniform(1.0, 9.0, 400), loss_of(loss)
    kept = {"norms": norms, "columns": 2.0 * np.ones(400)}
    ρ = capped(chosen.derivative(v, y), record_limits(norms, cap), chosen.kernel)
    second, column = Products(chosen, cap, 50.0, 1e-5, of_curvature=False)(v, y, kept)[0].reshape(2, -1)
    np.testing.assert_allclose(second, np.minimum(ρ**2 / 50.0, 1.0 / norms))
    np.testing.assert_allclose(column, 2.0 * second)
    first = Products(chosen, cap, 50.0, 1e-5, of_curvature=True)(v, y, kept)[0][:400]
    q, κ = abs(chosen.derivative(v, y)), cap / np.sqrt(norms)
    if loss == "logistic":
        m = np.maximum(q, 1.0 - q)
        exact = np.where(κ >= m, q * (1.0 - q), np.where(q < 0.5, κ * (1.0 - m) / m, 0.0))
    elif loss == "poisson":
        exact = np.where((q <= κ) & (v < chosen.highest), np.exp(v), 0.0)
    else:
        exact = 1.0 * (abs(v - y) <= np.minimum(κ, chosen.slope if loss == "huber" else math.inf))
    sure = abs(q - κ) > 1e-3  # away from the kinks
    np.testing.assert_allclose(first[sure], np.minimum(exact / 50.0, 1.0 / norms)[sure], atol=1e-8)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_both_matrices_are_charged_as_planned(loss):
    seen = []
    spec = job(loss)
    result = vfl.train(spec, table(loss), at="inprocess", watch=seen.append)
    planned = plan(spec, N)
    rounds = [event for event in seen if isinstance(event, Round)]
    p = planned.problem.layout.n_coordinates
    ends = [event for event, _ in planned.releases if event.dimension == p * (p + 1) // 2]
    assert len(ends) == 2
    assert [r.events[0] for r in rounds if r.events and r.events[0] in ends] == ends
    assert planned.epsilon <= 1.0 + 1e-9
    assert result.certificate.epsilon <= 1.0 + 1e-9
    assert len(rounds) <= planned.messages
    assert result.inference is not None
    assert all("for products of columns" in result.certificate.who_sees_what[who] for who in ("party", "coordinator"))
    without = plan(replace(spec, privacy=vfl.Privacy(epsilon=1.0)), N)
    assert without.epsilon == pytest.approx(planned.epsilon)


def known_of(problem, means):
    """Return moments of columns in [−1, 1] with these means, of which the first is 1 or −1 and the others uniform."""
    c, M = np.zeros(problem.layout.n_coordinates), np.full(problem.layout.n_coordinates, problem.loss.curvature)
    c[: len(means)] = means
    M[problem.intercept == 0.0] *= 1.0 / 3.0
    M[0] = problem.loss.curvature * (1.0 - c[0] ** 2)
    return Curvature(c, M)


class TestDamping:
    @pytest.mark.parametrize("loss", ["squared", "logistic"])
    def test_rare_values_fit_under_the_bound_and_no_other_column_changes(self, loss):
        problem = plan(job(loss, privacy={"epsilon": 8.0}), 100_000).problem
        event = products.events_of(problem, 0.5)[0]
        known, p = known_of(problem, (2 * 0.001 - 1.0, 0.3)), problem.layout.n_coordinates
        d = products.damping(problem, known, event)
        record = (d[0] ** 2) * 0.999 / 0.001 + p - 1
        assert record == pytest.approx(products.longer(problem, event) * p, rel=1e-6)
        assert d[1:].tolist() == [1.0] * (p - 1)

    @given(means=st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=2), mu=st.sampled_from([1e-3, 0.1, 10.0]))
    def test_noise_stays_a_tenth_of_a_typical_curvature_at_most_or_is_not_raised(self, means, mu):
        problem = plan(job("squared"), N).problem
        event = products.events_of(problem, mu)[0]
        d = products.damping(problem, known_of(problem, means), event)
        relative = event.sigma * products.bounds_of(problem, 9.0, event)[0] / N / d**2
        assert ((d > 0.0) & (d <= 1.0)).all()
        assert ((relative <= 0.1 * (1 + 1e-9)) | (d == 1.0)).all()


def test_bounds_grow_with_what_the_budget_allows():
    """Longer records then count in full, and noise stays a small part of the curvature."""
    problem = plan(job("squared"), N).problem
    bounds = [products.longer(problem, products.events_of(problem, mu)[0]) for mu in (0.01, 0.1, 10.0)]
    assert bounds[0] == bounds[1] == products.LONGER < bounds[2]


def piece_of(spec, number, scale=1.0):
    problem = plan(spec, N).problem
    rows = {
        party: (block, np.full(block.size, 0.1), np.full(block.size, scale))
        for party, block in problem.layout.whole().items()
    }
    event = products.events_of(problem, 0.01)[0]
    return products.pieces_of(problem, rows, products.weightings_of(problem, problem.loss, 5.0, event)[0], event)[
        number
    ]


@pytest.fixture
def column_by_column(monkeypatch):
    """Let margins hold a single column at a time."""
    monkeypatch.setattr(gram, "MOST_HELD_BYTES", 1)


class TestTheParty:
    def record(self, charges, spec, number, scale=1.0):
        charges.record(piece_of(spec, number, scale).shares()["b"], ReleaseKey(number))

    @pytest.mark.usefixtures("column_by_column")
    def test_planned_pieces_pass(self):
        spec = job("squared")
        own = RunCount(spec, "b", N)
        for number in range(2):
            self.record(own, spec, number)

    @pytest.mark.usefixtures("column_by_column")
    def test_another_scale_within_a_matrix_is_refused(self):
        spec = job("squared")
        own = RunCount(spec, "b", N)
        self.record(own, spec, 0)
        with pytest.raises(ConsentRefused, match="part of a release"):
            self.record(own, spec, 1, scale=2.0)

    def test_a_job_without_intervals_has_no_pieces(self):
        spec = job("squared")
        without = replace(spec, intervals=None)
        with pytest.raises(ConsentRefused, match="part of a release"):
            self.record(RunCount(without, "b", N), spec, 0)


@pytest.mark.usefixtures("column_by_column")
@pytest.mark.parametrize("change", ["cap", "centre", "weighting", "twice", "upper"])
def test_other_sums_are_refused(change):
    piece = piece_of(job("squared"), 1)
    assert piece.clip.sensitivity_of(piece, 1) == piece.clip.sensitivity
    clip = replace(piece.clip, cap=0.5) if change == "cap" else piece.clip
    given = {
        "cap": {"clip": clip},
        "centre": {"centres": tuple(1e9 + c for c in piece.centres)},
        "weighting": {"weighting": loss_of("squared")},
        "twice": {"own": True},
        "upper": {"held": replace(piece.held, offset=4)},
    }[change]
    with pytest.raises(PrivacyError, match="products"):
        clip.sensitivity_of(replace(piece, **given), 1)


@pytest.mark.parametrize("where", ["alone", "under a record cap"])
def test_products_outside_a_planned_piece_are_refused(where):
    """The clip 'norm' bounds one column of them, and a record cap leaves them as they are: Δ would be too small."""
    spec = replace(job("squared"), privacy=vfl.Privacy(epsilon=1.0))
    piece = piece_of(job("squared"), 0).shares()["b"]
    clip = Clip(1.0, piece.blocks[0].size)
    event = clip.event(1.0)
    paid = Paid(ReleaseKey(0), event)
    rows = {"b": (piece.blocks[0], piece.centres[0], piece.scales[0])}
    changes = {
        "alone": {},
        "under a record cap": {"capped": RecordCap(1.0, rows, paid=paid)},
    }[where]
    query = replace(piece, weighting=loss_of("squared"), clip=clip, event=event, **changes)
    with pytest.raises(PrivacyError, match="products"):
        query.check()
    with pytest.raises(ConsentRefused, match="plan does not contain"):
        RunCount(spec, "b", N).record(query, ReleaseKey(0))
    own = {
        name: getattr(query, name) for name in ("weighting", "blocks", "centres", "scales", "clip", "event", "capped")
    }
    Backward(**own).check()  # a plain sum is bounded by either


def other(query, **changes):
    """Return a piece with other options of its weighting, or with other fields."""
    if "weighting" in changes:
        changes["weighting"] = replace(query.weighting, **changes["weighting"])
    if "fold" in changes:
        changes["fold"] = replace(query.fold, **changes["fold"])
    if "clip" in changes:
        changes["clip"] = replace(query.clip, **changes["clip"])
    return replace(query, **changes)


ATTACKS = {
    "the same piece again": lambda q: q,
    "at another model, so with other weights": lambda q: other(q, weighting={"half": 2.0 * q.weighting.half}),
    "under another cap": lambda q: other(q, weighting={"cap": 10.0 * q.weighting.cap}),
    "with a weighting without a bound": lambda q: replace(q, weighting=q.weighting.loss),
    "of the other matrix": lambda q: other(q, weighting={"of_curvature": not q.weighting.of_curvature}),
    "with a larger clip": lambda q: other(q, clip={"cap": 2.0}),
    "with half of the noise": lambda q: replace(q, event=replace(q.event, sigma=q.event.sigma / 2.0)),
    "with an event of a smaller sensitivity": lambda q: replace(
        q, event=replace(q.event, sensitivity=q.event.sensitivity / 2.0, sigma=q.event.sigma / 2.0)
    ),
    "without noise": lambda q: replace(q, event=None),
    "a later piece": lambda q: other(q, fold={"number": q.fold.number + 2}),
    "the other piece": lambda q: other(q, fold={"number": 1 - q.fold.number}),
    "of a smaller matrix": lambda q: other(q, fold={"of": q.fold.of - 1}),
    "with other columns": lambda q: replace(q, held=replace(q.held, start=0, stop=2)),
    "with the own triangle, or without": lambda q: replace(q, own=not q.own),
    "in other units": lambda q: replace(q, scales=tuple(2.0 * s for s in q.scales)),
    "around another centre": lambda q: replace(q, centres=tuple(c + 1.0 for c in q.centres)),
    "as a release of its own": lambda q: replace(q, fold=None),
    "as a capped release": lambda q: replace(q, fold=None, clip=Clip(1.0, sum(q.sizes()))),
}


@pytest.mark.usefixtures("column_by_column")
def test_a_party_with_a_book_makes_no_other_release_for_intervals(monkeypatch, tmp_path):
    """A coordinator follows every piece of a run by each of ATTACKS, under a new key. The book stays at the job's ε."""
    answer, refused, spec = Party.answer, Counter(), job("squared", privacy={"delta": 1e-6})
    policies = {party: tmp_path / f"{party}.toml" for party in spec.partition.parties}
    for path in policies.values():
        path.write_text('format = 1\njobs = ["*"]\nproducts = true\n[total]\nepsilon = 4.0\ndelta = 1e-6\n')

    def attacked(self, query, records, key):
        reply = answer(self, query, records, key)
        if isinstance(query, Backward) and query.fold is not None:
            own = self._charges
            for name, attack in ATTACKS.items():
                state = own._passes.copy(), own._batches.copy(), own._parts.copy()
                with pytest.raises((ConsentRefused, PrivacyError)):
                    answer(self, attack(query), records, replace(key, attempt=key.attempt + 1))
                refused[name] += 1
                own._passes, own._batches, own._parts = state  # the run continues as if it had not been attacked
        return reply

    monkeypatch.setattr(Party, "answer", attacked)
    result = vfl.train(spec, vfl.Source(table("squared"), policy=policies), at="inprocess")
    assert result.inference is not None
    assert set(refused) == set(ATTACKS)
    assert set(refused.values()) == {6}  # of each matrix, two pieces at b and one at a
    for party in policies:
        (balance,) = SqliteLedger(tmp_path / f"{party}.ledger").show()
        assert balance.spent == pytest.approx(1.0)
