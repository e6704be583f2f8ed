"""Bytes and seconds of training on shares: `python -m tests.benchmarks.secure_requests [--engine ray] [--records N]`.

Two parties of --columns columns train logistic regression in blocks of --block columns. A table lists for every request its
messages, their bytes beside those of the cost model (vfl.secure.cost), and the processor's seconds of its sender. Messages are
encrypted messages, and for Contribute the words that a party returns to the coordinator. On Ray, the coordinator runs in this
process and the participants are actors. In the federation, all members run in threads of this process and talk over gRPC on
loopback, so only messages and bytes are counted. Below the table: the time of a round, from one model to the next; its
processor time over all participants, which two cores cannot undercut by more than one half; and the growth of the participants'
memory over the second half of the run.

Load on the machine changes seconds but no bytes. Give --passes 500 for 1,000 rounds with one block per party.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa

import vfl
from coordinator.cluster.ray_transport import RayTransport
from coordinator.coordinator import Coordinator
from coordinator.federation.transport import FederationTransport
from coordinator.rounds import Round
from parties.actor import DealerActor, PartyActor
from parties.dealing import DealerService
from parties.loading import load
from tests.coordinator.organisations import federation
from vfl.job.site import Faults
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.sources import sources_of
from vfl.planning.run_plan import TYPICAL_MARGIN
from vfl.secure.requests import Commitment, Contribution, Request
from vfl.secure.sharing import Sharing
from vfl.secure.sigmoid import SERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.transport import MessageTransport

MODEL = {
    "SetUp": "setup",
    "MaskAngles": "angles",
    "DealTerms": "fourier_terms",
    "OpenRows": "checks",
    "ShareResidual": "residuals",
    "DealSum": "openings",
    "Contribute": "openings",
    "Disclose": "openings",
}
"""Requests of a run, and the parts of the cost model that predict the bytes of their messages."""
PARTIES = ("a", "b")
POLICY = """
format = 1
jobs = ["*"]
trust = ["secure"]
[total]
epsilon = 1000.0
delta = 1e-4
"""


class Meter:
    """Messages, bytes and processor seconds of each kind of request; the version of each round, and the memory after it."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.requests: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
        self.memory: list[int] = []
        self._clock, self._lock = clock, threading.Lock()

    def call(self, request: Any, answer: Callable[[], tuple[Any, list[Any]]]) -> tuple[Any, list[Any]]:
        """Answer a request and note what it took."""
        begun = self._clock()
        reply, sent = answer()
        spent = self._clock() - begun
        messages = list(sent)
        if isinstance(reply, Commitment):
            messages.append(reply.digest)
        if isinstance(reply, Contribution):
            messages.append(reply.elements + reply.nonce)
        with self._lock:
            entry = self.requests[type(request).__name__]
            entry[0] += len(messages)
            entry[1] += sum(map(len, messages))
            entry[2] += spent
        if type(request).__name__ in ("Contribute", "DealSum"):
            self.memory.append(own_memory())
        return reply, sent

    def stated(self) -> tuple[dict[str, list[float]], list[int]]:
        """Return all figures."""
        return dict(self.requests), self.memory


