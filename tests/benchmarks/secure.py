"""Rates of training on shares: `python -m tests.benchmarks.secure [--records 1000000]`.

The kernels are compared with np.sum on equal bytes, the dealer with its generator. A round, of two parties with blocks of ten
columns, runs in one process, request by request; what runs at the same time on two machines is added up along the longest path.
Times are of the thread, which load on the machine disturbs less; only ratios are meaningful.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from tests.secure.session import exchanged
from vfl.kernels import ring as kernels
from vfl.privacy.events import ReleaseKey
from vfl.privacy.noise import CryptographicNoise
from vfl.secure import cost, noise, ring, sigmoid
from vfl.secure.check_rows import CHECK_ROWS
from vfl.secure.columns import own_columns
from vfl.secure.member import Dealer, Member
from vfl.secure.requests import Opening, Version, opened
from vfl.secure.roles import DEALER, Roles
from vfl.secure.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS, PLACE, SIGMA = 10, 2, 200.0


def least(turns: int, **contenders: Callable[[], object]) -> dict[str, float]:
    """Return the least seconds of each contender; they alternate."""
    found = dict.fromkeys(contenders, float("inf"))
    for call in contenders.values():
        call()
    for _ in range(turns):
        for name, call in contenders.items():
            begun = time.thread_time()
            call()
            found[name] = min(found[name], time.thread_time() - begun)
    return found


def kernel_rates(n: int, turns: int = 20) -> dict[str, float]:
    """Return for every kernel the time of np.sum on equal bytes over its own.

    Bytes are those read and those written, so an array that changes in place counts twice. Tables do not count.
    """
    rng = np.random.default_rng(0)
    terms = sigmoid.SERIES[PLACE].terms
    Q = rng.integers(-5000, 5000, (COLUMNS, n)).astype(np.int16)
    b, D = (rng.integers(0, 2**64, shape, dtype=np.uint64) for shape in (n, (COLUMNS, n)))
    angles, weights = rng.integers(0, 2**16, n).astype(np.uint16), rng.integers(-(2**34), 2**34, COLUMNS)
    words, out = rng.integers(0, 2**64, (n, 2 * terms), dtype=np.uint64), np.empty(n, np.uint64)
    parts = np.zeros(n, dtype=np.int64)
    responses, fourier_terms = sigmoid.responses(PLACE), sigmoid.fourier_terms(terms)
    cases: dict[str, tuple[Callable[[], object], int]] = {
        "Q'r": (lambda: kernels.products(Q, b), Q.nbytes + b.nbytes),
        "D'b": (lambda: kernels.products(D, b), D.nbytes + b.nbytes),
        "residuals": (
            lambda: kernels.residual_shares(responses, angles, words, out),
            words.nbytes + out.nbytes + angles.nbytes,
        ),
        "last shares": (lambda: kernels.last_shares(fourier_terms, angles, words), 2 * words.nbytes + angles.nbytes),
        "angles": (lambda: kernels.add_products(Q, weights, parts), Q.nbytes + 2 * parts.nbytes),
    }
    found = {}
    for name, (call, size) in cases.items():
        ones = np.ones(size // 8)
        times = least(turns, kernel=call, sum=ones.sum)
        found[name] = times["sum"] / times["kernel"]
    return found


class Round:
    """Two parties and a dealer in one process, which run rounds of one block of the first party."""

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(0)
        self.n, self.roles = n, Roles(("a", "b"), "a", 1)
        streams = exchanged(self.roles)
        residual = sigmoid.residual_bound()
        caps = ring.caps(1.0, residual, {"a": 1.0, "b": 1.0})
        bits = ring.bits(n, residual, SIGMA / caps["a"], 2)
        self.deviations = noise.deviations(SIGMA, bits.step(caps["a"]), 2, 1)
        source = CryptographicNoise()
        labels = rng.random(n) < 0.3
        self.a, self.b = (
            Member(self.roles, "a", streams["a"], source, n, labels),
            Member(self.roles, "b", streams["b"], source, n),
        )
        self.dealer = Dealer(self.roles, streams[DEALER], source, n)
        ones = np.ones(COLUMNS)
        for member, cap in ((self.a, caps["a"]), (self.b, caps["b"])):
            X = np.asfortranarray(rng.uniform(-1, 1, (n, COLUMNS)))
            member.set_up(0, own_columns(X, 0 * ones, ones, ones, cap, bits))
        self.b.take_columns("a", 0, 0, COLUMNS, self.a.masked_columns(0, COLUMNS))
        self.number = 0
        self.fourier_terms = np.empty((n + CHECK_ROWS, 2 * sigmoid.SERIES[PLACE].terms), dtype=np.uint64)

    def deal(self, version: Version) -> None:
        """Draw the dealer's Fourier terms of a version."""
        done = 0
        for part in self.dealer.fourier_terms(version):
            self.fourier_terms[done : done + len(part)] = part
            done += len(part)

    def run(self) -> dict[str, float]:
        """Run one round; return the seconds of each request."""
        self.number += 1
        version, w = Version(str(self.number), PLACE), np.full(COLUMNS, 0.1 + 1e-6 * self.number)
        opening = Opening("a", 0, COLUMNS, version, ReleaseKey(self.number))
        times: dict[str, float] = {}

        def timed(name: str, call: Callable[[], object]) -> object:
            begun = time.thread_time()
            found = call()
            times[name] = time.thread_time() - begun
            return found

        timed("Fourier terms (dealer)", lambda: self.deal(version))
        first = timed("angles (a)", lambda: self.a.masked_angles(version, w, None))
        second = timed("angles (b)", lambda: self.b.masked_angles(version, w, None))
        self.a.take_angles(version, "b", second)
        self.b.take_angles(version, "a", first)
        self.b.take_terms(version, iter([self.fourier_terms]))
        timed("share (a, expanded)", lambda: self.a.share(version))
        timed("share (b, from words)", lambda: self.b.share(version))
        self.a.take_residual(version, "b", timed("residual (b)", lambda: self.b.masked_residual(version, "a")))
        self.a.take_sum(opening, timed("sum (dealer)", lambda: self.dealer.sum(opening, self.deviations)))
        words = {
            "b": timed("opening (b)", lambda: self.b.contribution(opening, self.deviations)),
            "a": timed("opening (a)", lambda: self.a.contribution(opening, self.deviations)),
        }
        timed("decoding", lambda: opened(self.roles, opening, words, ring.RANGE))
        return times

    def requests(self, turns: int) -> dict[str, float]:
        """Return the least seconds of each request."""
        all_times = [self.run() for _ in range(turns + 1)][1:]
        return {name: min(times[name] for times in all_times) for name in all_times[0]}


