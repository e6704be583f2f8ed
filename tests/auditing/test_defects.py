"""Defects that were put into the code on purpose. An audit finds each of them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import parties.party
import vfl
from coordinator.charging.charger import Charger, PaidQuery
from parties.party import Party
from parties.record_cap import OwnCap
from parties.rows import Rows
from tests.auditing.test_audit import job
from vfl.privacy.events import ReleaseKey
from vfl.privacy.geometry import Clip
from vfl.privacy.keystream import Keystream
from vfl.privacy.noise import CryptographicNoise
from vfl.queries import Fold, Moments, Sample, moments
from vfl.solvers.blocks import shares
from vfl.solvers.blocks.messages import Walk
from vfl.solvers.releases.smoothness import moments_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.apps.auditing.audit import Audit
    from vfl.solvers.releases.once import OneTime

Patch = pytest.MonkeyPatch


def weaker_noise(patch: Patch) -> None:
    """Draw noise of σ/√2."""
    true = parties.party.release

    def release(sums: Any, grid: float, event: Any, *rest: Any) -> Any:
        return true(sums, grid, event and replace(event, sigma=event.sigma / math.sqrt(2.0)), *rest)

    patch.setattr(parties.party, "release", release)


def repeated_key(patch: Patch) -> None:
    """Draw every second release's noise from the stream of the release before it."""
    made: list[bytes] = []

    def stream(self: CryptographicNoise, key: Any) -> Keystream:
        made.append(made[-1] if len(made) % 2 else hashlib.sha256(b"%d" % len(made)).digest())
        return Keystream(made[-1])

    patch.setattr(CryptographicNoise, "stream", stream)


def one_key_for_all_runs(patch: Patch) -> None:
    """Draw the noise of all runs from one key."""
    patch.setattr(
        CryptographicNoise, "stream", lambda self, key: Keystream(bytes([key.round % 256, key.part % 256]) * 16)
    )


def party_without_noise(patch: Patch) -> None:
    """Let one party leave its noise out."""
    true = Party.release

    def noised(self: Party, sums: Any, terms: Any, key: Any) -> Any:
        return true(self, sums, terms._replace(event=None) if self.name == "telco" else terms, key)

    patch.setattr(Party, "release", noised)


def half_the_sensitivity(patch: Patch) -> None:
    """Take C for the sensitivity, where replace-one needs 2C."""
    true = Clip.sensitivity.fget  # type: ignore[attr-defined]
    patch.setattr(Clip, "sensitivity", property(lambda clip: true(clip) / 2.0))


def forgotten_dimension(patch: Patch) -> None:
    """Clip a block at κ√|S|, and forget the √|S| in its noise."""
    true = Clip.sensitivity.fget  # type: ignore[attr-defined]
    patch.setattr(Clip, "sensitivity", property(lambda clip: true(clip) / math.sqrt(clip.dimension)))


def moments_of_one_column(patch: Patch) -> None:
    """Release the moments of all columns with noise for those of one, with the same error in all checks of it."""
    true = moments.moments_sensitivity
    patch.setattr(moments, "moments_sensitivity", lambda columns, *, means: true(1, means=means))


def no_clip(patch: Patch) -> None:
    """Add up the contributions as they are."""
    true = Rows.sum

    def free(self: Rows, block: Any, centre: Any, scale: Any, clip: Clip, *rest: Any) -> Any:
        sums = true(self, block, centre, scale, replace(clip, cap=math.inf), *rest)
        return np.rint(sums / clip.grid).astype(np.int64)

    patch.setattr(Rows, "sum", free)


def released_twice(patch: Patch) -> None:
    """Take every step of a pass twice under the one charge of the pass, past the checks of both sides."""
    message, take = Walk.message, Charger._take
    patch.setattr(Walk, "message", lambda *given: {party: (*own, *own) for party, own in message(*given).items()})

    def once(self: Charger, query: Any, *rest: Any) -> Any:
        steps = {party: tuple(dict.fromkeys(own)) for party, own in query.steps.items()}
        return take(self, replace(query, steps=steps), *rest)

    patch.setattr(Charger, "_take", once)
    patch.setattr(OwnCap, "admit", lambda *given: None)


def public_batch_reused(patch: Patch) -> None:
    """Use the first batch of a pass for all its releases."""
    true = Fold.members
    patch.setattr(Fold, "members", lambda fold, n: true(replace(fold, number=0), n))


def secret_batch_reused(patch: Patch) -> None:
    """Draw the batch of every second step no more."""
    true, drawn = Sample.drawn, []

    def answer(self: Sample, *given: Any) -> Any:
        drawn.append(drawn[-1] if len(drawn) % 2 else list(true(self, *given)[1]))
        return (), drawn[-1]

    patch.setattr(Sample, "drawn", answer)


def rounding_away_from_zero(patch: Patch) -> None:
    """Round every entry of a contribution away from 0, where Δ allows for half a step of the grid."""

    def away(self: Rows, block: Any, centre: Any, scale: Any, clip: Clip, r: Any, limits: Any) -> Any:
        X = np.column_stack([self.columns.column(j) for j in range(block.start, block.stop)])
        rows = scale * r[:, None] * (X - centre)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows *= np.minimum(1.0, clip.cap / np.maximum(norms, 1e-300))
        return (np.sign(rows) * np.ceil(abs(rows) / clip.grid)).sum(axis=0).astype(np.int64)

    patch.setattr(Rows, "sum", away)


