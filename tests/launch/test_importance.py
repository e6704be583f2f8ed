"""Importance of features: intervals hold the true values, and only certified releases enter."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from vfl.apps.report import write_card, write_run
from vfl.errors import OutputError, SpecificationError

if TYPE_CHECKING:
    from pathlib import Path

N = 3000
BOUNDS = {"a": (-1.0, 1.0), "b": (0.0, 10.0), "<c>": (-1.0, 1.0)}


def data() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    table: dict[str, Any] = {
        "a": rng.uniform(-1, 1, N),
        "b": np.clip(rng.normal(4, 1, N), 0, 10),
        "<c>": np.full(N, 0.5),
    }
    return table | {"y": (table["a"] + 0.2 * table["b"] + rng.normal(0, 0.5, N) > 0.8).astype(int)}


def train(*, seed: int | None = 1, output: Path | None = None, **options: Any) -> vfl.Result:
    noise = None if seed is None else vfl.SeededNoise(seed)
    privacy = vfl.Privacy(epsilon=options.pop("epsilon", 1.0), delta=1e-6, noise=noise, **options.pop("of_privacy", {}))
    job = vfl.Job(
        partition=vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["<c>"]}, label=("bank", "y")),
        bounds=BOUNDS,
        **{"privacy": privacy, "solver": vfl.SkGD(passes=1)} | options,
    )
    return vfl.train(job, data(), at="inprocess", output=output)


def true_spread(name: str) -> float:
    low, high = BOUNDS[name]
    return float(np.std(data()[name]) / ((high - low) / 2))


def test_intervals_hold_the_spread_without_noise() -> None:
    """Of 90 intervals of probability 0.95, more than 9 misses have a probability below 0.02."""
    held = 0
    for seed in range(30):
        for one in train(seed=seed).importance():
            exact = abs(one.coefficient) * true_spread(one.feature)
            held += one.low - 1e-12 <= exact <= one.high + 1e-12
    assert held >= 81


def test_a_column_without_spread_is_too_noisy_to_tell() -> None:
    found = {one.feature: one for one in train(epsilon=30.0).importance()}
    assert found["<c>"].low == 0.0
    assert not found["a"].too_noisy
    assert found["a"].party == "bank"
    assert found["a"].spread == pytest.approx(true_spread("a"), rel=0.02)
    assert found["a"].value == pytest.approx(abs(found["a"].coefficient) * found["a"].spread)
    assert list(found) == sorted(found, key=lambda name: -found[name].value)


def test_it_is_kept_shown_and_verified(tmp_path: Path) -> None:
    result = train(seed=None, epsilon=20.0, output=tmp_path / "run")
    again = vfl.Result.load(tmp_path / "run")
    assert again.importance() == result.importance()
    assert again.verify().ok
    page, _ = write_run(tmp_path / "run")
    card, _ = write_card(tmp_path / "run", tmp_path / "card.html")
    for path in (page, card):
        said = path.read_text()
        assert "Importance</h2>" in said
        assert "<c>" not in said
        assert "leaves out the noise" in said


def test_moments_that_are_not_certified_are_refused(tmp_path: Path) -> None:
    result = train(seed=None)
    other = replace(result, moments=(result.moments[0] * 2, *result.moments[1:]))
    with pytest.raises(OutputError, match="not those"):
        other.importance()


@pytest.mark.parametrize("of_privacy", [{"smoothness": "bounds"}, None])
def test_a_run_that_released_no_spread_says_so(of_privacy: dict[str, Any] | None, tmp_path: Path) -> None:
    options: dict[str, Any] = {"privacy": None} if of_privacy is None else {"of_privacy": of_privacy}
    result = train(output=tmp_path / "run", **options)
    assert result.moments == ()
    assert "moments" not in json.loads((tmp_path / "run/model.json").read_text())
    with pytest.raises(SpecificationError, match=r"train with Privacy\(smoothness='private'\)"):
        result.importance()
    assert "Importance</h2>" not in write_run(tmp_path / "run")[0].read_text()
