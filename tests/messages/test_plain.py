"""Every message of every solver: plain data on the way, the same query at the party, and no event below its sensitivity."""

from __future__ import annotations

import contextlib
import io
import math
import pickle
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.charging.charger import Charger
from coordinator.cluster.ray_transport import RayTransport
from coordinator.coordinator import Coordinator
from coordinator.executor import Executor
from coordinator.states.linear_predictors import LinearPredictors
from parties.loading import load
from tests.parties.alone import party_over
from tests.solvers import setting
from vfl.base.problem import Block
from vfl.errors import FederationError, PrivacyError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.network.kinds import FORMAT, from_plain, register, to_plain
from vfl.network.messages import Greeting, LedgerHeads, Notice, Phase
from vfl.privacy.events import BoundedRange, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.ledger import Head
from vfl.privacy.noise import SeededNoise
from vfl.privacy.selection import NoisyScore
from vfl.queries import (
    Backward,
    Descend,
    Fold,
    Gram,
    Paid,
    Piece,
    Query,
    RecordCap,
    Records,
    Reply,
    Sample,
    Select,
    Tally,
)
from vfl.queries.protocol import Derivative
from vfl.solvers.noisy_gram import GramClip, Row
from vfl.solvers.releases.labels import ClassCounts

if TYPE_CHECKING:
    from parties.party import Party
    from parties.storage.classes import Storage

KEY = ReleaseKey(0)
SOLVERS: dict[str, tuple[Any, str]] = {
    "SkGD": (vfl.SkGD(passes=2), "logistic"),
    "SkGD by blocks": (vfl.SkGD(passes=2, details=vfl.solvers.Details(message="block", parallel=2)), "logistic"),
    "SkGD, record cap": (vfl.SkGD(passes=2, clip="record"), "logistic"),
    "SkGD, released moments and labels": (vfl.SkGD(passes=2, details=vfl.solvers.Details(label_share=0.1)), "squared"),
    "CD": (vfl.solvers.CD(passes=2), "squared"),
    "GCD GS-r": (vfl.solvers.GCD(rounds=3), "logistic"),
    "GCD GS-s": (vfl.solvers.GCD(rounds=3, rule="GS-s"), "logistic"),
    "GCD GS-q": (vfl.solvers.GCD(rounds=3, rule="GS-q"), "logistic"),
    "GD": (vfl.solvers.GD(passes=2), "logistic"),
    "SGD, disjoint": (vfl.solvers.SGD(passes=1, sampling="disjoint"), "logistic"),
    "SGD, Poisson": (vfl.solvers.SGD(passes=1, sampling="poisson"), "logistic"),
    "SVRG": (vfl.solvers.SVRG(passes=1, sampling="disjoint"), "logistic"),
    "SCD": (vfl.solvers.SCD(passes=1, sampling="disjoint"), "hinge"),
    "SCD, both": (vfl.solvers.SCD(passes=1, sampling="disjoint", release="both"), "logistic"),
    "OutputPerturbation": (vfl.solvers.OutputPerturbation(tolerance=0.1), "logistic"),
    "NoisyGram": (vfl.solvers.NoisyGram(constant=False), "squared"),
}


class Recording(InProcessTransport):
    """Keeps the shares and replies of a run in the form in which they are sent."""

    def __init__(self, spec: vfl.Job) -> None:
        sources = sources_of(spec, setting.table(spec.loss)).items()
        super().__init__({name: load(spec.for_party(name), source) for name, source in sources})
        self.asked: list[tuple[str, Query, Records]] = []
        self.replies: list[Reply] = []

    def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
        self.asked += [(name, share, records) for name, share in shares.items()]
        replies = super().ask(shares, records, key)
        self.replies += replies.values()
        return replies


@cache
def run(name: str, private: bool) -> tuple[Recording, tuple[Query, ...]]:
    """Return a transport that keeps all messages, and the queries before they are split."""
    solver, loss = SOLVERS[name]
    if "released" in name and not private:
        solver = solver.changed(label_share=None)
    spec = setting.job(solver, loss, epsilon=2.0 if private else None, intercept="released" in name)
    if private and "released" in name:
        spec = replace(spec, privacy=replace(spec.privacy, smoothness="private"))
    transport, whole = Recording(spec), []
    charge = Charger.charge

    def noted(self: Charger, query: Query, number: int) -> Any:
        whole.append(query)
        return charge(self, query, number)

    patch = pytest.MonkeyPatch()
    patch.setattr(Charger, "charge", noted)
    try:
        list(Coordinator(transport).stream(spec))
    finally:
        patch.undo()
    return transport, tuple(whole)


EACH = pytest.mark.parametrize("name", SOLVERS)
BOTH = pytest.mark.parametrize("private", [True, False], ids=["private", "exact"])


