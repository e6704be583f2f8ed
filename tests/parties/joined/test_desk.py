"""A coordinator that asks for what it may not: the party refuses in a sentence, and computes nothing."""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from parties.joined.desk import Desk
from parties.prediction import ModelPart
from parties.record_cap import OwnCap
from tests.coordinator.organisations import POLICY, federation
from tests.parties.test_claims import lies
from vfl.base.losses import Logistic
from vfl.base.penalties import L2
from vfl.base.problem import Block
from vfl.base.types import Adjacency
from vfl.crypto.encryption import EncryptionKey, Encryptor
from vfl.errors import PrivacyError, SpecificationError
from vfl.network.federation import events
from vfl.network.kinds import FORMAT, from_plain, to_plain
from vfl.network.messages import (
    AddUp,
    Asked,
    BeginAligning,
    Conclude,
    Done,
    Failure,
    Finish,
    Introduce,
    Introduced,
    Keep,
    Load,
    MakeSalt,
    Measure,
    Multiply,
    Notice,
    Offer,
    Phase,
    Ping,
    Pong,
    ReadIds,
    Score,
    SendLabels,
    SendLinearPredictors,
    SendSet,
    TakeLinearPredictors,
    TakeSalt,
)
from vfl.planning import plan as make_plan
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.ledger import Head
from vfl.queries import Backward, Descend, Forward, Moments, Paid, RecordCap, RecordNorms, Reply, Step
from vfl.queries.protocol import Derivative
from vfl.queries.rules import ProxStep
from vfl.queries.statistics import LabelMean
from vfl.solvers.noisy_gram import GramClip

if TYPE_CHECKING:
    from collections.abc import Iterator

N = 60
PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1"], "telco": ["b0"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys(("a0", "a1", "b0"), (-1.0, 1.0))
PARTIES = ("bank", "telco")


def job(**changes: Any) -> vfl.Job:
    return vfl.Job(
        **{
            "partition": PARTITION,
            "bounds": BOUNDS,
            "privacy": vfl.Privacy(epsilon=1.0),
            "solver": vfl.solvers.GD(passes=3, label_share=0.0),
        }
        | changes
    )


def offer(spec: vfl.Job, **changes: Any) -> Offer:
    made = Offer("train", "run1", json.dumps(spec.to_dict()), spec.digest, PARTIES)
    return replace(made, **changes)


class Counter:
    """A desk with one coordinator in front of it. opened : how often the source was opened."""

    def __init__(self, folder, joined: Any, policy: str = POLICY) -> None:
        self.joined, self.opened, self.events = joined, 0, []
        self.sources: dict[str, Any] = {"": self.source}
        self.desk = Desk(
            joined.federation,
            joined.identities["bank"],
            self.sources,
            joined.policy("bank", policy),
            indexes=str(folder / "index"),
            on_event=self.events.append,
        )
        self.desk.connected(b"1" * 16)

    def source(self) -> Any:
        self.opened += 1
        rng = np.random.default_rng(0)
        return {"customer": list(range(N)), "a0": rng.uniform(-1, 1, N), "a1": rng.uniform(-1, 1, N)}

    def call(self, *messages: object, **vectors: Any) -> tuple[Any, Any]:
        plain = to_plain(messages[0]) if len(messages) == 1 else tuple(map(to_plain, messages))
        raw = {name: np.ascontiguousarray(vector).view(np.uint8).copy() for name, vector in vectors.items()}
        return self.desk.answer(plain, raw, lambda _: None)

    def refused(self, *messages: object, **vectors: Any) -> str:
        answer, back = self.call(*messages, **vectors)
        assert isinstance(answer, Failure), answer
        assert back == {}
        return answer.reason

    def begin(self, spec: vfl.Job) -> None:
        assert isinstance(self.call(offer(spec))[0], Done)
        self.call(Load())
        for phase in (Phase.COMPARE, Phase.OPEN):
            self.call(Notice(phase, "run1", "run run1"))


@pytest.fixture
def counter(tmp_path) -> Iterator[Counter]:
    with federation(tmp_path, PARTIES) as joined:
        yield Counter(tmp_path, joined)


def backward(spec: vfl.Job, **changes: Any) -> Backward:
    """Return the bank's share of the first release of the plan."""
    plan = make_plan(spec, N)
    for query in plan.schedule():
        if isinstance(query, Backward):
            return replace(query.shares()["bank"], **changes)
    raise AssertionError


