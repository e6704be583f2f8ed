"""Guard against slow code: compare a few ratios with recorded ones, and fail if one has doubled.

    python -m tests.benchmarks.guard [--record]

Contenders alternate in one run, in many short turns each, and the best time counts, because load on the machine only
adds time. A ratio that seems to have doubled is measured once more. guard.json holds the recorded ratios, the largest
of three; --record replaces them after an intended change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.benchmarks import kernels, ledger, rounds, secure
from vfl.kernels import dense as ours
from vfl.kernels.geometry import Geometry, record_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RECORD = Path(__file__).with_name("guard.json")
MARGIN = 2.0
TURNS = 60


def kernel_over_sum() -> dict[str, float]:
    """Return the time of the clipped, rounded gradients over that of np.sum, on a block larger than every cache."""
    n, s, rng = 250_000, 16, np.random.default_rng(0)
    X = np.asfortranarray(rng.normal(size=(n, s)))
    v, y = rng.normal(size=n), np.sign(rng.normal(size=n))
    scale = np.ones(s)
    at = Geometry(np.zeros(s), scale, 12.0, kernels.GRID)
    times = kernels.best(
        TURNS,
        sum=X.sum,
        squared=lambda: ours.gradient(X, v, y, ours.SQUARED, at),
        logistic=lambda: ours.gradient(X, v, y, ours.LOGISTIC, at),
        forward=lambda: ours.forward(X, 1e-9 * scale, v),
    )
    return {f"{name} kernel / np.sum": times[name] / times["sum"] for name in ("squared", "logistic", "forward")}


def pass_over_bare() -> dict[str, float]:
    """Return a single-coordinate logistic pass of Electricity's shape over a bare numba loop, and one under a record cap."""
    n, p, rng = 45_312, 9, np.random.default_rng(0)
    X = np.asfortranarray(rng.normal(size=(n, p)))
    y, scale, w, v = np.sign(rng.normal(size=n)), np.ones(p), np.zeros(p), np.zeros(n)
    limits = record_limits(ours.record_norms(X, np.zeros(p), scale), 3.0)
    bounds = ours.bounds_of(limits, y, ours.LOGISTIC)
    times = kernels.best(
        TURNS,
        bare=lambda: kernels.bare_pass(X, w, v, y, scale, 3.0, 1e-9),
        ours=lambda: kernels.our_pass(X, w, v, y, scale, 3.0, 1e-9),
        capped=lambda: kernels.our_capped_pass(X, w, v, bounds, ours.LOGISTIC, 3.0, 1e-9),
    )
    return {
        "pass / bare numba pass": times["ours"] / times["bare"],
        "pass under a record cap / pass": times["capped"] / times["ours"],
    }


def shares_over_sum() -> dict[str, float]:
    """Return the time of every kernel on shares over that of np.sum on equal bytes, and the dealer's over its generator."""
    found = {f"{name} on shares / np.sum": 1.0 / rate for name, rate in secure.kernel_rates(250_000, TURNS).items()}
    return found | {"dealer's Fourier terms / generator": secure.dealing(250_000, TURNS // 4)}


def visit_over_trip() -> dict[str, float]:
    """Return a visit on Ray, without the party's computation, over a bare round trip of the same vectors."""
    from vfl.launch.sites.connection import connected

    with connected(5, None) as ray:
        return {"visit on Ray / bare round trip": min(rounds.visits(ray, rounds.table(None), 6))}


def charge_over_insert() -> dict[str, float]:
    """Return a durable charge over a bare SQLite insert, one by one: ahead, a slow disk makes the ratio what it likes."""
    with tempfile.TemporaryDirectory() as folder:
        best = {name: max(rates) for name, rates, _ in ledger.rates(100, Path(folder))}
    return {"durable charge / bare SQLite insert": best["bare SQLite"] / best["ledger"]}


MEASURES = (kernel_over_sum, pass_over_bare, shares_over_sum, charge_over_insert, visit_over_trip)


def doubled(found: Mapping[str, float], recorded: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios above MARGIN times their record; a ratio without a record is not one of them."""
    return {name: ratio for name, ratio in found.items() if ratio > MARGIN * recorded.get(name, float("inf"))}


def check(measures: tuple[Callable[[], Mapping[str, float]], ...], recorded: Mapping[str, float]) -> dict[str, float]:
    """Measure, print, and return the ratios that have doubled twice in a row."""
    failed: dict[str, float] = {}
    for measure in measures:
        found = measure()
        suspects = doubled(found, recorded)
        if suspects:
            print(f"  once more: {', '.join(suspects)}")
            again = measure()
            found = {name: min(ratio, again.get(name, ratio)) for name, ratio in found.items()}
        failed |= doubled(found, recorded)
        for name, ratio in found.items():
            print(f"  {name:38} {ratio:6.2f}, recorded {recorded.get(name, float('nan')):6.2f}", flush=True)
    return failed


def main() -> int:
    """Return 1 if a ratio has doubled, or if a recorded one is no longer measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="record the present ratios")
    if parser.parse_args().record:
        times = [{name: ratio for measure in MEASURES for name, ratio in measure().items()} for _ in range(3)]
        found = {name: round(max(each[name] for each in times), 3) for name in times[0]}
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(found, indent=1))
        return 0
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    failed = check(MEASURES, recorded)
    for name, ratio in failed.items():
        print(f"guard: {name} is {ratio:.2f}, more than {MARGIN:g} times the {recorded[name]:.2f} that is recorded.")
    if failed:
        print("guard: profile the change; if it is intended: python -m tests.benchmarks.guard --record")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