def path(requests: dict[str, float]) -> float:
    """Return the seconds along the longest path of a round, with the parties and the dealer at work at the same time."""
    ready = max(requests["angles (a)"], requests["angles (b)"])
    b = max(ready, requests["Fourier terms (dealer)"]) + requests["share (b, from words)"] + requests["residual (b)"]
    a = max(ready + requests["share (a, expanded)"], b)
    return (
        max(a, requests["Fourier terms (dealer)"] + requests["sum (dealer)"])
        + requests["opening (a)"]
        + requests["decoding"]
    )


def dealing(n: int, turns: int) -> float:
    """Return the time of the dealer's Fourier terms over that of its generator."""
    run, number = Round(n), iter(range(10**6))
    times = least(
        turns,
        fourier_terms=lambda: deque(run.dealer.fourier_terms(Version(f"dealt {next(number)}", PLACE)), 0),
        generator=lambda: Stream(bytes(32)).fill(run.fourier_terms),
    )
    return times["fourier_terms"] / times["generator"]


def generator(size: int, turns: int) -> float:
    """Return the seconds in which the generator fills an array of that many bytes."""
    out = np.empty(size // 8, dtype=np.uint64)
    return least(turns, fill=lambda: Stream(bytes(32)).fill(out))["fill"]


def growth(rounds: int, n: int = 2000) -> float:
    """Return the megabytes by which the process grows in that many rounds, after as many to warm up."""
    run = Round(n)
    for _ in range(rounds):
        run.run()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(rounds):
        run.run()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Print all ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=10)
    given = parser.parse_args()
    n, turns = given.records, given.turns
    print(f"n = {n:,}, blocks of {COLUMNS} columns, K = {sigmoid.SERIES[PLACE].terms}")
    for name, rate in kernel_rates(n, turns).items():
        print(f"  {name:22} {rate:5.2f} of np.sum's rate on equal bytes")
    requests = Round(n).requests(turns)
    for name, spent in requests.items():
        print(f"  {name:22} {1e3 * spent:8.2f} ms")
    size = 16 * sigmoid.SERIES[PLACE].terms * n
    one = generator(size, turns)
    print(
        f"  generator, {size / 1e6:.0f} MB: {1e3 * one:.2f} ms; "
        f"dealer's Fourier terms {requests['Fourier terms (dealer)'] / one:.2f} times it"
    )
    print(f"  longest path {1e3 * path(requests):.1f} ms; in one thread {1e3 * sum(requests.values()):.1f} ms")
    quarter = Round(n // 4).requests(turns)
    slope = np.log(path(requests) / path(quarter)) / np.log(4)
    print(f"  slope in n {slope:.3f}")
    roles = Roles(("a", "b"), "a", 1)
    models = cost.Models(1, {"a": 1}, 1, COLUMNS)
    found = cost.logistic(roles, n, dict.fromkeys("ab", COLUMNS), sigmoid.SERIES[PLACE].terms, models)
    per = {name: getattr(found, name) / n for name in ("angles", "fourier_terms", "residuals")}
    print("  bytes per record of a round:", ", ".join(f"{name} {size:g}" for name, size in per.items()))
    print(f"  growth over 1,000 rounds {growth(1000):.2f} MB")


if __name__ == "__main__":
    main()
