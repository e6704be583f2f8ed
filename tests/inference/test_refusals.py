"""Refusals of intervals from public facts, before anything is released; each names what would make them possible."""

from __future__ import annotations

import re

import pytest

import vfl
from tests.inference.setting import NAMES, PARTITION, N, job
from vfl.errors import PlacementError, SpecificationError
from vfl.launch.sites.open_site import Organisations, require_fit
from vfl.planning import check, plan

UNFIT = {
    "L1": ({"penalty": vfl.L1(0.1)}, "bias of a penalty"),
    "box": ({"penalty": vfl.penalties.Box(-1.0, 1.0)}, "bias of a penalty"),
    "a strong ridge": ({"penalty": vfl.L2(0.1)}, "at most 1/n"),
    "a number as clip": ({"solver": vfl.SkGD(clip=1.0)}, "clip='record'"),
    "the last iterate": (
        {"solver": vfl.SkGD(details=vfl.solvers.Details(iterate="last"))},
        "average of the last iterates",
    ),
    "CD": ({"solver": vfl.solvers.CD()}, "average of the last iterates"),
    "parallel": ({"solver": vfl.SkGD(details=vfl.solvers.Details(parallel=2, message="consecutive"))}, "in turn"),
    "full": ({"solver": vfl.SkGD(sampling="full")}, "in turn"),
    "hinge": ({"loss": "smoothed_hinge"}, "logistic, squared or Huber loss"),
    "a log link from subsamples": (
        {
            "loss": "poisson",
            "bounds": dict.fromkeys(NAMES, (-4, 4)) | {"y": (0, 20)},
            "privacy": {"epsilon": 30.0},
            "intervals": "subsamples",
        },
        "intervals=True",
    ),
    "another solver": ({"solver": vfl.solvers.GD()}, "use SkGD"),
    "counts without an intercept": (
        {"loss": "poisson", "bounds": dict.fromkeys(NAMES, (-4, 4)) | {"y": (0, 20)}, "intercept": False},
        "declared bounds of the label",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_runs_whose_intervals_would_mislead_are_refused(name):
    options, said = UNFIT[name]
    with pytest.raises(SpecificationError, match=re.escape(said)):
        plan(job(options.pop("loss", "squared"), **options), N)


@pytest.mark.parametrize(("n", "epsilon"), [(300, 1.0), (3000, 0.1)])
def test_few_records_are_refused_and_the_numbers_that_are_named_would_do(n, epsilon):
    with pytest.raises(SpecificationError, match="intervals would mislead") as caught:
        plan(job(privacy={"epsilon": epsilon}), n)
    said = str(caught.value)
    enough = int(re.search(r"about n = ([\d,]+)", said)[1].replace(",", ""))
    larger = float(re.search(r"or ε = ([\d.]+)", said)[1])
    assert plan(job(privacy={"epsilon": epsilon}), enough).releases
    assert plan(job(privacy={"epsilon": 1.03 * larger}), n).releases


@pytest.mark.parametrize("strength", [1e-5, 1e-4, 3e-4])
def test_a_job_that_some_number_of_records_fits_is_not_refused_before_its_alignment(strength):
    asked = job(penalty=vfl.L2(strength), privacy={"epsilon": 1.0})
    assert plan(asked, int(0.7 / strength)).releases
    assert check(asked).releases


def test_a_small_ridge_is_taken():
    assert plan(job(penalty=vfl.L2(0.5 / N)), N).releases


@pytest.mark.parametrize("intervals", [True, "subsamples"])
def test_shares_are_refused(intervals):
    with pytest.raises(SpecificationError, match=r"margins or from subsamples.*leave intervals out"):
        job("logistic", partition=PARTITION, trust="secure", intervals=intervals)


def test_organisations_are_refused_unless_the_run_shows_no_columns():
    place = object.__new__(Organisations)
    with pytest.raises(PlacementError, match=r"before noise.*subsamples"):
        require_fit(place, job())
    require_fit(place, job(privacy={"epsilon": 30.0}, intervals="subsamples"))


def test_the_cap_has_a_floor_and_keeps_the_other_releases():
    wide, narrow = plan(job(), 20_000), plan(job(intervals=False), 20_000)
    of_wide, of_narrow = wide.solver.decided, narrow.solver.decided
    assert of_wide.record_clip > of_narrow.record_clip
    assert (of_wide.label_share, of_wide.excess_share) == (of_narrow.label_share, of_narrow.excess_share)


def test_the_command_asks_for_intervals():
    from click.testing import CliRunner

    from vfl.apps.cli import vfl as command

    refused = CliRunner().invoke(command, ["run", "diabetes", "--set", "intervals=true"])
    assert refused.exit_code
    assert "leave intervals out" in str(refused.exception)
