"""Joint steps of SkGD: fewer messages at the same ε, never divergent without noise, and the same model after a restart."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.coordinator import Coordinator
from parties.charges import Charges
from parties.loading import load
from tests.solvers import setting
from vfl.base.problem import Block
from vfl.base.types import Adjacency
from vfl.errors import ConsentRefused, PartyLost, SpecificationError
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.planning import plan, problem_of
from vfl.planning.certificate.issue import planned
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.queries import Step, gram
from vfl.queries.rules import ProxStep
from vfl.solvers.iterates.quadratic import JointSteps
from vfl.solvers.releases import correlations, products

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG = setting.job(vfl.SkGD(joint=True), epsilon=45.0)


def nearly_parallel(n: int = 4_000) -> dict[str, np.ndarray]:
    """Return columns of one party, each nearly parallel to the column of the other party."""
    rng = np.random.default_rng(5)
    b = rng.uniform(-0.9, 0.9, n)
    columns = {c: np.clip(b + 0.1 * rng.uniform(-1, 1, n), -1, 1) for c in setting.COLUMNS[:3]}
    v = 12.0 * (columns["a0"] - b) + 12.0 * (columns["a1"] - columns["a2"])
    return columns | {"b0": b, "y": (v + rng.logistic(scale=0.3, size=n) > 0).astype(int)}


def test_the_energy_of_the_proof_never_rises() -> None:
    """F + ½β‖w − w₋‖²_C with L1 and β = ½, for C above the curvature and model steps to convergence."""
    rng, β, strength, p = np.random.default_rng(2), 0.5, 0.01, 5
    event = Gaussian(Adjacency.REPLACE_ONE, 2.0, 1.0, p)
    for _ in range(8):
        A = rng.standard_normal((6, p)) @ np.diag(rng.uniform(0.1, 3.0, p))
        A[:, 1] = A[:, 0] + 0.05 * A[:, 1]
        H, target, M = A.T @ A, rng.standard_normal(p), rng.uniform(0.5, 2.0, p)
        unit = np.sqrt(M)
        C = (H + np.diag(rng.uniform(0.0, 1.0, p))) / np.outer(unit, unit)
        problem: Any = SimpleNamespace(n_records=1, penalty=vfl.L1(strength), penalised=np.ones(p))
        joint = JointSteps(problem, M, C, passes=100, momentum=β, seed=1)
        rule = ProxStep(np.zeros(p), np.zeros(p), vfl.penalties.NoPenalty())
        step = Step(Block(0, "bank", 0, p, 0), np.zeros(p), np.ones(p), Clip(1.0, p), rule, event)
        w, energies = rng.standard_normal(p), []
        for _ in range(30):
            moves = joint.moves([(step, H @ w - target)], w, np.ones(p))
            w = w + moves
            F = w @ H @ w / 2.0 - target @ w + strength * abs(w).sum()
            energies.append(F + 0.5 * β * (unit * moves) @ C @ (unit * moves))
        assert (np.diff(energies) <= 1e-9 * (1.0 + abs(np.array(energies[1:])))).all()


def test_the_model_has_the_columns_correlations() -> None:
    rng, p, n, bound = np.random.default_rng(1), 4, 50_000, 6.0
    Z = rng.standard_normal((n, p)) @ np.linalg.cholesky(0.5 * np.eye(p) + 0.5).T
    found = Z.T @ Z / bound
    np.testing.assert_allclose(correlations.model(found, bound, 0.0, n), 0.5 * np.eye(p) + 0.5, atol=0.02)
    sigma = 0.25 * np.sqrt(2.0) * n / (2.0 * np.sqrt(p) * bound)  # noise of spectral norm 0.25
    assert np.linalg.eigvalsh(correlations.model(found, bound, sigma, n))[0] == pytest.approx(0.5, abs=0.02)
    assert np.linalg.eigvalsh(correlations.model(found, bound, 3.0 * sigma, n))[0] == pytest.approx(0.75)


def test_the_rule_leaves_the_charge_and_takes_fewer_messages() -> None:
    spec = replace(LONG, privacy=vfl.Privacy(epsilon=45.0, delta=1e-5))
    ours, plain = plan(spec, 4_000), plan(replace(spec, solver=vfl.SkGD()), 4_000)
    assert ours.solver.joint
    assert ours.messages < 0.5 * plain.messages
    assert ours.epsilon == pytest.approx(plain.epsilon, rel=1e-6)
    assert not ours.solver.several_steps  # parties see residuals alone
    assert any("products of columns" in line for line in ours.solver.explain(problem_of(spec, 4_000)))


def test_short_runs_take_steps_column_by_column() -> None:
    spec = replace(LONG, privacy=vfl.Privacy(epsilon=0.3, delta=1e-5))
    assert plan(spec, 4_000).solver == plan(replace(spec, solver=vfl.SkGD()), 4_000).solver


def test_the_plan_says_what_joint_steps_would_save_and_why_none_are_taken() -> None:
    def said(spec: vfl.Job) -> str:
        return " ".join(plan(spec, 4_000).explain().split())

    plain, few = replace(LONG, solver=vfl.SkGD()), vfl.Privacy(epsilon=0.3, delta=1e-5)
    fewer, now = (plan(spec, 4_000).messages for spec in (LONG, plain))
    assert f"joint = true would train in {fewer} messages in place of {now}, but" in said(plain)
    assert "products = true" in said(plain)
    assert "joint = true" not in said(LONG)
    assert "joint = true" not in said(replace(plain, privacy=few))
    assert "joint = true changes nothing: below a signal-to-noise ratio" in said(replace(LONG, privacy=few))
    own_clips = setting.job(vfl.SkGD(joint=True), "squared", epsilon=4_000.0)
    assert "joint = true changes nothing: each column has a clip of its own" in said(own_clips)


def test_the_certificate_says_what_the_resolved_run_does() -> None:
    """A job that asks for joint steps may show columns. A run that takes none shows none, and has no cap of products."""
    few = replace(LONG, privacy=vfl.Privacy(epsilon=0.3, delta=1e-5))
    assert few.shows_columns
    for spec, shown in ((LONG, True), (few, False)):
        stated = planned(plan(spec, 4_000))
        assert ("columns of the parties before it" in stated["who_sees_what"]["party"]) is shown
        assert ("for products of columns, Frobenius norm" in stated["geometry"]) is shown
        assert "cap record_clip·√p" in stated["geometry"]


def test_nearly_parallel_columns_of_two_parties_need_no_more_passes() -> None:
    data = nearly_parallel()

    def left(solver: vfl.SkGD, seed: int) -> float:
        spec = replace(LONG, solver=solver, penalty=vfl.L2(1e-4))
        spec = replace(spec, privacy=vfl.Privacy(epsilon=45.0, delta=1e-5, noise=vfl.SeededNoise(seed)))
        w = vfl.train(spec, data, at="inprocess").w
        v = np.column_stack([data[c] for c in setting.COLUMNS]) @ w
        return problem_of(spec, 4_000).value(w, v, 2.0 * data["y"] - 1.0)

    seeds = range(3)
    joint = np.mean([left(vfl.SkGD(joint=True), seed) for seed in seeds])
    whole = np.mean([left(vfl.SkGD(), seed) for seed in seeds])
    few = np.mean([left(vfl.SkGD(passes=40), seed) for seed in seeds])
    assert joint - whole < 0.2 * (few - whole)


def test_a_run_goes_on_where_it_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlations, "LONGER", 0.5)  # 300 records
    spec = replace(LONG, solver=vfl.SkGD(joint=True, passes=4))
    assert plan(spec, setting.N).solver.joint
    made, whole = setting.drive(spec)
    for cut in (5, 9, len(made) - 2):
        np.testing.assert_array_equal(setting.drive(spec, setting.log_of(made, cut))[1].w, whole.w)


def test_a_partys_book_pays_for_the_pieces_of_one_matrix_once_and_takes_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gram, "MOST_HELD_BYTES", 1)  # one column at a time
    assert LONG.privacy is not None
    planned = plan(replace(LONG, privacy=replace(LONG.privacy, noise=None)), 4_000)
    problem, whole = planned.problem, planned.problem.layout.whole()
    party = next(reversed(whole))

    def charged(n: int, numbers: Sequence[int], stretched: int = 99) -> list[int]:
        own, found, taken = Charges(planned.job, party), [], []
        own._plan, own._reservation = plan(planned.job, n), SimpleNamespace(charge=taken.extend)  # type: ignore[assignment]
        for k, number in enumerate(numbers):
            scale = 1.0 + (number >= stretched)
            rows = {q: (block, np.full(block.size, 0.1), np.full(block.size, scale)) for q, block in whole.items()}
            weighting = correlations.weighting_of(problem, problem.loss, 3.0)
            event = correlations.event_of(problem, 0.2)
            query = products.pieces_of(problem, rows, weighting, event)[number].shares()[party]
            before = len(taken)
            own.record(query, ReleaseKey(k))
            found.append(len(taken) - before)
        return found

    every = range(3)  # the columns of the first party
    assert planned.solver.joint
    assert charged(4_000, every) == [1, *[0] * (len(every) - 1)]
    assert charged(4_000, (0, 1, 1, 2)) == [1, 0, 1, 0]  # a repeated piece is another release
    with pytest.raises(ConsentRefused, match="plan does not contain"):
        charged(4_000, every, stretched=1)
    assert not plan(planned.job, 50).solver.joint
    with pytest.raises(ConsentRefused, match="plan does not contain"):  # the public rule takes no joint steps
        charged(50, every)


class WithoutBank(InProcessTransport):
    """Loses the party 'bank' for good at a query of its own."""

    left = 0

    def ask(self, shares: Any, records: Any, key: Any) -> Any:
        """Answer as the parties do before the loss."""
        self.left -= "bank" in shares
        if "bank" in shares and self.left < 1:
            raise PartyLost("'bank' died", "bank")
        return super().ask(shares, records, key)


@pytest.mark.parametrize("number", [3, 4, 9], ids=["at the columns", "at the products", "at a step"])
def test_a_run_ends_without_a_lost_party(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlations, "LONGER", 0.5)
    spec = replace(LONG, solver=vfl.SkGD(joint=True, passes=5))
    sources = sources_of(spec, setting.table("logistic")).items()
    transport = WithoutBank({name: load(spec.for_party(name), source) for name, source in sources})
    transport.left = number
    *_, outcome = Coordinator(transport, faults=Faults(on_party_lost="skip", wait_timeout_s=0.1)).stream(
        spec, None, None
    )
    w = np.asarray(outcome.w)
    assert (w[:3] == 0.0).all()
    assert 0.0 < abs(w[3]) < 10.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"step_size": 0.5}, "step_size"),
        ({"sampling": "uniform"}, "sampling"),
        ({"clip": "coordinate"}, "clip"),
        ({"joint": "yes"}, "True or False"),
    ],
)
def test_options_that_joint_steps_decide_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        vfl.SkGD().changed(**({"joint": True} | options))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": "smoothed_hinge"}, "logistic or squared"),
        ({"loss": "multinomial", "classes": (0, 1)}, "logistic or squared"),
        ({"columns": {"*": vfl.Curve(4, smooth=1.0)}}, "terms of their own"),
        (
            {"penalty": vfl.penalties.NoPenalty(), "privacy": vfl.Privacy(epsilon=45.0), "intervals": True},
            "standard errors",
        ),
    ],
)
def test_problems_that_the_model_does_not_describe_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        plan(replace(LONG, intercept=True, **changes), 4_000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"joint": True, "momentum": 0.6}, "diverge"),
        ({"joint": False, "momentum": 0.2}, "only joint steps"),
        ({"momentum": -0.1}, "0 and"),
    ],
)
def test_momentum_is_of_joint_steps_alone(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        vfl.SkGD().changed(**options)
    with pytest.raises(SpecificationError, match="only joint steps"):
        vfl.plan(setting.job(vfl.SkGD(details=vfl.solvers.Details(momentum=0.2)), epsilon=2.0), 1_000)


def test_noisy_runs_take_half_of_the_passes_at_the_same_charge() -> None:
    """Not for a last iterate, whose noise is not averaged."""
    spec = setting.job(vfl.SkGD(), "logistic", epsilon=1.0, intercept=True)
    spec = replace(spec, privacy=replace(spec.privacy, noise=None))
    ours, last = (
        vfl.plan(spec, 1_500),
        vfl.plan(replace(spec, solver=vfl.SkGD(details=vfl.solvers.Details(iterate="last"))), 1_500),
    )
    assert ours.messages < 0.8 * last.messages
    assert ours.epsilon == pytest.approx(last.epsilon, rel=1e-6)