class NoClasses(pickle.Unpickler):
    """Unpickles plain values, and arrays where they are allowed; no other class or function."""

    allowed: frozenset[tuple[str, str]] = frozenset()

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("numpy._core", "numpy.core"), name) not in self.allowed:
            raise AssertionError(f"the pickle names {module}.{name}")
        return super().find_class(module, name)


class ArraysOnly(NoClasses):
    allowed = frozenset({("numpy.core.numeric", "_frombuffer"), ("numpy", "dtype"), ("numpy", "ndarray")})


@EACH
@BOTH
def test_a_share_is_plain_data(name: str, private: bool) -> None:
    transport, _ = run(name, private)
    assert transport.asked
    for _, share, _ in transport.asked:
        plain = to_plain(share)
        # Protocol 5 with buffers in band: an array would name numpy's classes.
        assert NoClasses(io.BytesIO(pickle.dumps(plain, protocol=5))).load() == plain
        assert to_plain(from_plain(plain, Query)) == plain


@EACH
@BOTH
def test_a_reply_is_plain_data_and_one_vector(name: str, private: bool) -> None:
    transport, _ = run(name, private)
    for reply in transport.replies:
        plain = to_plain(reply)
        assert len(ArraysOnly(io.BytesIO(pickle.dumps(plain, protocol=5))).load()) == len(plain)
        back = from_plain(plain, Reply)
        assert [u.tobytes() for u in back.released] == [u.tobytes() for u in reply.released]
        assert back.selected == reply.selected


@EACH
@BOTH
def test_a_query_for_the_coordinator_has_a_plain_form_too(name: str, private: bool) -> None:
    for query in run(name, private)[1]:
        if isinstance(query, Sample | Tally):
            assert to_plain(from_plain(to_plain(query), Query)) == to_plain(query)


def test_a_parameter_out_of_range_is_refused_in_a_sentence() -> None:
    """A statistic's own check is no error of the party's process."""
    plain = to_plain(Tally(ClassCounts(3), None))
    for lie in (("class_counts", 1), ("label_rate", 1.0, 0.0, 1.0, 1.0)):
        with pytest.raises(PrivacyError, match=f"the statistic kind '{lie[0]}' is refused"):
            from_plain((*plain[:2], lie, *plain[3:]), Query)


def test_no_package_can_add_a_query() -> None:
    """A query from outside could leave a party without noise, so the table of messages is closed, to new names as to old."""
    for name in ("leak", "moments"):
        with pytest.raises(PrivacyError, match="no package can register a message"):
            register("message", name, Block)
    for family in ("event", "batch"):  # a batch of all records would be covered by the charge of disjoint ones
        with pytest.raises(PrivacyError, match=f"no package can register a {family}"):
            register(family, "leak", Block)
    with pytest.raises(PrivacyError, match="unknown message kind 'leak'"):
        from_plain((FORMAT, "leak"), Query)


def test_messages_to_an_actor_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Ray transport sends tuples, with n-vectors beside them."""
    sent: list[Any] = []

    class Method:
        def remote(self, *arguments: Any) -> Any:
            sent.append(arguments)
            return (FORMAT, "reply", (), None, None, 0.0), {}

    class Actor:
        call = Method()

    transport = RayTransport({"bank": Actor(), "telco": Actor()}, 1.0)
    monkeypatch.setattr("coordinator.cluster.ray_transport.answer_of", lambda name, answer, *_: answer)
    for _, share, records in run("GCD GS-q", True)[0].asked:
        with contextlib.suppress(FederationError):  # the actor answers no query
            transport.ask({"bank": share}, records, KEY)
    assert sent
    for plain, names, passed, *vectors in sent:
        NoClasses(io.BytesIO(pickle.dumps((plain, names, passed)))).load()
        assert all(type(vector) is np.ndarray for vector in vectors)
    assert any(len(each) > 3 for each in sent)


class Untouchable:
    """Columns that raise an error on every computation."""

    kernels = None
    n_records = setting.N
    n_coordinates = len(setting.COLUMNS)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the party read its {name}")


def party(name: str, columns: Any = None) -> Party:
    storage: Storage = columns or Untouchable()
    return party_over(name, storage, SeededNoise(0), exact=(Query,))


def lowered(query: Query, factor: float) -> Query | None:
    """Return the query with events of a smaller sensitivity; None if it has no event."""
    if isinstance(query, Descend):
        steps = {
            q: tuple(
                replace(s, event=s.event and replace(s.event, sensitivity=factor * s.event.sensitivity)) for s in own
            )
            for q, own in query.steps.items()
        }
        return replace(query, steps=steps)
    if isinstance(query, Select):
        rules = {q: replace(rule, sensitivity=factor * rule.sensitivity) for q, rule in query.rules.items()}
        return replace(query, rules=rules)
    event = getattr(query, "event", None)
    if event is None or isinstance(event, BoundedRange):
        return None
    lower = replace(query, statistic=query.statistic) if isinstance(query, Tally) else query
    return replace(lower, event=replace(event, sensitivity=factor * event.sensitivity))


@EACH
def test_a_party_refuses_an_event_with_too_small_a_sensitivity(name: str) -> None:
    """0.4 of the joint sensitivity is less than any party's share needs here, so the party computes nothing."""
    tried = 0
    for owner, share, records in run(name, True)[0].asked:
        less = lowered(share, 0.4)
        if less is not None:
            tried += 1
            with pytest.raises(PrivacyError, match="does not cover"):
                party(owner).answer(from_plain(to_plain(less), Query), records, KEY)
    assert tried or name == "OutputPerturbation"  # its only release is the coordinator's