def block_of_pass(column: int, sigma: float) -> Descend:
    """Return a visit to one of the bank's columns, in a pass that the charge of round 1 pays for."""
    clip = Clip(1.0, 2)
    event = Gaussian(Adjacency.REPLACE_ONE, clip.sensitivity, sigma, 2)
    block = Block(column, "bank", column, column + 1, 0)
    step = Step(block, np.zeros(1), np.ones(1), clip, ProxStep(np.ones(1), np.ones(1), L2(0.1)), event)
    rows = {"bank": (Block(0, "bank", 0, 2, 0), np.zeros(2), np.ones(2))}
    cap = RecordCap(1.0, rows, paid=Paid(ReleaseKey(1), event))
    start = {"bank": np.zeros(2)}
    return Descend(Derivative(Logistic()), {"bank": (step,)}, start, parts={"bank": column}, capped=cap)


VISITED = {name: np.zeros(N) for name in ("margins", "labels", "limits")}
WEIGHTS = {"weights": np.full(N, 0.1)}


class TestOffers:
    def test_no_source_is_opened_before_the_policy_agrees(self, tmp_path) -> None:
        with federation(tmp_path, PARTIES) as joined:
            counter = Counter(tmp_path, joined, POLICY.replace('jobs = ["*"]', "jobs = []"))
            assert "refuses job" in counter.refused(offer(job()))
            assert "not agreed to any work" in counter.refused(Load())
            assert counter.opened == 0
            kinds = [type(event) for event in counter.events]
            assert kinds == [events.Requested, events.Refused]

    def test_a_source_that_the_policy_does_not_list(self, tmp_path) -> None:
        """Neither is an address that no policy lists opened, though the owner offers it."""
        with federation(tmp_path, PARTIES) as joined:
            listing = POLICY.replace("format = 1\n", "format = 1\nsources = [{}]\n")
            counter = Counter(tmp_path, joined, listing.format('"bank.parquet"'))
            for purpose in ("train", "align"):
                assert "by its policy's sources" in counter.refused(offer(job(), purpose=purpose))
            assert counter.opened == 0
            counter = Counter(tmp_path, joined, listing.format('"memory"'))
            assert isinstance(counter.call(offer(job()))[0], Done)
            counter = Counter(tmp_path, joined)
            counter.sources[""] = "postgresql://reader@db.example/bank?table=t"
            assert "has not listed it" in counter.refused(offer(job()))

    def test_a_missing_library_refuses_a_job_without_a_dealer_before_its_source_is_opened(
        self, tmp_path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "tenseal", None)
        monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
        pair = job(trust=vfl.federation.Secure(dealer=None))
        with federation(tmp_path, PARTIES) as joined:
            counter = Counter(tmp_path, joined, POLICY.replace('["trusted"]', '["secure"]'))
            said = counter.refused(offer(pair))
            assert re.search(r"party 'bank' cannot take part in job 'job': .*pip install 'vfl\[he\]'", said)
            assert counter.opened == 0
            assert isinstance(counter.call(offer(job(trust=vfl.federation.Secure(dealer="coordinator"))))[0], Done)

    def test_a_party_needs_a_policy(self, tmp_path) -> None:
        with (
            federation(tmp_path, PARTIES) as joined,
            pytest.raises(SpecificationError, match="only under its owner's policy"),
        ):
            Desk(joined.federation, joined.identities["bank"], {"": None}, None, on_event=lambda _: None)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"job": "{"}, "a job that cannot be read"),
            ({"job": "[]"}, "a job that cannot be read"),
            ({"job": '{"format": 1}'}, "no \\[partition\\]"),
            ({"digest": "00"}, "install one version everywhere"),
            ({"purpose": "steal"}, "has an unknown purpose"),
            ({"parties": ("telco",)}, "not for this party"),
            ({"source": "/etc/passwd"}, "without a source named '/etc/passwd'"),
            ({"purpose": "predict"}, "is not a part of a model"),
        ],
        ids=str,
    )
    def test_an_offer_that_does_not_fit(self, counter, changes, said) -> None:
        import re

        assert re.search(said, counter.refused(offer(job(), **changes)))
        assert counter.opened == 0

    def test_folders_of_the_owner_stay_on_the_owners_screen(self, counter, tmp_path) -> None:
        path = str(tmp_path / "private" / "bank.csv")
        counter.sources[""] = path
        counter.call(offer(job()))
        said = counter.refused(Load())
        assert re.search("'bank.csv':? no such file", said)
        assert str(tmp_path) not in said
        assert path in counter.events[-1].why

    def test_a_run_of_another_coordinator(self, counter) -> None:
        counter.begin(job())
        counter.desk.connected(b"2" * 16)
        assert "continue it with vfl resume" in counter.refused(offer(job()))
        assert isinstance(counter.call(offer(job(), resumed=True))[0], Done)

    def test_other_work_ends_the_first(self, counter) -> None:
        counter.begin(job())
        assert isinstance(counter.call(offer(job(), run="run2"))[0], Done)
        assert any(isinstance(event, events.Ended) and event.run == "run1" for event in counter.events)


