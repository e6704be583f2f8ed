"""One shard of a party's rows: memory per record, and equal bits whatever is kept."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import vfl
from parties.record_cap import OwnBounds
from parties.rows import Rows
from parties.storage.dense import Columns
from vfl.base.losses import Logistic, Squared
from vfl.base.problem import Block
from vfl.kernels import dense, geometry
from vfl.kernels.dense import LOGISTIC
from vfl.privacy.geometry import Clip
from vfl.queries import Backward, Descend, Fold, RecordCap, Records, Step
from vfl.queries.protocol import Derivative
from vfl.queries.rules import ProxStep

N = 3 * geometry.PIECE + 5


def columns(n: int = N) -> Columns:
    return Columns(np.asfortranarray(np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)), ("a", "b"))


def test_norms_and_limits_in_pieces_have_the_same_bits_and_small_temporaries() -> None:
    X, centre, scale = columns().array, np.array([0.5, -0.25]), np.array([2.0, 0.75])
    t = scale * (X.astype(np.float64) - centre)
    tracemalloc.start()
    norms = dense.record_norms(X, centre, scale)
    limits = geometry.record_limits(norms, 1.5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert norms.tobytes() == (t[:, 0] ** 2 + t[:, 1] ** 2).tobytes()
    assert limits.tobytes() == (1.5 / np.sqrt(norms)).tobytes()
    assert peak < norms.nbytes + limits.nbytes + 32 * geometry.PIECE


@pytest.mark.parametrize("n", [7, N])
def test_the_bounds_of_residuals_are_the_same_whether_own_limits_are_kept(n: int) -> None:
    X = columns(n)
    cap = RecordCap(1.5, {"bank": (Block(0, "bank", 0, 2, 0), np.zeros(2), np.ones(2))})
    given = np.random.default_rng(1).uniform(0.0, 2.0, n)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    asked = 0

    def norms(row: object) -> np.ndarray:
        nonlocal asked
        asked += 1
        return dense.record_norms(X.array, np.zeros(2), np.ones(2))

    bounds = OwnBounds("bank", norms)
    own = geometry.record_limits(norms(None), 1.5)
    expected = np.copysign(np.minimum(np.minimum(given, own), 1.0), y).tobytes()
    for _ in range(2):
        assert bounds.of(cap, given, y, LOGISTIC).tobytes() == expected
    assert asked == 2
    assert bounds.of(cap, None, y, LOGISTIC).tobytes() == np.copysign(np.minimum(own, 1.0), y).tobytes()
    assert bounds.of(cap, given, y, LOGISTIC).tobytes() == expected


@pytest.mark.parametrize(
    ("labels", "size"), [([1.0, -1.0, 1.0], 1), ([1.0, 0.0, 2.0], 8), ([-0.0, 1.0, 1.0], 8), ([np.nan, 1.0, 1.0], 8)]
)
def test_signs_take_one_byte_and_come_back_as_they_were(labels: list[float], size: int) -> None:
    rows = Rows("bank", columns(3), np.array(labels))
    assert rows.labels().tobytes() == rows.afresh().labels().tobytes() == np.array(labels).tobytes()
    assert rows._labels is not None
    assert rows._labels.itemsize == size


EXTREMES = np.array([0.0, 1e-45, 0.3, -36.5, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("loss", [Logistic(), Squared()], ids=["logistic", "squared"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_visit_from_float32_margins_keeps_the_cap_and_answers_in_float32(loss: Any) -> None:
    """One record at a time, with residuals of any size: its sums over both columns stay within the cap, in exact integers."""
    X, cap = np.asfortranarray([[3.0, -4.0]]), 0.75
    blocks = [Block(j, "bank", j, j + 1, 0) for j in range(2)]
    whole = Block(0, "bank", 0, 2, 0), np.zeros(2), np.ones(2)
    clip = Clip(cap, 2)
    rule = ProxStep(np.ones(1), np.zeros(1), vfl.penalties.NoPenalty())
    steps = tuple(Step(block, np.zeros(1), np.ones(1), clip, rule, None) for block in blocks)
    query = Descend(Derivative(loss), {"bank": steps}, {"bank": np.zeros(2)}, capped=RecordCap(cap, {"bank": whole}))
    for margin in EXTREMES:
        given = Records(margins=np.array([margin]), labels=np.ones(1), limits=np.array([np.inf]))
        rows = Rows("bank", Columns(X, ("a", "b")))
        first = rows.enter(query, given)
        second = rows.step(1, np.array([0.1]), 0.0)
        left = rows.leave(np.array([-0.2]), 0.0)
        assert int(first[0]) ** 2 + int(second[0]) ** 2 <= (Fraction(cap) / Fraction(clip.grid)) ** 2
        assert left.dtype == np.float32
        again = rows.vector(query, given, [np.array([0.1]), np.array([-0.2])])
        assert again.dtype == np.float32
        assert again.tobytes() == left.tobytes()


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_batch_has_the_same_records_in_every_shard_for_all_classes(shards: int) -> None:
    """One charge pays for all batches of a pass, so no class of a record may be in another batch than the record."""
    n, K, fold = 24, 2, Fold(0, 3, (7,))
    X = columns(n)
    members = fold.members(n)
    r = np.random.default_rng(2).normal(size=(K, n))
    part, clip = Block(0, "bank", 0, 2 * K, 0), Clip(1.0, 2 * K)
    query = Backward(Derivative(Squared()), (part,), (np.zeros(2 * K),), (np.ones(2 * K),), clip, None, 0, fold)
    whole = Rows("bank", X, n_outputs=K)
    expected = whole.sums(replace(query, fold=None), Records(weights=(r * members).ravel()))[0]
    found = np.zeros(2 * K, dtype=np.int64)
    for start in range(0, n, n // shards):
        own = slice(start, start + n // shards)
        rows = Rows("bank", Columns(np.asfortranarray(X.array[own]), X.names), first=start, n_trained=n, n_outputs=K)
        found += rows.sums(query, Records(weights=np.ascontiguousarray(r[:, own]).ravel()))[0]
    assert found.tolist() == expected.tolist()
