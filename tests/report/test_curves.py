"""Calibration of a rare class is drawn where its bins are."""

from __future__ import annotations

from vfl.apps.report.curves import calibration_chart
from vfl.measures.estimates import Histogram


def test_the_axes_of_a_rare_class_end_near_its_bins() -> None:
    edges = [-5.0, -4.0, -3.5, -3.0, -2.5]
    negative, positive = [300.0, 900.0, 1000.0, 800.0, 300.0, 0.0], [2.0, 12.0, 24.0, 30.0, 20.0, 0.0]
    plain = {"edges": edges, "negative": negative, "positive": positive, "sigma": 1.0, "logistic": True}
    drawn = str(calibration_chart(Histogram.from_dict(plain), 3388))
    assert "share of positives found" in drawn
    for tick in ("0.4", "0.8", "1"):
        assert f">{tick}</text>" not in drawn
    assert "0.02 to 0.02" not in drawn