@EACH
def test_the_executor_refuses_an_event_a_thousandth_below(name: str) -> None:
    for query in run(name, True)[1]:
        query.check()
        needed, event = query.required(), getattr(query, "event", None)
        if isinstance(query, Descend):
            factor = 0.999
        elif needed is not None and event is not None:
            factor = 0.999 * needed / event.sensitivity
        else:
            continue
        with pytest.raises(PrivacyError, match=r"does not cover|smaller sensitivity|too small for the sensitivity"):
            lowered(query, factor).check()  # type: ignore[arg-type]


class TestGramClip:
    """Its Δ = √2·C² depends on the shape of a Gram matrix; a plain sum with that cap moves by 2C²."""

    def test_on_a_plain_sum(self) -> None:
        block, clip = Block(0, "a", 0, 2, 0), GramClip(1.0, 2)
        zeros, ones = np.zeros(2), np.ones(2)
        assert clip.sensitivity < 1.42
        event = clip.event(3.0)
        weighting = Derivative(setting.loss_of("squared"))
        plain = Backward(weighting, (block,), (zeros,), (ones,), clip, event)
        for query in (plain, replace(plain, weighting=Row(1.0, 1.0, 0.0, True))):
            with pytest.raises(PrivacyError, match="'gram'"):
                party("a").answer(from_plain(to_plain(query), Query), Records(weights=np.ones(setting.N)), KEY)
            with pytest.raises(PrivacyError, match="'gram' bounds pieces"):
                Executor(InProcessTransport({}), LinearPredictors(np.ones(4)), Charger(None))(query)

    def test_pieces_of_a_plain_sum(self) -> None:
        """All pieces share the charge of the first, and a plain clip bounds each piece alone."""
        block, clip = Block(0, "a", 0, 2, 0), Clip(1.0, 2)
        parts = Row(1.0, 1.0, 0.0, False), (block,), (np.zeros(2),), (np.ones(2),), clip, clip.event(3.0)
        with pytest.raises(PrivacyError, match="one charge pays"):
            Gram(*parts, fold=Piece(1, 3, ())).check()
        for kind, fold in ((Backward, Piece(1, 3, ())), (Gram, None), (Gram, Fold(1, 3, ()))):
            with pytest.raises(PrivacyError, match="are pieces of one release, and no other sums are"):
                kind(*parts, fold=fold)  # type: ignore[arg-type]

    def test_under_a_record_cap(self) -> None:
        """Products ignore a record cap, so a pass that it pays for must not hold them."""
        piece = next(asked for asked in run("NoisyGram", True)[0].asked if isinstance(asked[1], Gram))[1]
        rows = {piece.blocks[0].party: (piece.blocks[0], piece.centres[0], piece.scales[0])}
        with pytest.raises(PrivacyError, match="'gram' bounds pieces"):
            replace(piece, capped=RecordCap(1.0, rows, paid=Paid(KEY, piece.event))).check()

    def test_in_a_visit_and_in_a_selection(self) -> None:
        (_, visit, _), *_ = [asked for asked in run("SkGD", True)[0].asked if isinstance(asked[1], Descend)]
        (owner,) = visit.steps
        step = replace(visit.steps[owner][0], clip=GramClip(1.0, 1))
        with pytest.raises(PrivacyError, match="'gram' bounds pieces"):
            replace(visit, steps={owner: (step,)}).check()
        owner, select, records = next(asked for asked in run("GCD GS-r", True)[0].asked if isinstance(asked[1], Select))
        with pytest.raises(PrivacyError, match="'gram' bounds pieces"):
            party(owner).answer(replace(select, clip=GramClip(1.0, 1)), records, KEY)

    @pytest.mark.parametrize(
        "change",
        [
            lambda q: replace(q, fold=replace(q.fold, number=1, of=2)),
            lambda q: replace(q, clip=replace(q.clip, dimension=3)),
            lambda q: replace(q, clip=replace(q.clip, cap=2 * q.clip.cap)),
            lambda q: replace(q, weighting=replace(q.weighting, square=2 * q.weighting.square)),
            lambda q: replace(q, weighting=replace(q.weighting, of_label=not q.weighting.of_label)),
            lambda q: replace(q, scales=(2 * q.scales[0],)),
            lambda q: replace(q, centres=(q.centres[0] + 1,)),
            lambda q: replace(q, own=False),
            lambda q: replace(q, held=replace(q.blocks[0], party="other")),  # its own columns once more
        ],
    )
    def test_pieces_outside_the_triangle(self, change: Any) -> None:
        owner, piece, records = next(asked for asked in run("NoisyGram", True)[0].asked if isinstance(asked[1], Gram))
        piece.check()
        with pytest.raises(PrivacyError, match="lower triangle"):
            party(owner).answer(change(piece), records, KEY)


