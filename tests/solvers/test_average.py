import numpy as np
import pytest

from vfl.solvers.iterates.convergence import Average


@pytest.mark.parametrize("told", [True, False], ids=["told what moved", "not told"])
def test_means_are_those_of_all_iterates(told):
    rng = np.random.default_rng(0)
    tail, outer, last = (Average(kind, 10) for kind in ("tail", "average", "last"))
    θ, seen = rng.normal(size=7), []
    for k in range(30):
        S = slice(k % 6, k % 6 + 2)
        θ[S] += rng.normal(size=2)
        seen.append(θ.copy())
        for mean in (tail, outer, last):
            mean.add(θ, *([S] if told else []))
        if k == 19:
            np.testing.assert_allclose(outer.outer(θ), np.mean(seen, axis=0))
    np.testing.assert_allclose(tail.final(θ), np.mean(seen[10:], axis=0))
    np.testing.assert_allclose(outer.outer(θ), np.mean(seen[20:], axis=0))
    assert last.final(θ) is θ
    assert outer.outer(θ) is θ
