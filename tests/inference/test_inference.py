"""Inference: its shapes, and its way through a run's folder."""

import numpy as np
import pytest

from tests.inference.setting import job
from vfl.errors import PrivacyError, SpecificationError
from vfl.job.job import INTERVALS_SHARE
from vfl.measures import Inference


def _inference(k=2, **changes):
    parts = {"estimates": np.ones(k), "covariance": 2.0 * np.eye(k), "noise_covariance": np.eye(k)} | changes
    return Inference(tuple("abc"[:k]), **parts, notes=("few records",))


def test_plain_values_hold_the_whole_inference():
    one = _inference(limits=(-np.eye(2),))
    again = Inference.from_dict(one.to_dict())
    assert again.to_dict() == one.to_dict()
    assert again.limits[0].tolist() == one.limits[0].tolist()


@pytest.mark.parametrize("changes", [{"covariance": np.eye(3)}, {"estimates": np.array([1.0, np.nan])}])
def test_wrong_shapes_and_values_are_refused(changes):
    with pytest.raises(ValueError, match="an inference needs"):
        _inference(**changes)


def test_true_is_the_share_of_the_rule():
    assert job(intervals=True) == job(intervals=INTERVALS_SHARE) != job(intervals=False) == job(intervals=None)


@pytest.mark.parametrize("share", [0.0, 0.9, "much", float("nan")])
def test_shares_out_of_range_are_refused(share):
    with pytest.raises((PrivacyError, SpecificationError), match="intervals"):
        job(intervals=share)
