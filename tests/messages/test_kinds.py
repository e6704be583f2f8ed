"""Registered kinds: the content of plain forms, and refusals by their receiver."""

from __future__ import annotations

import importlib.metadata
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from tests.messages import listing
from tests.solvers import setting
from vfl.base.losses import LOSSES, Huber, Logistic
from vfl.base.penalties import L1, PENALTIES, Box, ElasticNet
from vfl.base.problem import Block
from vfl.errors import PrivacyError
from vfl.network.kinds import FORMAT, from_plain, to_plain
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.geometry import Clip
from vfl.queries import Descend, Query, RecordNorms, Step, kinds
from vfl.queries.kinds import decode, encode, register, registered
from vfl.queries.protocol import Derivative, Solver
from vfl.queries.rules import ProxStep
from vfl.solvers import joint

if TYPE_CHECKING:
    from vfl.base.types import Vector


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_a_plain_form(name: str) -> None:
    plain = encode("loss", LOSSES[name]())
    assert plain[0] == name
    assert decode("loss", plain) == LOSSES[name]()


@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_has_a_plain_form(name: str) -> None:
    penalty = PENALTIES[name](**({"strength": 1} if name not in ("none", "box") else {}))  # type: ignore[call-arg]
    assert decode("penalty", encode("penalty", penalty)) == penalty