class TestQueries:
    def test_a_query_of_the_plan_is_answered(self, counter) -> None:
        spec = job()
        counter.begin(spec)
        answer, _ = counter.call(backward(spec), ReleaseKey(1), **WEIGHTS)
        assert isinstance(answer, Reply)

    def test_a_key_is_answered_once(self, counter, tmp_path) -> None:
        """Also by the next process of the party, and whatever the query."""
        spec = job()
        counter.begin(spec)
        assert isinstance(counter.call(backward(spec), ReleaseKey(1), **WEIGHTS)[0], Reply)
        assert "round 1, attempt 0, part 0" in counter.refused(backward(spec), ReleaseKey(1), **WEIGHTS)
        counter.desk.end("killed")
        counter.call(offer(spec, resumed=True))
        counter.call(Load())
        counter.call(Notice(Phase.OPEN, "run1", "run run1"))
        assert "has answered round 1" in counter.refused(backward(spec), ReleaseKey(1), **WEIGHTS)
        answer, _ = counter.call(backward(spec), ReleaseKey(1, attempt=1), **WEIGHTS)
        assert isinstance(answer, Reply)

    def test_a_smaller_clip_than_is_charged(self, counter) -> None:
        spec = job()
        counter.begin(spec)
        asked = backward(spec)
        small = Gaussian(Adjacency.REPLACE_ONE, asked.event.sensitivity / 100, asked.event.sigma, asked.event.dimension)
        said = counter.refused(replace(asked, event=small), ReleaseKey(1), **WEIGHTS)
        assert "does not cover" in said

    def test_a_release_without_noise(self, counter) -> None:
        spec = job()
        counter.begin(spec)
        assert "release without noise" in counter.refused(backward(spec, event=None), ReleaseKey(1), **WEIGHTS)

    def test_more_than_the_plan_has(self, counter) -> None:
        spec = job()
        counter.begin(spec)
        asked = backward(spec)
        loud = replace(asked, event=replace(asked.event, sigma=asked.event.sigma / 50))
        said = counter.refused(loud, ReleaseKey(1), **WEIGHTS)
        assert "beyond the plan" in said

    @pytest.mark.parametrize(
        "query",
        [
            Forward({"telco": (Block(0, "telco", 0, 1, 0), np.zeros(1))}),
            Forward({"bank": (Block(0, "telco", 0, 1, 0), np.zeros(1))}),
            Forward({"bank": (Block(0, "bank", 0, 9, 0), np.zeros(9))}),
            RecordNorms({"telco": (Block(0, "telco", 0, 1, 0), np.zeros(1), np.ones(1))}),
            Moments({"telco": 1}, None, True, None),
            Moments({"bank": 99}, None, True, None),
            Moments({"bank": -1}, None, True, None),
        ],
        ids=lambda query: type(query).__name__,
    )
    def test_columns_that_are_not_its_own(self, counter, query) -> None:
        counter.begin(job())
        assert "not its own" in counter.refused(query, ReleaseKey(1))

    def test_a_visit_beyond_its_columns(self, counter) -> None:
        counter.begin(job())
        block = Block(0, "bank", 0, 5, 0)
        step = Step(block, np.zeros(5), np.ones(5), Clip(1.0, 5), ProxStep(np.ones(5), np.ones(5), L2(0.1)), None)
        query = Descend(Derivative(Logistic()), {"bank": (step,)}, {"bank": np.zeros(5)}, parts={"bank": 0})
        assert "not its own" in counter.refused(query, ReleaseKey(1))

    @pytest.mark.parametrize("n", [0, N - 1, N + 1])
    def test_a_vector_of_another_length(self, counter, n: int) -> None:
        spec = job()
        counter.begin(spec)
        said = counter.refused(backward(spec), ReleaseKey(1), weights=np.zeros(n))
        assert "length differs" in said

    def test_half_an_entry(self, counter) -> None:
        spec = job()
        counter.begin(spec)
        said = counter.refused(backward(spec), ReleaseKey(1), weights=np.zeros(3, np.uint8))
        assert "ends within an entry" in said

    def test_no_vector(self, counter) -> None:
        spec = job()
        counter.begin(spec)
        assert "without the per-record vectors" in counter.refused(backward(spec), ReleaseKey(1))

    def test_weights_that_are_no_numbers_are_bounded_like_others(self, counter) -> None:
        """The charge pays for the clipped sum, whatever weights come."""
        spec = job()
        counter.begin(spec)
        answer, _ = counter.call(backward(spec), ReleaseKey(1), weights=np.full(N, np.nan))
        assert all(np.isfinite(released).all() for released in answer.released)

    def test_a_rule_that_nobody_knows(self, counter) -> None:
        spec = job()
        counter.begin(spec)
        plain = list(to_plain(backward(spec)))
        plain[2] = ("os_system", "rm")
        answer, _ = counter.desk.answer((tuple(plain), to_plain(ReleaseKey(1))), {}, lambda _: None)
        assert "unknown weighting kind 'os_system'" in answer.reason

    def test_labels_of_a_party_without_any(self, counter) -> None:
        counter.begin(job())
        assert "holds no label" in counter.refused(SendLabels())

    def test_a_cheaper_charge_for_the_rest_of_a_pass(self, counter) -> None:
        """Later blocks of a pass rest on the charge of its first block, and on no other."""
        counter.begin(job())
        assert isinstance(counter.call(block_of_pass(0, 1e6), ReleaseKey(1), **VISITED)[0], Reply)
        said = counter.refused(block_of_pass(1, 1e-6), ReleaseKey(2), **VISITED)
        assert "change the charge within a pass" in said
        assert isinstance(counter.call(block_of_pass(1, 1e6), ReleaseKey(3), **VISITED)[0], Reply)

    def test_a_pass_that_an_earlier_process_began(self, counter) -> None:
        """The next process does not know which coordinates were released, so none is released under the same charge."""
        spec = job()
        counter.begin(spec)
        assert isinstance(counter.call(block_of_pass(0, 1e6), ReleaseKey(1), **VISITED)[0], Reply)
        counter.desk.connected(b"2" * 16)  # and with it a new work, which remembers no coordinate
        for call in (offer(spec, resumed=True), Load(), Notice(Phase.OPEN, "run1", "run run1")):
            assert not isinstance(counter.call(call)[0], Failure)
        for column in (0, 1):
            said = counter.refused(block_of_pass(column, 1e6), ReleaseKey(5 + column), **VISITED)
            assert "made the release of round 1" in said

    def test_the_number_of_notices_is_limited(self, counter, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each may add an entry to the party ledger."""
        monkeypatch.setattr("parties.joined.work.MOST_NOTICES", 4)
        counter.begin(job())
        for _ in range(2):
            counter.call(Notice(Phase.COMPARE, "run1", "run run1"))
        assert "more than 4 reports" in counter.refused(Notice(Phase.COMPARE, "run1", "run run1"))

    def test_an_offer_has_few_values(self, counter) -> None:
        assert counter.desk.limits.most_values == 1 << 12
        counter.begin(job())
        assert counter.desk.limits.most_values < 1 << 18

    @pytest.mark.parametrize("phase", [Phase.CLOSE, Phase.ABANDON])
    def test_queries_after_the_end_of_a_run(self, counter, phase: Phase) -> None:
        spec = job()
        counter.begin(spec)
        assert isinstance(counter.call(backward(spec), ReleaseKey(1), **WEIGHTS)[0], Reply)
        counter.call(Notice(phase, "run1", "run run1"))
        assert "was not announced to it" in counter.refused(backward(spec), ReleaseKey(2), **WEIGHTS)
        counter.call(Notice(Phase.COMPARE, "run1", "run run1"))
        assert "was not announced to it" in counter.refused(backward(spec), ReleaseKey(3), **WEIGHTS)

    def test_the_same_run_with_another_job(self, counter) -> None:
        counter.begin(job())
        counter.call(Finish())
        assert isinstance(counter.call(offer(job(privacy=vfl.Privacy(epsilon=2.0))))[0], Done)
        counter.call(Load())
        assert "was reserved for another job" in counter.refused(Notice(Phase.OPEN, "run1", "run run1"))

    def test_keys_of_all_steps_of_a_visit_are_answered_once(self, counter) -> None:
        counter.begin(job())
        vectors = {name: np.zeros(N) for name in ("margins", "labels")}
        event = Gaussian(Adjacency.REPLACE_ONE, Clip(1.0, 1).sensitivity, 1e6, 1)

        def of(columns: tuple[int, ...], part: int) -> Descend:
            steps = tuple(
                Step(
                    Block(column, "bank", column, column + 1, 0),
                    np.zeros(1),
                    np.ones(1),
                    Clip(1.0, 1),
                    ProxStep(np.ones(1), np.ones(1), L2(0.1)),
                    event,
                )
                for column in columns
            )
            return Descend(Derivative(Logistic()), {"bank": steps}, {"bank": np.zeros(2)}, parts={"bank": part})

        assert isinstance(counter.call(of((0, 1), 0), ReleaseKey(1), **vectors)[0], Reply)
        assert "attempt 0, part 1 " in counter.refused(of((0,), 1), ReleaseKey(1), **vectors)
        assert "parts 1 to 2 " in counter.refused(of((0, 1), 1), ReleaseKey(1), **vectors)
        assert isinstance(counter.call(of((0, 1), 2), ReleaseKey(1), **vectors)[0], Reply)

    def test_a_notice_of_another_run(self, counter) -> None:
        counter.begin(job())
        for phase in Phase:
            assert "of another run" in counter.refused(Notice(phase, "run2", "run run2"))

    def test_a_pass_under_another_clip(self) -> None:
        """A record moves the sums of a pass by 2C; the clip of Gram matrices claims √2 C."""
        rows = {"bank": (Block(0, "bank", 0, 2, 0), np.zeros(2), np.ones(2))}
        clip = GramClip(1.0, 2)
        event = Gaussian(Adjacency.REPLACE_ONE, clip.sensitivity, 1.0, 2)
        block, zeros, ones = Block(0, "bank", 0, 1, 0), np.zeros(1), np.ones(1)
        cap = RecordCap(1.0, rows, paid=Paid(ReleaseKey(1), event))
        query = Backward(Derivative(Logistic()), (block,), (zeros,), (ones,), clip, event, capped=cap)
        with pytest.raises(PrivacyError, match="under a clip different from 'norm'"):
            OwnCap("bank", 2, repeats=False).admit(query, cap)

    def test_a_negative_round(self, counter) -> None:
        spec = job()
        counter.begin(spec)
        assert "release of round -1" in counter.refused(backward(spec), ReleaseKey(-1), **WEIGHTS)


class TestOrder:
    @pytest.mark.parametrize(
        "message",
        [
            Load(),
            SendLabels(),
            Introduce(),
            ReadIds(),
            BeginAligning(None, {"bank": 1, "telco": 1}),
            SendSet("bank", ""),
            Conclude(),
            AddUp(),
            SendLinearPredictors("telco"),
            TakeLinearPredictors("telco"),
            Notice(Phase.OPEN, "run1", "run run1"),
        ],
        ids=lambda message: type(message).__name__,
    )
    def test_nothing_is_answered_before_an_offer(self, counter, message) -> None:
        assert "not agreed to any work" in counter.refused(message)
        assert counter.opened == 0

    @pytest.mark.parametrize(
        "message", [AddUp(), SendLinearPredictors("telco"), TakeLinearPredictors("telco"), SendSet("bank", "")]
    )
    def test_calls_of_other_work_are_not_due(self, counter, message) -> None:
        counter.call(offer(job()))
        assert counter.refused(message)
        assert counter.opened == 0

    def test_an_alignment_trains_nothing(self, counter) -> None:
        counter.call(offer(job(id="customer"), purpose="align"))
        assert "to load for 'align'" in counter.refused(Load())

    def test_a_run_without_an_account_in_the_book(self, counter) -> None:
        spec = job()
        counter.call(offer(spec))
        counter.call(Load())
        assert "was not announced to it" in counter.refused(backward(spec), ReleaseKey(1), **WEIGHTS)

    def test_pings_touch_nothing(self, counter) -> None:
        answer, back = counter.call(Ping(1.0, 100))
        assert isinstance(answer, Pong)
        assert len(back["payload"]) == 100
        assert counter.refused(Ping(1.0, 1 << 40))

    def test_finish(self, counter) -> None:
        counter.begin(job())
        assert isinstance(counter.call(Finish())[0], Done)
        assert "not agreed to any work" in counter.refused(Load())


class TestPrediction:
    def test_parties_with_columns_in_the_model_take_part(self, counter) -> None:
        """The coordinator receives sums over all of them; without the others, a sum is one party's part."""
        part = ModelPart(job(), "bank", "ab", ("a0", "a1"), np.ones(2), 0.0)
        asked = Offer("predict", "run1", part.to_json(), part.digest, PARTIES)
        alone = counter.refused(replace(asked, parties=("bank",)))
        assert "'telco' has columns" in alone
        assert counter.opened == 0
        assert not isinstance(counter.call(asked)[0], Failure)


class TestSealing:
    def test_keys_that_are_not_signed(self, counter) -> None:
        counter.call(offer(job(id="customer"), purpose="align"))
        own = counter.call(Introduce())[0]
        swapped = Introduced({"bank": own, "telco": EncryptionKey(own.key, own.signature)})
        assert "not signed by the identity" in counter.refused(swapped)
        assert "keys of all parties" in counter.refused(Introduced({"bank": own}))

    def test_sets_go_to_parties_of_the_work_alone(self, counter) -> None:
        counter.call(offer(job(id="customer"), purpose="align"))
        counter.call(Introduce())
        counter.call(ReadIds())
        assert "has not blinded" in counter.refused(SendSet("bank", "telco"))

    def test_a_partys_own_set_stays_until_others_have_blinded_it(self, counter) -> None:
        assert isinstance(counter.call(offer(job(id="customer"), purpose="align"))[0], Done)
        context = (counter.joined.federation.digest, "run1", "align")
        telco = Encryptor("telco", counter.joined.identities["telco"].key_pem, context)
        keys = {"bank": counter.call(Introduce())[0], "telco": EncryptionKey(telco.key, telco.signature)}
        for call in (Introduced(keys), MakeSalt(), ReadIds()):
            assert not isinstance(counter.call(call)[0], Failure)
        sizes = {"bank": N, "telco": 5}
        assert "differs from its own count" in counter.refused(BeginAligning(None, sizes | {"bank": 1 << 27}))
        assert isinstance(counter.call(BeginAligning(None, sizes))[0], Done)
        assert isinstance(counter.call(Multiply("bank", "bank"))[0], Done)
        assert "others have blinded it" in counter.refused(SendSet("bank", ""))
        assert isinstance(counter.call(SendSet("bank", "telco"))[0], Done)

    def test_impossible_sizes(self, counter) -> None:
        counter.call(offer(job(id="customer"), purpose="align"))
        counter.call(ReadIds())
        for sizes in ({"bank": N}, {"bank": N, "telco": 1 << 60}, {"bank": N, "telco": -1}):
            assert "impossible numbers of ids" in counter.refused(BeginAligning(None, sizes))

    def test_a_set_beyond_this_machines_memory(self, counter, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfl.planning.cost.memory_here", lambda: 1e9)
        counter.call(offer(job(id="customer"), purpose="align"))
        counter.call(ReadIds())
        said = counter.refused(BeginAligning(None, {"bank": N, "telco": 1 << 28}))
        assert re.search("1 GB of memory.*25.8 GB", said)
        assert isinstance(counter.call(BeginAligning(None, {"bank": N, "telco": 1 << 20}))[0], Done)


@pytest.mark.parametrize(
    ("error", "kind"), [(ZeroDivisionError, "DataError"), (ValueError, "DataError"), (TypeError, "FederationError")]
)
def test_a_failure_in_the_data_is_named_as_one_and_quotes_nothing(counter, monkeypatch, error, kind) -> None:
    def failing(*_args: object) -> Any:
        raise error("income 52000")

    spec = job()
    counter.begin(spec)
    monkeypatch.setattr("parties.party.Party.answer", failing)
    answer, _ = counter.call(backward(spec), ReleaseKey(0), **WEIGHTS)
    assert isinstance(answer, Failure)
    assert answer.kind == kind
    assert "52000" not in answer.reason


def test_no_call_raises(counter) -> None:
    """The desk answers any plain value, and sends nothing but a sentence."""
    spec = job()
    counter.begin(spec)
    rng = random.Random(0)  # noqa: S311 - a test
    seeds = [
        to_plain(message) for message in (offer(spec), Load(), Finish(), Ping(0.0), ReadIds(), SendSet("bank", ""))
    ]
    seeds.append((to_plain(backward(spec)), to_plain(ReleaseKey(9))))
    for _ in range(400):
        answer, _ = counter.desk.answer(_mutated(rng, rng.choice(seeds)), {}, lambda _: None)
        from_plain(to_plain(answer), object)


def aligning(counter: Counter) -> None:
    counter.call(offer(job(id="customer"), purpose="align"))
    telco = Encryptor(
        "telco", counter.joined.identities["telco"].key_pem, (counter.joined.federation.digest, "run1", "align")
    )
    keys = {"bank": counter.call(Introduce())[0], "telco": EncryptionKey(telco.key, telco.signature)}
    for call in (Introduced(keys), MakeSalt(), ReadIds(), BeginAligning(None, {"bank": N, "telco": 5})):
        assert not isinstance(counter.call(call)[0], Failure)


def predicting(counter: Counter) -> None:
    counter.call(of_part("predict"))
    counter.call(Introduce())


def of_part(purpose: str) -> Offer:
    part = ModelPart(job(), "bank", "ab", ("a0", "a1"), np.ones(2), 0.0)
    return Offer(purpose, "run1", part.to_json(), part.digest, PARTIES)


SIGNED = EncryptionKey(b"k" * 32, b"s" * 64)
TOLD: dict[Any, tuple[object, ...]] = {
    None: (offer(job()), offer(job(), purpose="align"), *map(of_part, ("predict", "evaluate", "serve")), Ping(0.0, 5)),
    (lambda counter: counter.begin(job())): (
        *(Notice(phase, "run1", "run run1", Head(1, "0" * 64), Head(2, "1" * 64)) for phase in Phase),
        ReleaseKey(1),
        Finish("done"),
    ),
    aligning: (
        Introduced({"bank": SIGNED, "telco": SIGNED}),
        TakeSalt("telco", b"x" * 60),
        BeginAligning(None, {"bank": N, "telco": 5}),
        Multiply("bank", "bank"),
        Multiply("telco", "telco"),
        SendSet("bank", "telco"),
    ),
    predicting: (
        SendLinearPredictors("telco"),
        TakeLinearPredictors("telco"),
        Measure(LabelMean(0.0, 1.0)),
        Score((Asked("ab", "branch", "credit", 1),)),
        Keep(("ab",)),
    ),
}


@pytest.mark.parametrize("began", TOLD, ids=["offers", "training", "aligning", "predicting"])
def test_a_lie_about_any_value_of_a_call_is_answered_in_a_sentence_that_names_the_cause(counter, began) -> None:
    """A failure that no check foresaw would be named by its type alone."""
    told = 0
    for message in TOLD[began]:
        every = [to_plain(message), *lies(to_plain(message))]
        for lie in every[:: 1 + len(every) // 60]:
            told += 1
            counter.desk.end("")
            if began is not None:
                began(counter)
            query = isinstance(message, ReleaseKey)
            call = (to_plain(backward(job())), lie) if query else lie
            vectors = {"weights": WEIGHTS["weights"].view(np.uint8).copy()} if query else {}
            answer, _ = counter.desk.answer(call, vectors, lambda _: None)
            assert not (isinstance(answer, Failure) and "could not answer a call" in answer.reason), (lie, answer)
    assert told > 30


def _mutated(rng: random.Random, plain: Any) -> Any:
    others = (None, True, -1, 1 << 70, 0.5, "x", b"12345678", (), (FORMAT,), ("norm", 1.0, 2))
    if type(plain) is not tuple or not plain or rng.random() < 0.15:
        return rng.choice(others)
    at = rng.randrange(len(plain))
    match rng.randrange(6):
        case 0:
            return plain[:at] + plain[at + 1 :] or (1,)
        case 1:
            return (*plain, rng.choice(others))
        case _:
            return (*plain[:at], _mutated(rng, plain[at]), *plain[at + 1 :])
