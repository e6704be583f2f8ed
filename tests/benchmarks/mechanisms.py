"""What privacy costs: noise multipliers against exact calibration, and how fast noise is drawn and charges are kept.

    python -m tests.benchmarks.mechanisms [--quick] [--runs N] [--output DIR]

z is the noise standard deviation in sensitivities that K releases need at ε = 1, δ = 1/45312² (Electricity's). Exact is
Σμ² through the Gaussian trade-off in 50 digits (mpmath); ours has to be no less, and no more than its last bits. The
others are what the papers and Rényi accountants would have one add.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from tests.benchmarks import ledger
from tests.benchmarks.command import alone
from tests.benchmarks.results import Absent, Result, Settings, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

EPSILON, RECORDS = 1.0, 45_312
DELTA = 1.0 / RECORDS**2
RELEASES = (16, 80, 400, 8_000)
SCALE = 2.0**26
"""σ in units of the grid."""


def tasks(settings: Settings) -> Iterator[Task]:
    """Yield calibration, noise and ledger."""
    yield Task("calibration", calibration)
    yield Task("noise", functools.partial(noise, settings))
    yield Task("ledger", functools.partial(charges, settings))


@functools.cache
def exact_mu() -> float:
    """Return the μ with δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), in 50 digits; raise Absent without mpmath."""
    try:
        import mpmath
    except ImportError as error:
        raise Absent("exact calibration needs mpmath") from error
    with mpmath.workdps(50):
        ε, δ = mpmath.mpf(EPSILON), mpmath.mpf(1) / RECORDS**2

        def off(μ):
            return mpmath.ncdf(-ε / μ + μ / 2) - mpmath.exp(ε) * mpmath.ncdf(-ε / μ - μ / 2) - δ

        low, high = mpmath.mpf("0.01"), mpmath.mpf(10)
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (low, middle) if off(middle) > 0 else (middle, high)
        return float(low)


def multipliers(releases: int) -> dict[str, float]:
    """Return z by every rule; accountants that are not installed are left out."""
    from vfl.privacy.calibration import noise_multiplier
    from vfl.privacy.gaussian_dp import mu_of

    log = math.log(1 / DELTA)
    found = {"vfl": noise_multiplier(mu_of(EPSILON, DELTA), releases)}
    try:
        from dp_accounting import dp_event
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        pass
    else:

        def spent(z: float) -> float:
            event = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(z), releases)
            return RdpAccountant().compose(event).get_epsilon(DELTA)

        low, high = 1e-2, 1e5
        while high / low > 1 + 1e-9:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if spent(middle) > EPSILON else (low, middle)
        found["RDP, best order (dp-accounting)"] = high
    # ε = g/(2z²) + √(2g ln(1/δ))/z, solved for 1/z.
    root = math.sqrt(2 * releases * log)
    found["RDP, the papers' formula"] = releases / (math.sqrt(root**2 + 2 * releases * EPSILON) - root)
    found["closed form √(3K ln(1/δ))/ε"] = math.sqrt(3 * releases * log) / EPSILON
    return found


def calibration() -> Iterator[Result]:
    """Yield z for each number of releases."""
    for releases in RELEASES:
        exact = math.sqrt(releases) / exact_mu()
        for arm, z in multipliers(releases).items():
            yield Result(
                part="privacy", case=f"noise multiplier, ε = {EPSILON:g}, δ = 1/{RECORDS}²", arm=arm, measure="z", values=(z,),
                at={"releases": releases}, against=exact, source="exact",
                ours=arm == "vfl",
            )  # fmt: skip


def noise(settings: Settings) -> Iterator[Result]:
    """Yield draws a second of processor time, of the noise source of numpy's generator, which is no noise source, beside it."""
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.noise import CryptographicNoise
    from vfl.privacy.rounded_gaussian import rounded_gaussian

    source, generator = CryptographicNoise(), np.random.default_rng(0)
    draws = {
        "exact rounded Gaussian, fresh key": lambda size: rounded_gaussian(source.stream(ReleaseKey(0)), SCALE, size),
        "numpy standard_normal (not private)": generator.standard_normal,
    }
    repeats = len(settings.seeds(whole=15, quick=5))
    for size, calls in ((1, 2_000), (100, 2_000), (1_000_000, 4)):
        rates: dict[str, list[float]] = {name: [] for name in draws}
        for _ in range(repeats + 1):
            for name, draw in draws.items():
                start = time.process_time()
                for _ in range(calls):
                    draw(size)
                rates[name].append(size * calls / (time.process_time() - start))
        prototype = {100: 100 / 14e-6, 1_000_000: 43e6}.get(size)
        for name, values in rates.items():
            compared = {"against": prototype, "source": "prototype"} if prototype and "exact" in name else {}
            yield Result(
                part="privacy", case="noise", arm=name, measure="draws a second", unit="/s", values=values[1:], less=False,
                at={"draws": size}, **compared,
            )  # fmt: skip


def charges(settings: Settings) -> Iterator[Result]:
    """Yield durable charges a second against bare SQLite, in turns."""
    for name, rates, ratios in ledger.rates(200 if settings.quick else 1000, settings.scratch):
        yield Result(
            part="privacy", case="ledger", arm=name, measure="charges a second", unit="/s", values=rates, less=None,
            beside={"of bare SQLite": float(np.median(ratios))},
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(alone("privacy"))
