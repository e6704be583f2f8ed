"""Claims of a coordinator that a party's own plan refutes: what is released never costs more than the party ledger says.

The coordinator here sends any message it likes. Two parties with neighbouring records receive the same messages. Gaussian
noise of σ on sums that differ by d loses (d/σ)², and no sequence of messages may make these add up to more than the charges.
"""

from __future__ import annotations

import contextlib
import math
import warnings
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
from vfl.base.losses import Logistic
from vfl.base.types import Adjacency
from vfl.errors import PrivacyError, VflError
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.network.federation import events
from vfl.network.kinds import from_plain, to_plain
from vfl.network.messages import Notice, Phase
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.gaussian_dp import epsilon_of
from vfl.privacy.magnitudes import sensitivity
from vfl.queries import Counts, Gram, Query, Records, Select
from vfl.queries.protocol import Derivative

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from parties.party import Party

N, DELTA = 64, 1e-6
SKGD = vfl.SkGD(passes=2, clip="coordinate")
JOBS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "visits": (SKGD, "logistic", {}),
    "a pass under a record cap": (vfl.SkGD(passes=2, clip="record"), "logistic", {}),
    "single blocks": (
        vfl.SkGD(passes=2, clip="record", details=vfl.solvers.Details(message="block")),
        "squared",
        {},
    ),
    "sums of all parties": (vfl.solvers.GD(passes=2), "logistic", {}),
    "disjoint batches": (vfl.solvers.SGD(passes=1, sampling="disjoint", batch_size=8), "logistic", {}),
    "secret samples": (vfl.solvers.SGD(passes=1, sampling="poisson", batch_size=8), "logistic", {}),
    "selections": (vfl.solvers.GCD(rounds=3), "logistic", {}),
    "products": (vfl.solvers.NoisyGram(), "squared", {}),
    "curves": (SKGD, "logistic", {"columns": {"*": vfl.Curve(4)}}),
}


def job(name: str, **options: Any) -> vfl.Job:
    solver, loss, own = JOBS[name]
    return setting.job(solver, loss, evaluation=vfl.Evaluation(holdout=0.25), **own, **options)


def noted(spec: Any, party: str) -> list[tuple[Query, Records, ReleaseKey]]:
    """Return the queries of an honest run to one party."""
    found: list[tuple[Query, Records, ReleaseKey]] = []

    class Noted(InProcessTransport):
        def ask(self, shares: Any, records: Any, key: ReleaseKey) -> Any:
            found.extend((share, records, key) for to, share in shares.items() if to == party)
            return super().ask(shares, records, key)

    held = {to: load(spec.for_party(to), own) for to, own in sources_of(spec, setting.table(spec.loss, N)).items()}
    list(Coordinator(Noted(held)).stream(spec))
    return found


@cache
def asked(name: str, party: str) -> tuple[tuple[Query, Records, ReleaseKey], ...]:
    """Return the queries of an honest run to one party."""
    spec = job(name)
    found = noted(spec, party)
    if name == "visits":  # no solver asks for counts of bins
        Δ = sensitivity(2)
        event = Gaussian(Adjacency.REPLACE_ONE, Δ, 3.0 * Δ, 4)
        counts = Counts(Derivative(Logistic()), {party: (0, 1)}, {party: 2}, event)
        n_trained = N - int(spec.split.held_out(N).sum()) if spec.split else N
        found.append((counts, Records(weights=np.ones(n_trained)), ReleaseKey(99)))
    return tuple(found)


