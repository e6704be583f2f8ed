"""Training on shares across organisations with a kill at every request: the same model, and no mask used twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from coordinator.rounds import Lost, Round
from tests.faults.at_requests import AFTER, BEFORE, at_requests
from tests.faults.test_lost_organisations import answered, members, table
from tests.faults.test_lost_organisations import job as trusted
from vfl.job.site import Faults
from vfl.launch.sites.open_site import Organisations
from vfl.launch.train import resume
from vfl.privacy.ledger import SqliteLedger
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.test_lost_organisations import Members

pytestmark = pytest.mark.faults

MEMBERS = {DEALER: "notary"}
LOGISTIC: dict[str, Any] = {"solver": vfl.SkGD(passes=20, block_size=2)}
SQUARED: dict[str, Any] = {
    "loss": "squared",
    "solver": vfl.solvers.NoisyGram(),
    "bounds": {"*": (-1.0, 2.0), "y": (0.0, 1.0)},
}
JOINT: dict[str, Any] = {"solver": vfl.SkGD(), "privacy": vfl.Privacy(epsilon=45.0, noise=vfl.SeededNoise(3))}
BEGINNING = [("Meet", "bank"), ("Begin", "telco"), ("Meet", DEALER), ("Begin", DEALER), ("StateRecords", "bank"),
             ("CheckRecords", DEALER), ("Toss", "telco"), ("TakeToss", "bank"), ("SetUp", "bank"),
             ("TakeColumns", "telco"), ("Begin", "bank"), ("StateRecords", "telco")]  # fmt: skip
LASTING = [("MaskAngles", "bank"), ("MaskAngles", "telco"), ("DealTerms", DEALER), ("OpenRows", "bank"),
           ("OpenRows", "telco"), ("CheckRows", "telco"), ("ShareResidual", "telco"), ("DealSum", DEALER),
           ("Contribute", "bank"), ("Contribute", "telco"), ("Disclose", "bank"), ("Disclose", "telco")]  # fmt: skip
PRODUCTS = [
    ("MaskProducts", "bank"),
    ("TakeProducts", "telco"),
    ("DealProducts", DEALER),
    ("ContributeProducts", "telco"),
    ("Disclose", "bank"),
]
ONE = ("ShareResidual", "telco", AFTER)


def job(*, seeded: bool = True, **changes: Any) -> vfl.Job:
    return trusted(seeded=seeded, **{"trust": vfl.federation.Secure(dealer="separate")} | LOGISTIC | changes)


ALONE: dict[str, Any] = {"trust": vfl.federation.Secure(dealer=None), "solver": vfl.SkGD(passes=8, block_size=2)}
ALONE_BEGINNING = [("Meet", "bank"), ("Begin", "telco"), ("SetUp", "bank"), ("TakeColumns", "telco"), ("Begin", "bank"),
                   ("SetUp", "telco"), ("Meet", "telco")]  # fmt: skip
ALONE_LASTING = [("MaskAngles", "bank"), ("MaskAngles", "telco"), ("ShareResidual", "bank"), ("Contribute", "bank"),
                 ("Contribute", "telco"), ("Disclose", "bank"), ("Disclose", "telco")]  # fmt: skip
ALONE_PRODUCTS = [(name, who) for name, who in PRODUCTS if who != DEALER]


def twice(requests: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    return [(*request, when) for request in requests for when in (BEFORE, AFTER)]


def alternating(lasting: Any = LASTING, beginning: Any = BEGINNING) -> list[tuple[str, str, str]]:
    """Return all kills, in an order in which a kill in the middle of a session makes a new one for a kill at its beginning."""
    return [kill for pair in zip(twice(lasting), twice(beginning), strict=True) for kill in pair]


class Kills:
    """Kills participants at the requests of a list, in its order, at most two for one query, and starts them again."""

    def __init__(self, made: Members, planned: list[tuple[str, str, str]]) -> None:
        self.made, self.planned = made, list(planned)
        self.lost: list[Lost] = []
        self._left = 2
        self._lock = threading.Lock()

    def __call__(self, request: str, who: str, when: str) -> None:
        with self._lock:
            if not (self._left and self.planned and self.planned[0] == (request, who, when)):
                return
            self.planned.pop(0)
            self._left -= 1
            name = MEMBERS.get(who, who)
            self.made.kill(name)
            self.made.party(name)

    def watch(self, event: object) -> None:
        """Note a loss; a round that is made allows two more kills."""
        if isinstance(event, Lost):
            self.lost.append(event)
        if isinstance(event, Round):
            self._left = 2


def place_of(made: Members) -> Organisations:
    """Return the coordinator's place, with limits that only a killed participant exceeds."""
    return Organisations(
        made.joined.federation, made.joined.identities["hub"], Faults(wait_timeout_s=120.0, answer_timeout_s=120.0)
    )


