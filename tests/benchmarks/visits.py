"""A visit on Ray at large n: its time against the kernel's and a bare round trip's with the same vectors, in one run.

    python -m tests.benchmarks.visits [--records N ...] [--runs N] [--json]
    python -m tests.benchmarks.visits --passes [--parties N] [--records N ...] [--runs N]

A visit sends the margins to a party, which takes ten single columns under a record cap and returns X_S Δ. Four things
take turns: the visits of a run through memory that the processes share, the same visits through the object store, those with
constants fetched in every one (as Ray does with arguments by reference), and bare trips. The ratios are

    visit / (kernels + bare trip)    kernels: the compiled loops alone, timed within the same visits
    visit / (party + bare trip)      party: all that the party does, copies and noise too
    outside the party / bare trip    (visit - party) / bare trip

With --passes, runs on Ray and runs in this process take turns; the ratio is that of the seconds of their passes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

import vfl
from parties.actor import Constants, PartyActor
from tests.benchmarks.rounds import Bare
from vfl.launch.engines.connection import connected
from vfl.launch.sources import sources_of

P, PASSES, TRIPS = 20, 4, 8


def job(passes: int = PASSES, parties: int = 2) -> vfl.Job:
    """Return a private logistic job under a record cap, with ten columns per party."""
    held = {party: [f"{party}{j}" for j in range(P // 2)] for party in "abcdefghijklmnopqrstuvwxyz"[:parties]}
    names = [name for columns in held.values() for name in columns]
    return vfl.Job(
        partition=vfl.FeaturePartition(held, label=("b", "y")),
        bounds=dict.fromkeys(names, (-1.0, 1.0)),
        intercept=False,
        privacy=vfl.Privacy(epsilon=1.0, delta=1e-9, smoothness="bounds", noise=vfl.SeededNoise(1)),
        solver=vfl.SkGD(passes=passes, sampling="cyclic", clip="record"),
    )


def table(n: int, parties: int = 2) -> dict[str, np.ndarray]:
    """Return uniform columns and a label."""
    rng = np.random.default_rng(0)
    X = {name: rng.uniform(-1, 1, n) for name in job(parties=parties).partition.features}
    return X | {"y": (X["a0"] > 0).astype(int)}


class Timed:
    """The kernels of a party; counts the seconds spent in them."""

    def __init__(self, kernels: Any) -> None:
        self._kernels, self.seconds = kernels, 0.0

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return kernel(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


class Measured(PartyActor):
    """A party that keeps the seconds that its kernels took for each query."""

    def load(self, source: Any) -> None:
        """Load the columns, and put the clock around their kernels."""
        super().load(source)
        rows = self._party.rows
        rows._kernels = self._timed = Timed(rows._kernels)
        self._taken: list[float] = []

    def answer(self, *arguments: Any) -> Any:
        """Answer, and keep the seconds of the kernels."""
        self._timed.seconds = 0.0
        answer = super().answer(*arguments)
        self._taken.append(self._timed.seconds)
        return answer

    def kernels(self, last: int) -> list[float]:
        """Return the seconds of the last queries."""
        return self._taken[-last:]


class FetchesAlways(Measured):
    """A party that fetches constants in every query."""

    def answer(self, *arguments: Any) -> Any:
        """Answer without the constants of earlier queries."""
        self._constants = Constants()
        return super().answer(*arguments)


class Driver:
    """Drives parties from an actor, as the coordinator does."""

    def trips(self, actor: Any, labels: Any, margins: np.ndarray) -> float:
        """Return the seconds of one bare round trip."""
        import ray

        start = time.perf_counter()
        for _ in range(TRIPS):
            margins = ray.get(actor.answer.remote(margins, labels))
        return (time.perf_counter() - start) / TRIPS

    def visits(self, spec: vfl.Job, actors: dict[str, Any], *, lent: bool) -> tuple[float, float, float]:
        """Return the seconds of one visit, those of them in the party, and those in its kernels. A run ends with visits."""
        import ray

        from coordinator.cluster.ray_transport import RayTransport
        from coordinator.coordinator import Coordinator
        from coordinator.rounds import Round

        transport, seconds, inside, last = RayTransport(actors, 600.0), [], [], 0.0
        if not lent:
            transport._near = frozenset()
        for event in Coordinator(transport).stream(spec):
            if isinstance(event, Round):
                if event.kind == "Descend":
                    seconds.append(event.seconds)
                    inside.append(transport.traffic.party_seconds - last)
                last = transport.traffic.party_seconds
        each = len(seconds) // len(actors)
        taken = [one for actor in actors.values() for one in ray.get(actor.kernels.remote(each))[1:]]
        # The first visits compute what later ones keep.
        return statistics.median(seconds[2:]), statistics.median(inside[2:]), statistics.median(taken)


def measured(n: int, runs: int) -> dict[str, list[float]]:
    """Return {measure: a value per run} at n records."""
    spec, found = job(), {}
    with connected(8, None) as ray:
        sources = sources_of(spec, table(n))
        driver, bare = ray.remote(Driver).options(num_cpus=0).remote(), ray.remote(Bare).options(num_cpus=1).remote()
        arms = {}
        for arm, kind in (("lent", Measured), ("stored", Measured), ("fetched", FetchesAlways)):
            arms[arm] = {name: ray.remote(kind).options(num_cpus=1).remote(spec, name) for name in sources}
            ray.get([arms[arm][name].load.remote(source) for name, source in sources.items()])
        labels, margins = ray.put(np.ones(n)), np.ones(n)
        for run in range(runs + 1):
            trip = ray.get(driver.trips.remote(bare, labels, margins))
            for arm, actors in arms.items():
                whole, inside, kernels = ray.get(driver.visits.remote(spec, actors, lent=arm == "lent"))
                if run:
                    found.setdefault(f"{arm}: visit / (kernels + bare trip)", []).append(whole / (kernels + trip))
                    found.setdefault(f"{arm}: visit / (party + bare trip)", []).append(whole / (inside + trip))
                    found.setdefault(f"{arm}: outside the party / bare trip", []).append((whole - inside) / trip)
                    found.setdefault(f"{arm}: visit, ms", []).append(whole * 1e3)
                    found.setdefault(f"{arm}: party, ms", []).append(inside * 1e3)
                    found.setdefault(f"{arm}: kernels, ms", []).append(kernels * 1e3)
            if run:
                found.setdefault("bare trip, ms", []).append(trip * 1e3)
    return found


def passes(n: int, runs: int, parties: int) -> dict[str, list[float]]:
    """Return {measure: a value per run} of passes on Ray and in this process, which take turns."""
    spec, data, found = job(parties=parties), table(n, parties), {}
    with connected(parties + 1, None):
        for run in range(runs + 1):
            taken = {}
            for engine in ("ray", "inprocess"):
                seconds: list[float] = []

                def watch(event: Any, seconds: list[float] = seconds) -> None:
                    if getattr(event, "kind", "") == "Descend":
                        seconds.append(event.seconds)

                vfl.train(spec, data, at=engine, watch=watch)
                # The first pass computes what later ones keep.
                taken[engine] = sum(seconds[parties:]) / (PASSES - 1)
            if run:
                found.setdefault("pass on Ray / in process", []).append(taken["ray"] / taken["inprocess"])
                for engine, value in taken.items():
                    found.setdefault(f"pass, {engine}, ms", []).append(value * 1e3)
    return found


def main() -> None:
    """Print median, least and most of each measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--passes", action="store_true")
    parser.add_argument("--parties", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {
        n: passes(n, arguments.runs, arguments.parties) if arguments.passes else measured(n, arguments.runs)
        for n in arguments.records
    }
    if arguments.json:
        print(json.dumps(found))
        return
    for n, measures in found.items():
        for name, values in measures.items():
            print(f"{n:>9,}  {name:<42} {statistics.median(values):8.3f}  ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