def selections_with_little_noise(patch: Patch) -> None:
    """Select with a third of the noise."""
    true = parties.party.noisy_best
    patch.setattr(
        parties.party, "noisy_best", lambda scores, sensitivity, *rest: true(scores, sensitivity / 3.0, *rest)
    )


def uncharged_moments(patch: Patch) -> None:
    """Leave the moments out of the plan and of the charges, and spend their share on the passes."""
    charge, table = Charger.charge, shares.table

    def free(row: OneTime) -> OneTime:
        return replace(row, share=0.0, make=lambda run, _: row.make(run, (moments_event(run.problem),)))

    def first_free(solver: Any, problem: Any) -> tuple[OneTime, ...]:
        moments, *rows = table(solver, problem)
        return (free(moments), *rows)

    patch.setattr(shares, "table", first_free)
    patch.setattr(
        Charger,
        "charge",
        lambda self, query, number: (
            PaidQuery(query, ReleaseKey(number), (), None)
            if isinstance(query, Moments)
            else charge(self, query, number)
        ),
    )


BLOCKS = vfl.SkGD(clip=0.01, passes=3, details=vfl.solvers.Details(message="block", label_share=0.0))
DEFECTS: dict[str, tuple[Callable[[Patch], None], vfl.Job, set[str]]] = {
    "σ/√2": (weaker_noise, job(), {"noise", "attack"}),
    "a reused key": (repeated_key, job(), {"repeats"}),
    "one key for all runs": (one_key_for_all_runs, job(), {"repeats"}),
    "a party without noise": (party_without_noise, job(), {"noise"}),
    "half the sensitivity": (half_the_sensitivity, job(), {"shifts", "attack"}),
    "√|S| forgotten": (forgotten_dimension, job(replace(BLOCKS, block_size=3)), {"shifts", "attack"}),
    "moments of one column": (
        moments_of_one_column,
        job(vfl.SkGD(passes=2), privacy={"smoothness_share": 0.5}),
        {"shifts"},
    ),
    "a clip not applied": (no_clip, job(BLOCKS), {"shifts", "attack"}),
    "released twice": (
        released_twice,
        job(vfl.SkGD(passes=3), intercept=False, privacy={"smoothness_share": 0.02}),
        {"shifts"},
    ),
    "a public batch reused": (
        public_batch_reused,
        job(vfl.solvers.SGD(sampling="disjoint", batch_size=10, passes=2), intercept=False),
        {"shifts", "attack"},
    ),
    "a secret batch reused": (
        secret_batch_reused,
        job(vfl.solvers.SGD(sampling="poisson", batch_size=10, passes=2)),
        {"batches"},
    ),
    "rounding away from zero": (rounding_away_from_zero, job(BLOCKS), {"shifts"}),
    "noise of a wrong scale on selections": (
        selections_with_little_noise,
        job(vfl.solvers.GCD(rounds=6)),
        {"selections"},
    ),
    "uncharged moments": (uncharged_moments, job(vfl.SkGD(passes=3), privacy={"smoothness_share": 0.5}), {"charges"}),
}
"""{defect: (how to put it in, a job that it concerns, the findings that it must give)}."""


def findings(audit: Audit) -> set[str]:
    """Return the names of the checks that failed, and 'attack' where the guesses refute the claim."""
    failed = {check.name for check in audit.checks if not check.passed}
    return failed | {"attack" for attack in audit.attacks if not attack.consistent}


SLOW = ("a secret batch reused",)
"""Its plan takes seconds to calibrate."""
QUICK = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in DEFECTS]


STATISTICAL = {"noise", "selections", "repeats", "batches"}
"""Checks that need many runs; the others see a defect in each run."""


@pytest.mark.parametrize("defect", QUICK)
def test_the_checks_find_each_defect_in_few_runs(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, spec, expected = DEFECTS[defect]
    make(monkeypatch)
    audit = vfl.audit(spec, 40, runs=40 if expected & STATISTICAL else 10)
    assert not audit.passed
    assert findings(audit) >= expected - {"attack"}, str(audit)


@pytest.mark.parametrize("defect", [p for p in QUICK if DEFECTS[p.values[0]][1].solver != vfl.solvers.GD(passes=4)])
def test_the_same_job_passes_without_its_defect(defect: str) -> None:
    """Except the plain job of five defects, which test_solvers.py audits."""
    assert vfl.audit(DEFECTS[defect][1], 40, runs=10, confidence=1.0 - 1e-4).passed


@pytest.mark.slow
@pytest.mark.parametrize("defect", [name for name, (_, _, expected) in DEFECTS.items() if "attack" in expected])
def test_the_guesses_alone_find_a_defect_that_a_canary_shows(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, spec, _ = DEFECTS[defect]
    make(monkeypatch)
    assert "attack" in findings(vfl.audit(spec, 40, runs=300))