def test_a_clip_states_at_least_the_size_of_its_block() -> None:
    """κ_S and the grid belong to one block: a clip of dimension 1 on three columns claims too little rounding."""
    block, clip = Block(0, "a", 0, 3, 0), Clip(1.0, 1)
    weighting = Derivative(setting.loss_of("squared"))
    query = Backward(weighting, (block,), (np.zeros(3),), (np.ones(3),), clip, clip.event(3.0))
    with pytest.raises(PrivacyError, match="does not cover"):
        party("a").answer(query, Records(weights=np.ones(setting.N)), KEY)


def test_a_joint_sum_without_bounding_weights_counts_each_party() -> None:
    blocks = Block(0, "a", 0, 2, 0), Block(1, "b", 0, 2, 2)
    zeros, ones, clip = np.zeros(2), np.ones(2), Clip(1.0, 4)
    weighting = Derivative(setting.loss_of("squared"))
    query = Backward(weighting, blocks, (zeros,) * 2, (ones,) * 2, clip, clip.event(3.0))
    assert query.required() == pytest.approx(math.sqrt(2) * clip.sensitivity)
    with pytest.raises(PrivacyError, match="does not cover"):
        query.check()


@EACH
def test_vectors_of_another_length_are_refused(name: str) -> None:
    for owner, share, records in run(name, True)[0].asked:
        if isinstance(share, Backward):
            wrong: Query = replace(share, scales=(np.ones(share.blocks[0].size + 1),))
        elif isinstance(share, Descend):
            step = share.steps[owner][0]
            rule = replace(step.rule, gain=np.ones(step.block.size + 1))
            wrong = replace(share, steps={owner: (replace(step, rule=rule),)})
        elif isinstance(share, Select):
            wrong = replace(share, centres={owner: np.zeros(9)})
        else:
            continue
        with pytest.raises(PrivacyError, match="a vector of another length"):
            party(owner).answer(from_plain(to_plain(wrong), Query), records, KEY)


class TestScores:
    """The ε of a selection depends on the sensitivity of its scores, which the party recomputes."""

    @pytest.mark.parametrize("name", ["GCD GS-r", "GCD GS-s", "GCD GS-q"])
    @pytest.mark.parametrize(
        "change", [lambda r: replace(r, gain=1.01 * r.gain), lambda r: replace(r, unit=1.01 * r.unit)]
    )
    def test_a_steeper_rule_needs_more(self, name: str, change: Any) -> None:
        for owner, share, records in run(name, True)[0].asked:
            if isinstance(share, Select):
                query = replace(share, rules={owner: change(share.rules[owner])})
                with pytest.raises(PrivacyError, match=r"does not cover|exact integer"):
                    party(owner).answer(query, records, KEY)

    def test_a_group_penalty_couples_the_scores(self) -> None:
        owner, share, records = next(a for a in run("GCD GS-r", True)[0].asked if isinstance(a[1], Select))
        rule = replace(share.rules[owner], penalty=vfl.penalties.GroupLasso(0.1))
        with pytest.raises(PrivacyError):
            party(owner).answer(replace(share, rules={owner: rule}), records, KEY)


@pytest.mark.parametrize(
    "message",
    [
        Greeting("1.0", 7, keeps_ledger=True, alignment="ab"),
        Notice(Phase.OPEN, "run", "account", Head(3, "ff"), None),
        LedgerHeads(None, Head(1, "00")),
        Reply((np.array([1.0, math.nan]),), None, NoisyScore(3, 1 << 70), 0.25),
        KEY,
    ],
    ids=lambda message: type(message).__name__,
)
def test_other_messages(message: Any) -> None:
    plain = to_plain(message)
    NoClasses(io.BytesIO(pickle.dumps(plain))).load()
    back = from_plain(plain, type(message))
    assert to_plain(back) == plain
    if not isinstance(message, Reply):
        assert back == message
