"""Runs on shares in one process, whose requests a test can watch or lose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import vfl
from coordinator.coordinator import Coordinator, Outcome
from coordinator.transport import NOTHING, PendingCall
from parties.dealing import DealerService
from parties.loading import load
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.secure.requests import Commitment, Contribution, Request, receivers, senders
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.network.messages import Greeting

N = 300
CUT_OFF = b"lost"
"""Ciphertext of a lost participant."""


def table(n: int = N, p: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """Return p columns within ±2 and labels of a logistic model, by name."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)).clip(-2.0, 2.0)
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-X @ rng.normal(size=p)))).astype(float)
    return {**{f"x{j}": X[:, j] for j in range(p)}, "y": y}


def job(parties: int = 2, collude: int = 1, p: int = 6, **options: Any) -> vfl.Job:
    """Return a job with seeded noise over p columns of so many parties; options go before its own."""
    names = [f"q{k}" for k in range(parties)]
    columns = {name: [f"x{j}" for j in range(k, p, parties)] for k, name in enumerate(names)}
    given: dict[str, Any] = {
        "partition": vfl.FeaturePartition(columns, label=(names[-1], "y")),
        "privacy": vfl.Privacy(epsilon=8.0, noise=vfl.SeededNoise(3)),
        "solver": vfl.SkGD(block_size=2, passes=3),
        "bounds": {"*": (-2, 2)},
        "trust": vfl.federation.Secure(collude=collude),
    }
    return vfl.Job(**given | options)


class Watched(InProcessTransport):
    """Transport that records all that passes the coordinator, and can lose a participant at one request.

    lose : (type of a request, participant); the first such request is lost after it was answered, or before.
    """

    def __init__(
        self, spec: vfl.Job, data: Any, lose: tuple[type, str] | None = None, *, answered: bool = False
    ) -> None:
        self.spec = spec
        self.sources = sources_of(spec, data, ids=True)
        self.holders = {name: load(spec.for_party(name), source) for name, source in self.sources.items()}
        super().__init__(self.holders, DealerService(spec))
        self.lose, self.answered, self.broken = lose, answered, False
        self.requests: list[tuple[str, Request]] = []
        self.ciphertexts: list[tuple[str, Request, list[bytes]]] = []
        self.replies: list[object] = []

    def labels(self, party: str) -> Any:
        """Fail: nobody is asked for labels."""
        raise AssertionError("labels were asked for")

    def ask(self, shares: Any, records: Any, key: Any) -> Any:
        """Record replies."""
        replies = super().ask(shares, records, key)
        self.replies += replies.values()
        return replies

    def post(self, to: str, message: Any, vectors: Any = NOTHING, due: Any = NOTHING, **options: Any) -> PendingCall:
        """Record a request, and lose it if it is the one to lose."""
        if not isinstance(message, Request):
            return super().post(to, message, vectors, due, **options)
        request: Request = message
        self.requests.append((to, request))
        lost = self.lose is not None and type(request) is self.lose[0] and to == self.lose[1]
        if lost and not self.answered:
            return PendingCall(to, self._lost(to), dict.fromkeys(due, CUT_OFF))
        if self.broken:  # an actor's later calls fail, and the first loss is the one that is seen
            return PendingCall(to, vfl.errors.PartyLost(f"{to!r} was cut off", to), dict.fromkeys(due, CUT_OFF))
        posted = super().post(to, request, vectors, due, **options)
        self.ciphertexts.append((to, request, list(posted.vectors.values())))
        self.replies.append(posted.answer[0])
        return PendingCall(to, self._lost(to), posted.vectors) if lost else posted

    def collect(self, posted: Sequence[PendingCall]) -> list[Any]:
        """Raise the first loss."""
        for own in posted:
            if isinstance(own.answer, vfl.errors.PartyLost):
                self.broken = False
                raise own.answer
        return super().collect(posted)

    def revive(self, party: str, seconds: float) -> Greeting:
        """Load a lost participant anew."""
        from vfl.network.messages import Greeting
        from vfl.version import __version__

        if party == DEALER:
            self._dealer = DealerService(self.spec)
            return Greeting(__version__, 0)
        self.holders[party] = load(self.spec.for_party(party), self.sources[party])
        return self.holders[party].greet()

    def _lost(self, to: str) -> vfl.errors.PartyLost:
        self.lose, self.broken = None, True
        return vfl.errors.PartyLost(f"{to!r} is lost", to)


def outcome(transport: Watched, **faults: Any) -> tuple[Outcome, list[Any]]:
    """Run the transport's job; return its outcome and all events."""
    events = list(Coordinator(transport, faults=Faults(**faults)).stream(transport.spec))
    assert isinstance(events[-1], Outcome)
    return events[-1], events


WORDS = {
    "SetUp": "masked columns",
    "MaskAngles": "masked angles",
    "DealTerms": "shares of Fourier terms",
    "StateRecords": "the number of records",
    "Toss": "the coin of the session",
    "OpenRows": "opened rows of Fourier terms and masks",
    "ShareResidual": "masked residuals",
    "DealSum": "the dealer's part of sums",
}


def received(transport: Watched, roles: Any) -> list[str]:
    """Return the rows of a table of all that each participant received in a run, from its transcript."""
    waiting: dict[tuple[str, str], list[tuple[str, int]]] = {}
    found: dict[tuple[str, str, str], list[int]] = {}
    for (to, request), (_, _, sent) in zip(transport.requests, transport.ciphertexts, strict=True):
        for sender in senders(request, to, roles):
            what, size = waiting[sender, to].pop(0)
            entry = found.setdefault((to, sender, WORDS[what]), [0, 0])
            entry[0] += 1
            entry[1] += size
        for receiver, ciphertext in zip(receivers(request, to, roles), sent, strict=True):
            waiting.setdefault((to, receiver), []).append((type(request).__name__, len(ciphertext)))
    assert not any(waiting.values())
    rows = [f"| {to} | {sender} | {what} | {n} | {size:,} |" for (to, sender, what), (n, size) in sorted(found.items())]
    replies = transport.replies
    digests = [reply.digest for reply in replies if isinstance(reply, Commitment)]
    elements = [reply.elements + reply.nonce for reply in replies if isinstance(reply, Contribution)]
    for said, sizes in (("commitments", digests), ("elements of openings", elements)):
        rows.append(f"| coordinator | every party | {said} | {len(sizes)} | {sum(map(len, sizes)):,} |")
    return rows
