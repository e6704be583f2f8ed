"""The benchmark of forecasts: its runs continue, its tables come from the file, and coverage counts both sides."""

from __future__ import annotations

import pytest

from tests.benchmarks import forecast, forecast_problems


def run(**given):
    about = {"name": "a", "kept": False, "n": 30, "p": 4, "epsilon": 1.0, "positives": 0.5, "ratio": 2.0, "missed": 0.9}
    return forecast.Run(**about | {"best": 0.8} | given)


def test_coverage_counts_each_side_and_the_bias():
    ranges = {"auc": (0.5, 0.7)}
    runs = [run(found={"auc": value}, expected=ranges) for value in (0.4, 0.55, 0.7, 0.9, 0.69)]
    runs.append(run(found={"r2": 0.1}, expected={"r2": (0.0, 0.2)}))
    n, within, below, above, width, bias = forecast.coverage(runs, "auc")
    assert (n, within, below, above) == (5, 0.6, 0.2, 0.2)
    assert (width, bias) == pytest.approx((0.2, 0.45))


def test_left_is_above_one_for_a_model_that_points_against_the_labels():
    assert run(found={"auc": 0.8}, expected={}).left == pytest.approx(0.0)
    assert run(found={"auc": 0.5}, expected={}).left == pytest.approx(1.0)
    assert run(found={"auc": 0.2}, expected={}).left == pytest.approx(2.0)
    assert run(found={"r2": -0.8}, expected={}).left == pytest.approx(2.0)


def test_runs_are_kept_and_not_repeated(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(forecast, "SIZES", (30,))
    monkeypatch.setattr(forecast, "EPSILONS", (3.0,))
    given = [str(tmp_path / "rows.jsonl"), "--only", "iris, virginica"]
    assert forecast.main(given) == 0
    first = capsys.readouterr()
    assert "iris, virginica: 2 runs" in first.err
    assert "| AUC | iris, virginica | 2 |" in first.out
    assert forecast.main(given) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert "runs" not in again.err


def test_problems_have_the_signal_that_they_state():
    simulated = forecast_problems.made("simulated 50", None)
    assert simulated.kept
    assert not forecast_problems.made("breast_cancer", None).kept
    assert forecast_problems.made("breast_cancer", None).best > 0.98
    assert forecast_problems.made("adult", None) is None
