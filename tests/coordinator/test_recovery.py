"""Decisions about lost parties, and what a resumed run repeats, without processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from coordinator.coordinator import Coordinator, Outcome
from coordinator.rounds import LEFT, LOSSES_A_QUERY, Log, Lost, Recovery, Round
from parties.loading import load
from tests.solvers import setting
from vfl.errors import PartyLost
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.network.messages import Greeting

if TYPE_CHECKING:
    from collections.abc import Collection

    from vfl.queries import Query


class OneProcess:
    """Transport to three parties of one process, which always come back."""

    def __init__(self) -> None:
        self.revived: list[str] = []

    def together(self, party: str) -> tuple[str, ...]:
        return (party, *(name for name in "abc" if name != party))

    def revive(self, party: str, seconds: float) -> Greeting:
        del seconds
        self.revived.append(party)
        return Greeting("1", 0)


def recovery(policy: str) -> tuple[Recovery, OneProcess, list[str]]:
    transport, welcomed = OneProcess(), list[str]()
    faults: Any = Faults(on_party_lost=policy)
    return Recovery(transport, faults, lambda name, _: welcomed.append(name), keep="a"), transport, welcomed  # type: ignore[arg-type]


def test_all_parties_of_a_lost_process_are_restored_at_once() -> None:
    decided, transport, welcomed = recovery("wait")
    assert decided.restored(PartyLost("gone", "b"), 1)
    assert transport.revived == welcomed == ["b", "a", "c"]


def test_a_party_that_was_given_up_stays_out_when_its_process_is_lost_again() -> None:
    decided, transport, welcomed = recovery("skip")
    assert not decided.restored(PartyLost("gone", "b"), LOSSES_A_QUERY + 1)
    assert decided.restored(PartyLost("gone", "c"), 1)
    assert transport.revived == welcomed == ["c", "a"]


def test_the_label_party_is_never_given_up() -> None:
    decided, transport, _ = recovery("skip")
    with pytest.raises(PartyLost, match="vfl resume"):
        decided.restored(PartyLost("gone", "a"), LOSSES_A_QUERY + 1)
    assert transport.revived == []


# ---- resumed runs ----


class Watched(InProcessTransport):
    """A transport that notes its queries, and loses the bank at some of them, for good or once each."""

    def __init__(self, spec: vfl.Job, lost: Collection[int] = (), *, returns: bool = True) -> None:
        sources = sources_of(spec, setting.table(spec.loss)).items()
        super().__init__({name: load(spec.for_party(name), source) for name, source in sources})
        self.lost, self.returns, self.gone = set(lost), returns, False
        self.asked: list[dict[str, Query]] = []

    def ask(self, shares: Any, records: Any, key: Any) -> Any:
        self.asked.append(dict(shares))
        replies = super().ask(shares, records, key)
        if "bank" in shares and self.lost and len(self.asked) >= min(self.lost):
            self.lost.remove(min(self.lost))
            self.gone = not self.returns
        elif not self.gone or "bank" not in shares:
            return replies
        raise PartyLost("the bank is gone", "bank")

    def together(self, party: str) -> tuple[str, ...]:
        return (party,)

    def revive(self, party: str, seconds: float) -> Greeting:
        if self.gone and party == "bank":
            raise PartyLost("still gone", party)
        return self._parties[party].greet()


SEEDED = vfl.Privacy(epsilon=1.0, delta=1e-5, noise=vfl.SeededNoise(5))


def run(transport: Watched, spec: vfl.Job, policy: str, log: Log | None = None) -> tuple[list[Any], Outcome]:
    faults = Faults(on_party_lost=policy, wait_timeout_s=0.1)  # type: ignore[arg-type]
    *events, outcome = Coordinator(transport, faults=faults).stream(spec, log=log)
    return [event for event in events if isinstance(event, Round | Lost)], outcome


@pytest.mark.parametrize("kept", [4, 5])
def test_a_party_that_is_lost_while_a_resumed_run_repeats_changes_is_waited_for(kept: int) -> None:
    spec = setting.job(vfl.SkGD(block_size=2, passes=3), privacy=SEEDED)
    made, whole = setting.drive(spec)
    log = replace(setting.log_of(made, kept), resumed=True)
    events, outcome = run(Watched(spec, lost=[2]), spec, "wait", log)
    assert [(event.number, event.charges) for event in events if isinstance(event, Lost)] == [(kept, ())]
    assert outcome.w.tobytes() == whole.w.tobytes()
    assert [event.charges for event in events if isinstance(event, Round)] == [one.charges for one in made[kept:]]
    with pytest.raises(PartyLost):
        run(Watched(spec, lost=[2]), spec, "abort", log)


def test_a_resumed_run_repeats_only_what_its_state_lacks() -> None:
    """An Xw that was computed anew depends on no earlier answer, and a run that was complete asks nobody."""
    spec = setting.job(vfl.solvers.SVRG(batch_size=75, passes=8, sampling="disjoint"), privacy=SEEDED)
    transport = Watched(spec)
    made, whole = run(transport, spec, "abort")
    resets = [n for n, shares in enumerate(transport.asked) if any(one.target == "reset" for one in shares.values())]
    assert len(resets) > 2
    again = Watched(spec)
    _, outcome = run(again, spec, "abort", setting.log_of(made, len(made) - 1))
    assert outcome.w.tobytes() == whole.w.tobytes()
    assert sum(any(one.target == "reset" for one in shares.values()) for shares in again.asked) == 1
    done = Watched(spec)
    assert run(done, spec, "abort", setting.log_of(made, len(made)))[1].w.tobytes() == whole.w.tobytes()
    assert done.asked == []


def test_a_resumed_run_names_the_charges_that_were_made_after_a_party_was_given_up() -> None:
    """With seeded noise, the charge of a pass goes on to pay in a new process."""
    # The bank is the last of a pass, so the rest of the pass needs no other charge, for which the budget has no room.
    parties = {"shop": ["a1", "a2"], "telco": ["b0"], "bank": ["a0"]}
    partition = vfl.FeaturePartition(parties, label=("telco", "y"))
    spec = replace(setting.job(vfl.SkGD(block_size=1, passes=3), privacy=SEEDED), partition=partition)
    made, whole = run(Watched(spec, lost=[6], returns=False), spec, "skip")
    rounds = [one for one in made if isinstance(one, Round)]
    left = {one.number: "bank" for one in rounds if one.kind == LEFT}
    assert len(left) == 1
    first = min(left) + 1
    assert any(not one.charges for one in rounds[first:] if one.kind == "Descend")
    for kept in range(first, len(rounds)):
        log, seen = replace(setting.log_of(rounds, kept), left=left, resumed=True), Watched(spec)
        again, outcome = run(seen, spec, "skip", log)
        assert outcome.w.tobytes() == whole.w.tobytes()
        assert [one.charges for one in again] == [one.charges for one in rounds[kept:]]
        asked = [share.capped for shares in seen.asked for share in shares.values() if share.terms()]
        named = {cap.paid.key for cap in asked if cap is not None and cap.paid is not None}
        assert named <= {key for one in rounds for key, _ in one.charges}