@dataclass
class Pair:
    """Parties with neighbouring records and, perhaps, a book each. lost : Σ (d/σ)² of all releases of a run so far."""

    ours: Party
    theirs: Party
    lost: float = 0.0
    runs: int = 0
    made: list[Any] = field(default_factory=list)

    def begin(self) -> None:
        """Open another run in both books."""
        self.runs, self.lost = self.runs + 1, 0.0
        for party in (self.ours, self.theirs):
            party.hear(Notice(Phase.OPEN, f"r{self.runs}", f"run r{self.runs}"))

    def answer(self, plain: Any, records: Records, key: ReleaseKey) -> None:
        """Send a query's plain form to both parties. The reply has the requested releases, or nothing is answered."""
        sums: list[list[Any]] = []
        named = {name: getattr(records, name) for name in ("weights", "margins", "labels", "limits")}
        for party in (self.ours, self.theirs):
            self.made.clear()
            query = from_plain(plain, Query)
            vectors = {name: vector for name, vector in named.items() if vector is not None}
            reply: Any = PartyService(party).answer((query, from_plain(to_plain(key), ReleaseKey)), vectors)[0]
            assert reply.selected is not None or tuple(map(len, reply.released)) == query.sizes()
            sums.append(list(self.made))
        for (mine, sigma), (other, _) in zip(*sums, strict=True):
            self.lost += float(np.sum(((mine - other) / sigma) ** 2))

    @property
    def charged(self) -> float:
        """Return the ε that the book says the run has spent."""
        costs = self.ours.costs()
        return 0.0 if costs is None else costs.epsilon

    @property
    def released(self) -> float:
        """Return the ε of the releases, at least."""
        return epsilon_of(math.sqrt(self.lost), DELTA) if self.lost else 0.0


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def make(spec: vfl.Job, party: str = "bank", *, book: bool = True) -> Pair:
        loaded = []
        for side, table in zip(("ours", "theirs"), setting.mirrored(spec.loss, N), strict=True):
            path = tmp_path / f"{side}.toml"
            path.write_text(f'format = 1\njobs = ["*"]\nproducts = true\n[total]\nepsilon = 1e5\ndelta = {DELTA}\n')
            loaded.append(load(spec.for_party(party), sources_of(spec, table)[party], str(path) if book else None))
        made = Pair(*loaded)
        if book:
            made.begin()

        def release(sums: Any, grid: float, event: Any, noise: Any, key: ReleaseKey, sensitivity: float) -> Any:
            del noise
            assert event.sensitivity >= sensitivity
            made.made.append((np.asarray(sums, dtype=np.float64) * grid, event.sigma))
            return event.sensitivity * np.random.default_rng([key.round, key.part]).normal(size=len(sums))

        monkeypatch.setattr(parties.party, "release", release)
        return made

    return make


def loud(query: Query, records: Records) -> Records:
    """Return weights that drive every contribution to its cap.

    A party trusts the coordinator alone for the weights of products of columns, which only the coordinator can compute.
    """
    if records.weights is None or isinstance(query, Gram):
        return records
    return replace(records, weights=np.full_like(records.weights, 1e6))


NUMBERS = (*range(6), -1, 1 << 40)


@pytest.mark.parametrize("book", [True, False], ids=["book", "no book"])
@pytest.mark.parametrize("party", ["bank", "telco"])
@pytest.mark.parametrize("name", JOBS)
def test_no_query_divides_the_records_unless_the_plan_does(name: str, party: str, pair: Any, book: bool) -> None:
    """Charges on the parts of a split count the dearest part alone, and these parts would all be the same records."""
    made = pair(job(name), party, book=book)
    for query, records, key in asked(name, party):
        for number in NUMBERS:
            with contextlib.suppress(PrivacyError):
                made.answer(
                    to_plain(replace(query, subsample=number)), loud(query, records), replace(key, attempt=number % 7)
                )
    assert made.lost == 0.0
    assert not book or made.charged == 0.0


def test_no_query_divides_the_records_across_organisations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = FederationTransport.ask

    def lying(self: Any, shares: Any, records: Any, key: ReleaseKey) -> Any:
        return ask(self, {to: replace(share, subsample=3) for to, share in shares.items()}, records, key)

    monkeypatch.setattr(FederationTransport, "ask", lying)
    spec = job("sums of all parties")
    with federation(tmp_path) as joined:
        for party, own in sources_of(spec, setting.table(spec.loss, N)).items():
            joined.start(party, own)
        with pytest.raises(PrivacyError, match="'bank' was sent a query on records that its job does not plan"):
            vfl.train(spec, at=joined.place)
    for party in ("bank", "telco"):
        assert not [e for e in joined.events[party] if isinstance(e, events.Released) and e.releases]


