"""The loops give the same integers and margins with machine code and in plain Numba."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from vfl.kernels import classes, dense, ring, sparse
from vfl.kernels.compile import PLAIN
from vfl.kernels.geometry import Geometry, record_limits


def results() -> dict[str, list[int]]:
    """Return what the loops compute from odd cells, as integers, by name."""
    rng = np.random.default_rng(0)
    n, s = 101, 7
    X = np.asfortranarray(rng.standard_cauchy((n, s)))
    X[3, 0], X[4, 1], X[5, 2], X[6] = np.nan, np.inf, 1e300, 0.0
    v, y = rng.normal(size=n) * 50, np.sign(rng.normal(size=n))
    v[9], v[10] = np.nan, -np.inf
    at = Geometry(np.full(s, 0.1), np.linspace(0.5, 2, s), 3.0, 2.0**-20)
    bounds = dense.bounds_of(record_limits(dense.record_norms(X, at.centre, at.scale), 3.0), y, dense.LOGISTIC)
    moved = v.copy()
    found = {
        "gradient": dense.gradient(X, v, y, dense.LOGISTIC, at),
        "singles": dense.singles(X, v, y, dense.SQUARED, at),
        "forward": dense.forward(X, np.full(s, 0.01), moved, 0.5).view(np.int64),
        "capped": dense.capped_step(X, np.full(s, 0.01), 0.5, moved.copy(), dense.LOGISTIC, X, at, bounds),
        "moments": dense.second_moments(X, np.full(s, 4.0), 2.0**-20),
        "weights": dense.weights(v, y, dense.LOGISTIC, np.empty(n)).view(np.int64),
    }
    kernels, r = classes.ClassKernels(dense, 3, X[:, :0]), rng.normal(size=3 * n)
    joint = Geometry(at.centre.repeat(3), at.scale.repeat(3), 3.0, 2.0**-20)
    labels = dense.bounds_of(abs(bounds), rng.integers(0, 3, n).astype(float), dense.MULTINOMIAL)
    found["classes"] = kernels.capped_step(X[:, :0], np.zeros(0), np.zeros(3), r, dense.MULTINOMIAL, X, joint, labels)
    stored = sparse.SparseBlock.of(X.T.ravel(), np.tile(np.arange(n), s), np.arange(s + 1) * n, n)
    uncentred = Geometry(np.zeros(s), at.scale, 3.0, 2.0**-20)
    found["sparse"] = sparse.gradient(stored, v, y, dense.LOGISTIC, uncentred)
    words, table = rng.integers(0, 2**64, (n, 10), np.uint64), rng.integers(-9, 9, (2**16, 10)).astype(np.int16)
    found["shares"] = ring.residual_shares(table, rng.integers(0, 2**16, n).astype(np.uint16), words)
    return {name: np.nan_to_num(values).tolist() for name, values in found.items()}


def test_plain_loops_agree(pytestconfig):
    assert not PLAIN
    code = "from tests.kernels.test_plain import PLAIN, results; assert PLAIN; print(results())"
    environment = {
        **os.environ,
        "VFL_PLAIN_KERNELS": "1",
        "NUMBA_CACHE_DIR": str(pytestconfig.cache.mkdir("plain-kernels")),
    }
    ran = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == str(results())