def test_plain_forms_are_spelt_as_documented() -> None:
    assert encode("penalty", L1(1)) == ("l1", 1.0)
    assert encode("weighting", Derivative(Huber(2))) == ("derivative", ("huber", 2.0, 1.0))
    assert encode("penalty", Box(low=0)) == ("box", 0.0, math.inf)
    rule = ProxStep(np.array([0.5]), np.array([2.0]), ElasticNet(0.1))
    vectors = (np.array([0.5]).tobytes(), np.array([2.0]).tobytes())
    assert encode("rule", rule) == ("prox_step", *vectors, ("elastic_net", 0.1, 0.5))
    assert to_plain(RecordNorms({"a": (Block(0, "a", 0, 1, 0), np.zeros(1), np.ones(1))})) == (
        FORMAT,
        "record_norms",
        (("a", ((0, "a", 0, 1, 0), np.zeros(1).tobytes(), np.ones(1).tobytes())),),
        "training",
        "norms",
        None,
        None,
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_vectors_travel_to_the_bit(values: list[float]) -> None:
    vector = np.array(values)
    rule = decode("rule", encode("rule", ProxStep(vector, vector, L1(0.5))))
    assert rule.gain.tobytes() == vector.tobytes()


ONE = np.ones(1).tobytes()
REFUSED = {
    "an unknown kind": ("rule", ("exec", ONE), "unknown rule kind 'exec'"),
    "a misspelt kind": ("penalty", ("l11", 1.0), "did you mean 'l1'"),
    "a kind of another family": ("rule", ("l1", 1.0), "unknown rule kind 'l1'"),
    "an unknown family": ("code", ("l1", 1.0), "unknown code kind"),
    "too few parameters": ("penalty", ("l1",), "takes 1 parameters, not 0"),
    "too many parameters": ("penalty", ("l1", 1.0, 2.0), "takes 1 parameters, not 2"),
    "a number as text": ("penalty", ("l1", "1.0"), "l1' is refused, strength: a number"),
    "a whole number for a number": ("penalty", ("l1", 7), "l1' is refused, strength: a number"),
    "NaN": ("penalty", ("l1", math.nan), "l1' is refused, strength: a number that is not NaN"),
    "what the kind itself refuses": ("penalty", ("l1", -1.0), "l1' is refused: L1 needs a finite strength"),
    "no finite vector": (
        "rule",
        ("prox_step", ONE, np.array([math.inf]).tobytes(), ("none",)),
        "steps: a vector of fin",
    ),
    "NaN in a vector": ("rule", ("prox_step", np.array([math.nan]).tobytes(), ONE, ("none",)), "gain: a vector of fin"),
    "bytes that are no vector": ("rule", ("prox_step", b"1234567", ONE, ("none",)), "gain: a vector of float64"),
    "an array": ("rule", ("prox_step", np.ones(1), ONE, ("none",)), "gain: a vector of float64"),
    "code": ("rule", print, "a rule kind is a name"),
    "code among the parameters": ("rule", ("prox_step", ONE, ONE, print), "penalty: a penalty kind is a name"),
    "a list": ("penalty", ["l1", 1.0], "a penalty kind is a name"),
    "a list as a parameter": ("penalty", ("l1", [1.0]), "a parameter of a wrong type"),
    "no clip": ("clip", ("norm", 0.0, 3), "clip must be positive"),
    "a clip without dimension": ("clip", ("norm", 1.0, 2.0), "dimension: a int is needed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_plain_forms_are_refused(case: str) -> None:
    family, plain, said = REFUSED[case]
    with pytest.raises(PrivacyError, match=said) as refused:
        decode(family, plain)
    assert "\n" not in str(refused.value)


def test_an_object_of_an_unregistered_class_cannot_be_sent() -> None:
    for family, value in (("rule", lambda w, u: w), ("loss", object()), ("penalty", Logistic())):
        with pytest.raises(PrivacyError, match=rf"is not a registered {family} kind"):
            encode(family, value)


def test_a_name_is_registered_once() -> None:
    @dataclass(frozen=True)
    class Mine:
        strength: float

    with pytest.raises(PrivacyError, match="'prox_step' is registered"):
        register("rule", "prox_step", Mine)


def test_a_kind_states_its_parameters() -> None:
    @dataclass(frozen=True)
    class Opaque:
        inside: object

    with pytest.raises(PrivacyError, match=r"Opaque.inside.* no plain form"):
        register("rule", "opaque", Opaque)
    with pytest.raises(PrivacyError, match="is not a dataclass"):
        register("rule", "opaque", int)


PLAIN = to_plain(RecordNorms({"a": (Block(0, "a", 0, 1, 0), np.zeros(1), np.ones(1))}))


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ((FORMAT + 1, *PLAIN[1:]), "a format different"),
        (list(PLAIN), "a format different"),
        ((FORMAT,), "a format different"),
        ((FORMAT, "shell", "rm"), "unknown message kind 'shell'"),
        ((FORMAT, "reply", (), None, None, 0.0), "a Query is needed, not Reply"),
        (
            (FORMAT, "record_norms", (("a", ((0, "a", 2, 1, 0), ONE, ONE)),), "training", "norms", None, None),
            "a block needs 0 <= start <= stop",
        ),
        (
            (FORMAT, "record_norms", (("a", ((0, "a", -1, 1, 0), ONE, ONE)),), "training", "norms", None, None),
            "a block needs 0 <= start <= stop",
        ),
        (
            (FORMAT, "record_norms", (("a", ((0, "a", 0, 1, 0), ONE, ONE)),) * 2, "training", "norms", None, None),
            "pairs of different names",
        ),
    ],
)
def test_invalid_messages_are_refused(plain: Any, said: str) -> None:
    with pytest.raises(PrivacyError, match=said):
        from_plain(plain, Query)


@dataclass(frozen=True, slots=True)
class SignStep:
    """A rule of another package: Δ = −s·sign(u)."""

    size: float

    def __call__(self, w: Vector, u: Vector) -> Vector:
        return -self.size * np.sign(u)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignDescent(Solver):
    """A solver of another package: one visit to every party, with a rule of its own."""

    name = "SignDescent"

    def resolve(self, problem: Any) -> Any:
        return self

    def _clip(self, block: Block) -> Clip:
        return Clip(1.0, block.size)

    def releases(self, problem: Any) -> Any:
        if not problem.private:
            return ()
        z = noise_multiplier(problem.mu, 2)
        return tuple((self._clip(block).event(z), 1) for block in problem.layout.whole().values())

    def schedule(self, problem: Any) -> Any:
        events = [event for event, _ in self.releases(problem)] or [None, None]
        w = np.zeros(problem.layout.n_coordinates)
        for block, event in zip(problem.layout.whole().values(), events, strict=True):
            ones, zeros = np.ones(block.size), np.zeros(block.size)
            step = Step(block, zeros, ones, self._clip(block), SignStep(0.25), event)
            (u,) = yield Descend(Derivative(problem.loss), {block.party: (step,)}, {block.party: zeros})
            w[block.coordinates] += step.rule(zeros, u)
        return w

    def explain(self, problem: Any) -> Any:
        return ()

    def messages(self, problem: Any) -> int:
        return 2


def installed() -> None:
    """Register what the entry point of the other package names."""
    register("rule", "sign_step", SignStep)


@pytest.mark.usefixtures("encoded")
class TestAnotherPackage:
    """Between processes, kinds have to be registered; in process, messages are passed as they are."""

    def test_a_solver_whose_rule_is_not_registered_is_refused(self) -> None:
        with pytest.raises(PrivacyError, match="SignStep is not a registered"):
            setting.drive(setting.job(SignDescent()))

    def test_the_entry_point_registers_the_rule_at_both_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        point = importlib.metadata.EntryPoint("signs", f"{__name__}:installed", kinds.GROUP)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == kinds.GROUP else [])
        monkeypatch.setattr(kinds, "_loaded", False)
        monkeypatch.setitem(kinds._families, "rule", dict(kinds._families["rule"]))
        for epsilon in (None, 2.0):
            _, outcome = setting.drive(setting.job(SignDescent(), epsilon=epsilon))
            assert set(np.abs(outcome.w)) == {0.25}
        assert "sign_step" in registered()["rule"]
        kinds.name_of.cache_clear()


def test_joint_queries_carry_the_weighting_by_name() -> None:
    problem = vfl.plan(setting.job(vfl.solvers.GD()), n_records=setting.N).problem
    query = joint.backward(problem, joint.ClippedDerivative(problem.loss, 1.0), Clip(1.0, 4), None)
    for share in query.shares().values():
        assert to_plain(share)[2] == ("clipped_derivative", ("logistic",), 1.0)


def test_the_documented_list_is_the_registered_one() -> None:
    """Another implementation could be written from docs/kinds.tsv: it lists every kind in order, with its parameters."""
    assert f"This is format {FORMAT}." in listing.PATH.with_suffix(".md").read_text(encoding="utf-8")
    assert listing.PATH.read_text(encoding="utf-8").splitlines() == listing.listed(), (
        "run python -m tests.messages.listing; a change to the parameters of a known kind also raises FORMAT"
    )


def test_equal_numbers_of_other_types_are_refused_after_a_valid_form() -> None:
    assert decode("clip", ("norm", 1.0, 2)) is not None
    with pytest.raises(PrivacyError, match="a int is needed"):
        decode("clip", ("norm", 1.0, 2.0))
