"""Claims of a coordinator that a party's own plan refutes: what is released never costs more than the party's book says.

The coordinator here sends any message it likes. Two parties with neighbouring records receive the same messages. Gaussian
noise of σ on sums that differ by d loses (d/σ)², and no sequence of messages may make these add up to more than the charges.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import parties.party
import vfl
from coordinator.coordinator import Coordinator
from coordinator.federation.transport import FederationTransport
from parties.loading import load
from parties.services.training import PartyService
from tests.coordinator.organisations import federation
from tests.neighbours import setting
from vfl.errors import PrivacyError
from vfl.federation import events
from vfl.kinds import from_plain, to_plain
from vfl.launch.engines.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.messages import Notice, Phase, Query, Records
from vfl.privacy.gaussian_dp import epsilon_of
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from parties.party import Party
    from vfl.privacy.events import ReleaseKey

N, DELTA = 64, 1e-6
SOLVERS: dict[str, tuple[Any, str]] = {
    "visits": (vfl.SkGD(passes=2, clip="coordinate"), "logistic"),
    "a pass under a record cap": (vfl.SkGD(passes=2, clip="record"), "logistic"),
    "sums of all parties": (vfl.GD(passes=2), "logistic"),
    "disjoint batches": (vfl.SGD(passes=1, sampling="disjoint", batch_size=8), "logistic"),
    "secret samples": (vfl.SGD(passes=1, sampling="poisson", batch_size=8), "logistic"),
    "selections": (vfl.GCD(rounds=3), "logistic"),
    "products": (vfl.NoisyGram(), "squared"),
}


def job(name: str, **options: Any) -> vfl.Job:
    solver, loss = SOLVERS[name]
    return setting.job(solver, loss, **options)


@cache
def asked(name: str, party: str) -> tuple[tuple[Query, Records, ReleaseKey], ...]:
    """Return the queries of an honest run to one party."""
    spec, found = job(name, holdout=0.25), []

    class Noted(InProcessTransport):
        def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
            found.extend((share, records, key) for to, share in shares.items() if to == party)
            return super().ask(shares, records, key)

    held = {to: load(spec.for_party(to), own) for to, own in sources_of(spec, setting.table(spec.loss, N)).items()}
    list(Coordinator(Noted(held)).stream(spec))
    return tuple(found)


@dataclass
class Pair:
    """Parties with neighbouring records and, perhaps, a book each. lost : Σ (d/σ)² of all releases so far."""

    ours: Party
    theirs: Party
    book: Path | None
    lost: float = 0.0
    made: list[Any] = field(default_factory=list)

    def answer(self, query: Query, records: Records, key: ReleaseKey) -> None:
        sums = []
        for party in (self.ours, self.theirs):
            self.made.clear()
            PartyService(party).answer(
                (from_plain(to_plain(query), Query), key),
                {
                    name: vector
                    for name in ("weights", "margins", "labels", "limits")
                    if (vector := getattr(records, name)) is not None
                },
            )
            sums.append(list(self.made))
        for (mine, sigma), (other, _) in zip(*sums, strict=True):
            self.lost += float(np.sum(((mine - other) / sigma) ** 2))

    @property
    def charged(self) -> float:
        """ε that the book says is spent."""
        return sum(run.spent for balance in SqliteLedger(self.book).show() for run in balance.runs)

    @property
    def released(self) -> float:
        """ε of the releases, at least."""
        return epsilon_of(self.lost**0.5, DELTA) if self.lost else 0.0


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def make(spec: vfl.Job, party: str = "bank", *, book: bool = True) -> Pair:
        policies = []
        for side in ("ours", "theirs"):
            path = tmp_path / f"{side}.toml"
            path.write_text(f'format = 1\njobs = ["*"]\nproducts = true\n[total]\nepsilon = 100.0\ndelta = {DELTA}\n')
            policies.append(str(path) if book else None)
        tables = setting.turned(spec.loss, N) if party == "telco" else setting.mirrored(spec.loss, N)
        loaded = [
            load(spec.for_party(party), sources_of(spec, own)[party], policy)
            for own, policy in zip(tables, policies, strict=True)
        ]
        made = Pair(*loaded, tmp_path / "ours.book" if book else None)
        if book:
            for each in loaded:
                each.hear(Notice(Phase.OPEN, "r1", "a"))

        def release(sums: Any, grid: float, event: Any, noise: Any, key: ReleaseKey, sensitivity: float) -> Any:
            assert event.sensitivity >= sensitivity
            made.made.append((np.asarray(sums, dtype=np.float64) * grid, event.sigma))
            return event.sensitivity * np.random.default_rng([key.round, key.part]).normal(size=len(sums))

        monkeypatch.setattr(parties.party, "release", release)
        return made

    return make


def loud(records: Records) -> Records:
    """Return records whose weights drive every contribution to its cap."""
    return records if records.weights is None else replace(records, weights=np.full_like(records.weights, 1e6))


NUMBERS = (*range(6), -1, 1 << 40)


@pytest.mark.parametrize("book", [True, False], ids=["book", "no book"])
@pytest.mark.parametrize("party", ["bank", "telco"])
@pytest.mark.parametrize("name", SOLVERS)
def test_no_query_divides_the_records_unless_the_plan_does(name: str, party: str, pair: Any, book: bool) -> None:
    """Charges on the parts of a split count the dearest part alone, and these parts would all be the same records."""
    made = pair(job(name, holdout=0.25), party, book=book)
    for query, records, key in asked(name, party):
        for number in NUMBERS:
            with contextlib.suppress(PrivacyError):
                made.answer(replace(query, subsample=number), loud(records), replace(key, attempt=number % 7))
    assert made.lost == 0.0
    assert not book or made.charged == 0.0


def test_no_query_divides_the_records_across_organisations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = FederationTransport.ask

    def lying(self: Any, shares: Any, records: Any, key: ReleaseKey) -> Any:
        return ask(self, {to: replace(share, subsample=3) for to, share in shares.items()}, records, key)

    monkeypatch.setattr(FederationTransport, "ask", lying)
    spec = job("sums of all parties", holdout=0.25)
    with federation(tmp_path) as joined:
        for party, own in sources_of(spec, setting.table(spec.loss, N)).items():
            joined.start(party, own)
        with pytest.raises(PrivacyError, match="'bank' was sent a query on records that its job does not plan"):
            vfl.train(spec, at=joined.place)
    for party in ("bank", "telco"):
        assert not [e for e in joined.events[party] if isinstance(e, events.Released) and e.releases]