def killed(tmp_path: Path, spec: vfl.Job, planned: list[tuple[str, str, str]], patch: pytest.MonkeyPatch) -> None:
    keys: list[tuple[str, bytes]] = []
    with members(tmp_path, spec) as made:
        kills = Kills(made, planned)
        at_requests(kills, patch, keys)
        there = vfl.train(spec, at=place_of(made), watch=kills.watch)
    assert not kills.planned, "not all kills were made"
    # A kill after an answer is found by the next request to the participant; the last one may be after the run's last request.
    assert len(planned) - 1 <= len(kills.lost) <= len(planned)
    assert [MEMBERS.get(event.party, event.party) for event in kills.lost] == [
        MEMBERS.get(who, who) for _, who, _ in planned[: len(kills.lost)]
    ]
    assert there.coef_.tobytes() == vfl.train(spec, table(), at="inprocess").coef_.tobytes()
    assert len(keys) == len(set(keys))  # masks are derived from these keys: none is used in two sessions
    assert spec.secure is not None
    participants = 2 + spec.secure.dealt
    assert len(keys) >= participants * (len(kills.lost) + 1 - len(BEGINNING) * 2)


@pytest.mark.parametrize(
    "planned",
    [[ONE], pytest.param(alternating(), marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
    ids=["one", "every request"],
)
def test_participants_are_killed_and_the_model_is_the_same(
    tmp_path: Path, planned: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path, job(), planned, monkeypatch)


@pytest.mark.parametrize(
    "planned",
    [
        [("ShareResidual", "bank", AFTER)],
        pytest.param(alternating(ALONE_LASTING, ALONE_BEGINNING), marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
    ids=["one", "every request"],
)
def test_parties_without_a_dealer_are_killed(
    tmp_path: Path, planned: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path, job(**ALONE), planned, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kill", twice(ALONE_PRODUCTS), ids=" ".join)
@pytest.mark.parametrize("changes", [SQUARED, JOINT], ids=["squared", "joint steps"])
def test_parties_without_a_dealer_are_killed_over_products(
    tmp_path: Path, changes: dict[str, Any], kill: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path, job(**ALONE | changes), [kill], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kill", twice(PRODUCTS), ids=" ".join)
@pytest.mark.parametrize("changes", [SQUARED, JOINT], ids=["squared", "joint steps"])
def test_participants_are_killed_over_products(
    tmp_path: Path, changes: dict[str, Any], kill: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path, job(**changes), [kill], monkeypatch)


def ended(made: Members, how: str, kill: tuple[str, str, str]) -> None:
    """Run the coordinator until it kills itself at a request."""
    process = made.start("hub", "coordinator", str(made.folder), how, *kill)
    assert process.wait(120.0) == -9, made.said("hub")


@pytest.mark.parametrize(
    ("changes", "kills"),
    [
        (LOGISTIC, [("Contribute", "bank", AFTER)]),
        pytest.param(LOGISTIC, alternating(), marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
        pytest.param(
            ALONE,
            alternating(ALONE_LASTING, ALONE_BEGINNING),
            marks=[pytest.mark.slow, pytest.mark.timeout(1200)],
        ),
        pytest.param(SQUARED, twice(PRODUCTS), marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
        pytest.param(JOINT, twice(PRODUCTS), marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
    ids=["one", "every request", "every request without a dealer", "products", "joint steps"],
)
def test_a_coordinator_that_is_killed_is_resumed(
    tmp_path: Path, changes: dict[str, Any], kills: list[tuple[str, str, str]]
) -> None:
    """Every process of the coordinator ends at the next request of the list, and the next one goes on with the run."""
    spec = job(**changes)
    with members(tmp_path, spec) as made:
        for k, kill in enumerate(kills):
            ended(made, "resume" if k else "new", kill)
        result = resume(tmp_path / "run", at=place_of(made))
    assert result.coef_.tobytes() == vfl.train(spec, table(), at="inprocess").coef_.tobytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fresh_noise_is_charged_again_after_each_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kills of participants and two of the coordinator: every attempt has a key and a charge of its own."""
    spec = job(seeded=False)
    with members(tmp_path, spec) as made:
        for k, kill in enumerate([("DealSum", DEALER, AFTER), ("Contribute", "telco", BEFORE)]):
            ended(made, "resume" if k else "new", kill)
        kills = Kills(made, [("Contribute", "bank", AFTER), ("ShareResidual", "telco", BEFORE)])
        at_requests(kills, monkeypatch)
        result = resume(tmp_path / "run", at=place_of(made), watch=kills.watch)
        books = {party: answered(tmp_path / f"{party}.policy.answered") for party in ("bank", "telco")}
    assert not kills.planned
    assert result.certificate.private
    for keys in books.values():
        assert len(keys) == len(set(keys))
        assert any(attempt > 0 for _, attempt, _ in keys)
    with SqliteLedger(tmp_path / "run" / "ledger.db", readonly=True).read() as state:
        charges = sum(run.account.count for scope in state.scopes.values() for run in scope.runs.values())
    assert charges >= 5  # no later query of a pass rests on a charge from before a loss
