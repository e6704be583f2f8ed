"""Lies in replies, and in requests of training on shares: they may spoil the model, but no charge and no statement of the run.

No lie ends in another error than a sentence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from coordinator.charging.budget import Budget
from coordinator.coordinator import Coordinator, Outcome
from parties.loading import load
from tests.coordinator.shares import Watched
from tests.coordinator.shares import job as on_shares
from tests.coordinator.shares import table as of_shares
from tests.neighbours import setting
from tests.parties.test_claims import lies
from vfl.errors import VflError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.network.kinds import from_plain, to_plain
from vfl.privacy.ledger import SqliteLedger
from vfl.secure.requests import Request

if TYPE_CHECKING:
    from pathlib import Path

N = 24
PRIVACY = vfl.Privacy(epsilon=8.0, delta=1e-6)
JOBS: dict[str, Any] = {
    "sums": setting.job(vfl.solvers.GD(passes=1), dataset="d", evaluation=vfl.Evaluation(holdout=0.25)),
    "visits": setting.job(vfl.SkGD(passes=1, clip="record"), dataset="d"),
    "selections": setting.job(vfl.solvers.GCD(rounds=1), dataset="d"),
    "sums on shares": on_shares(p=3, solver=vfl.solvers.GD(passes=1), dataset="d", privacy=PRIVACY),
    "a score on shares": on_shares(
        p=3,
        solver=vfl.solvers.GD(passes=1),
        dataset="d",
        privacy=PRIVACY,
        evaluation=vfl.Evaluation(holdout=0.25, score="loss"),
    ),
    "products on shares": on_shares(
        p=3,
        loss="squared",
        solver=vfl.solvers.NoisyGram(),
        bounds={"*": (-2, 2), "y": (-1, 2)},
        dataset="d",
        privacy=PRIVACY,
    ),
}


class Told:
    """Runs of a job in which one message is a lie. calls : messages of the last run, with the honest replies."""

    def __init__(self, spec: vfl.Job, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self.table = of_shares(N, 3) if spec.secure is not None else setting.table(spec.loss, N)
        if spec.loss == "squared" and spec.secure is not None:
            self.table["y"] = self.table["y"] + 0.1 * self.table["x0"]
        self.runs, self.calls = 0, []

    def outcome(self, at: int = -1, lie: Any = None, *, asking: bool = False) -> tuple[Outcome, float]:
        """Return the outcome, and the ε that the ledger says is spent.

        at : number of the call. lie : function of the plain form of its reply, or (asking) of its message.
        """
        self.runs, self.calls = self.runs + 1, []
        ledger = SqliteLedger(self.folder / f"{self.runs}.ledger")
        ledger.set_cap("d", epsilon=100.0, delta=1e-6)
        if self.spec.secure is not None:
            transport: Any = Watched(self.spec, self.table)
        else:
            transport = InProcessTransport(
                {to: load(self.spec.for_party(to), own) for to, own in sources_of(self.spec, self.table).items()}
            )
        post = transport._post

        def lying(call: Any) -> Any:
            due = len(self.calls) == at
            if due and asking:
                call = replace(call, message=from_plain(lie(to_plain(call.message)), object))
            posted = post(call)
            reply, *sent = posted.answer
            self.calls.append((call.message, reply))
            if due and not asking:
                reply = from_plain(lie(to_plain(reply)), object)
            return replace(posted, answer=(reply, *sent))

        transport._post = lying
        *_, end = Coordinator(transport).stream(self.spec, Budget(f"r{self.runs}", str(ledger.path)))
        return end, sum(run.spent for balance in ledger.show() for run in balance.runs)


@pytest.mark.parametrize("asking", [False, True], ids=["replies", "requests"])
@pytest.mark.parametrize("name", JOBS)
def test_a_lie_ends_in_a_sentence_or_changes_no_charge(name: str, asking: bool, tmp_path: Path) -> None:
    if asking and JOBS[name].secure is None:
        return  # tests/parties/test_claims.py
    made = Told(JOBS[name], tmp_path)
    honest, spent = made.outcome()
    calls = [*enumerate(made.calls)]
    if asking:
        first = {(of_call(message), 0): (at, message) for at, (message, _) in reversed(calls)}
        first = {key: own for key, own in first.items() if issubclass(key[0], Request)}
    else:
        first = {(of_call(message), type(reply)): (at, reply) for at, (message, reply) in reversed(calls)}
    ends: Counter[str] = Counter()
    for at, message in first.values():
        count = sum(1 for _ in lies(to_plain(message)))
        for number in range(0, count, 1 + count // (12 if asking else 6)):
            try:
                told, charged = made.outcome(at, partial(lie_number, number), asking=asking)
            except VflError:
                ends["refused"] += 1
            else:
                assert told.statement is not None
                assert honest.statement is not None
                assert replace(told.statement, head=None) == replace(honest.statement, head=None)
                assert charged == pytest.approx(spent)
                assert np.isfinite(told.w).all()
                ends["harmless"] += 1
    assert ends["refused"] > 5
    assert ends["harmless"]  # a party's own numbers, times and certificates


def of_call(message: Any) -> type:
    return type(message[0] if isinstance(message, tuple) else message)


def lie_number(number: int, plain: Any) -> Any:
    return next(islice(lies(plain), number, None), plain)