def own_memory() -> int:
    """Return the bytes of this process, without pages that it shares with others, such as those of Ray's object store."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


class MeasuredParty(PartyActor):
    """Actor of a party that measures its requests."""

    def measure(self) -> None:
        """Begin to measure."""
        self.meter, inner = Meter(), self._party
        plain = inner.request
        inner.request = lambda request, ciphertexts: self.meter.call(request, lambda: plain(request, ciphertexts))  # type: ignore[method-assign, union-attr]

    def stated(self) -> Any:
        """Return what was measured."""
        return self.meter.stated()


class MeasuredDealer(DealerActor):
    """Actor of the dealer that measures its requests."""

    def __init__(self, job: vfl.Job) -> None:
        super().__init__(job)
        self.meter, inner = Meter(), self._service
        plain = inner.request
        inner.request = lambda request, ciphertexts: self.meter.call(request, lambda: plain(request, ciphertexts))

    def stated(self) -> Any:
        """Return what was measured."""
        return self.meter.stated()


class Measured(InProcessTransport):
    """Transport in one process that measures the requests."""

    def __init__(self, job: vfl.Job, sources: Any) -> None:
        super().__init__(
            {name: load(job.for_party(name), source) for name, source in sources.items()}, DealerService(job)
        )
        self.meter = Meter()

    def post(self, to: str, message: Any, *vectors: Any, **options: Any) -> Any:
        """Measure a request."""
        if not isinstance(message, Request):
            return super().post(to, message, *vectors, **options)
        made: list[Any] = []

        def posted() -> tuple[Any, list[Any]]:
            made.append(super(Measured, self).post(to, message, *vectors, **options))
            return made[0].answer[0], list(made[0].vectors.values())

        self.meter.call(message, posted)
        return made[0]


def problem(n: int, columns: int, block: int, passes: int) -> tuple[vfl.Job, pa.Table]:
    """Return a job of two parties with so many columns each, and its table."""
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(2 * columns)]
    table = {name: rng.random(n, dtype=np.float32) for name in names}
    table["y"] = (rng.random(n) < 0.3).astype(np.float32)
    job = vfl.Job(
        partition=vfl.FeaturePartition({"a": names[:columns], "b": names[columns:]}, label=("a", "y")),
        bounds={"*": (0.0, 1.0)},
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-9, smoothness="bounds"),
        solver=vfl.SkGD(block_size=block, passes=passes),
        intercept=False,
        trust="secure",
    )
    return job, pa.table(table)


@contextlib.contextmanager
def transport_on(
    engine: str, job: vfl.Job, table: pa.Table
) -> Iterator[tuple[MessageTransport, Callable[[], list[Any]]]]:
    """Start the participants; yield their transport, and a function that returns the figures of each meter."""
    sources = sources_of(job, table, ids=False)
    if engine == "inprocess":
        own = Measured(job, sources)
        yield own, lambda: [own.meter.stated()]
        return
    from vfl.launch.sites.connection import connected

    with connected(4, None) as ray:
        options = {"num_cpus": 0.5}
        parties = {name: ray.remote(MeasuredParty).options(**options).remote(job, name) for name in sources}
        ray.get([parties[name].load.remote(source) for name, source in sources.items()])
        ray.get([party.measure.remote() for party in parties.values()])
        dealer = ray.remote(MeasuredDealer).options(**options).remote(job)
        yield (
            RayTransport(parties, 600.0, sources, dealer=dealer),
            lambda: ray.get([actor.stated.remote() for actor in (*parties.values(), dealer)]),
        )


def across(job: vfl.Job, table: pa.Table) -> tuple[list[Round], list[Any]]:
    """Run the job in a federation on loopback; return its rounds and the figures of one meter."""
    meter, sent, rounds = Meter(lambda: 0.0), FederationTransport._sent, []

    def measuring(self: Any, call: Any, *rest: Any) -> Any:
        if not isinstance(call.message, Request):
            return sent(self, call, *rest)
        found: list[Any] = []

        def answered() -> tuple[Any, list[Any]]:
            found.append(sent(self, call, *rest))
            return found[0][0], list(found[0][1].values())

        meter.call(call.message, answered)
        return found[0]

    def watch(event: object) -> None:
        if isinstance(event, Round):
            rounds.append(event)

    faults = Faults(wait_timeout_s=60.0, answer_timeout_s=600.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(FederationTransport, "_sent", measuring),
        federation(Path(folder), PARTIES, dealer="notary") as joined,
    ):
        joined.faults = faults
        joined.start("notary", None)
        for name, source in sources_of(job, table, ids=False).items():
            joined.start(name, source, policy=joined.policy(name, POLICY))
        vfl.train(job, at=joined.place, watch=watch)
    return rounds, [meter.stated()]


def measured(engine: str, job: vfl.Job, table: pa.Table) -> tuple[list[Round], list[Any]]:
    """Run the job; return its rounds and the figures of the meters."""
    if engine == "federation":
        return across(job, table)
    with transport_on(engine, job, table) as (transport, stated):
        rounds = [event for event in Coordinator(transport).stream(job) if isinstance(event, Round)]
        return rounds, stated()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("inprocess", "ray", "federation"), default="inprocess")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--block", type=int, default=10)
    parser.add_argument("--passes", type=int, default=3)
    given = parser.parse_args()
    job, table = problem(given.records, given.columns, given.block, given.passes)
    rounds, meters = measured(given.engine, job, table)
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for requests, _ in meters:
        for name, entry in requests.items():
            sums[name] = [a + b for a, b in zip(sums[name], entry, strict=True)]
    planned = vfl.plan(job, given.records).sharing
    assert isinstance(planned, Sharing)
    versions, stated = planned.versions, planned.costs[SERIES[planned.place(TYPICAL_MARGIN)].terms]
    parts: dict[str, float] = defaultdict(float)
    for name, part in MODEL.items():
        parts[part] += sums[name][1]
    print(
        f"{given.engine}: n = {given.records:,}, 2 × {given.columns} columns, blocks of {given.block}, {versions} models\n"
    )
    print(
        "| request | messages | bytes | model | bytes/model | processor, s | ms per model |\n|---|---|---|---|---|---|---|"
    )
    for name, part in MODEL.items():
        count, size, seconds = sums[name]
        said = getattr(stated, part)  # of all messages of this part
        ratio = f"{parts[part] / said:.3f}"
        print(
            f"| {name} | {count} | {size:,} | {said:,} | {ratio} | "
            + (f"{seconds:.2f} | " if seconds else "| ")
            + (f"{1e3 * seconds / versions:.2f} |" if name != "SetUp" else " |")
        )
    whole = sum(entry[1] for entry in sums.values())
    print(
        f"\nbytes of all messages over those that the plan states for V = {TYPICAL_MARGIN:g}: {whole / stated.total:.3f}"
    )
    steps = [event for event in rounds if event.kind == "Descend"]
    per = versions / len(steps)
    print(
        f"a round: median {statistics.median(step.seconds for step in steps) / per:.3f} s, "
        f"least {min(step.seconds for step in steps) / per:.3f} s; processor "
        f"{sum(sums[name][2] for name in MODEL if name != 'SetUp') / versions:.3f} s of all participants"
    )
    for _, memory in meters:
        if memory:
            half = len(memory) // 2
            gained = (memory[-1] - memory[half]) / 1e6
            print(f"own memory of a participant {memory[-1] / 1e6:.0f} MB, {gained:+.1f} MB in the last half")


if __name__ == "__main__":
    main()