def leaf_lies(value: Any) -> Iterator[Any]:
    """Yield other values for one value of a plain form: of the same kind, of a similar kind, and none at all."""
    yield from {
        type(None): lambda: (0, (), 1.0, "x", True),
        bool: lambda: (not value, int(value), None),
        int: lambda: (-1, 0, value + 1, value - 1, 1 << 40, 1 << 70, -(1 << 70), True, float(value), None),
        float: lambda: (-value, 0.0, math.nan, math.inf, 1e-6 * value, 1e6 * value, 1e-300, 1e300, int(value), None),
        str: lambda: ("", "telco", "bank", value + "x", None),
        bytes: lambda: (b"", value + b"x", value[8:], value + bytes(8), *vectors_like(value)),
        tuple: lambda: ((), value[:-1], value[1:], value + value[-1:], None),
    }[type(value)]()


def vectors_like(value: bytes) -> Iterator[bytes]:
    if len(value) % 8 == 0:
        entries = np.frombuffer(value, "<f8")
        for other in (
            0.0 * entries,
            -entries,
            1e6 * entries,
            1e-6 * entries,
            entries + 1e3,
            entries + np.inf,
            entries * np.nan,
        ):
            yield other.astype("<f8").tobytes()


def lies(plain: Any) -> Iterator[Any]:
    """Yield a plain form with one value changed: every value in turn, at every depth, in every way of `leaf_lies`."""
    with warnings.catch_warnings(action="ignore"):
        yield from leaf_lies(plain)
    if type(plain) is tuple:
        for place, own in enumerate(plain):
            yield from ((*plain[:place], lie, *plain[place + 1 :]) for lie in lies(own))


@pytest.mark.parametrize("name", JOBS)
def test_a_lie_about_any_value_of_a_query_is_refused_or_costs_what_the_book_says(name: str, pair: Any) -> None:
    """No other error is raised, since it would name what failed; and no refused query leaves a release behind."""
    made, seen, told = pair(job(name)), set(), 0
    for query, records, key in asked(name, "bank"):
        if type(query) in seen:
            continue
        seen.add(type(query))
        given = loud(query, records)
        made.answer(to_plain(query), given, key)
        assert made.released <= (1.0 + 1e-6) * made.charged
        whole = query.batch is None and not isinstance(query, Select)  # the record may be in another batch
        assert not (query.events() and whole) or made.released > 0.3 * made.charged  # a measure that would notice
        every = [*lies(to_plain(query))]
        for lie in every[:: 1 + len(every) // 400]:
            told += 1
            with contextlib.suppress(VflError):
                if made.charged:
                    made.begin()
                made.answer(lie, given, key)
            assert made.released <= (1.0 + 1e-6) * made.charged, lie
    assert told > 200


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", JOBS)
def test_no_sequence_of_messages_costs_more_than_the_book_says(name: str, seed: int, pair: Any) -> None:
    """Repeated, reordered and altered messages, with new and with used keys, as one run."""
    made, rng, refused, answered = pair(job(name)), np.random.default_rng(seed), 0, 0
    for query, records, key in asked(name, "bank") * 2:
        other, given, _ = asked(name, "bank")[rng.integers(len(asked(name, "bank")))]
        for each, own in ((query, records), (other, given)):
            told = [to_plain(each), *lies(to_plain(each))]
            plain = told[rng.integers(len(told)) if answered and rng.random() < 0.5 else 0]
            at = replace(key, round=int(rng.choice([key.round, 5])), attempt=int(rng.integers(1 << 20)))
            try:
                made.answer(plain, loud(each, own), at)
                answered += bool(each.events())
            except VflError:
                refused += 1
        assert made.released <= (1.0 + 1e-6) * made.charged
    assert refused
    assert answered
