"""Names of options: each unknown or missing keyword gets an error that names the remedy, and case of names never matters."""

import inspect

import pytest

import vfl
from vfl.errors import SpecificationError
from vfl.job.file import read

PARTITION = vfl.FeaturePartition({"bank": ["income"], "telco": ["calls"]}, label=("bank", "default"))
JOB = {"partition": PARTITION, "privacy": vfl.Privacy(epsilon=1.0), "bounds": {"*": (0.0, 1.0)}}
PENALTY = vfl.L2(0.1)


def job(**options):
    return vfl.Job(**(JOB | options))


@pytest.mark.parametrize(
    ("specification", "options", "said"),
    [
        (vfl.Job, JOB | {"holdout": 0.2}, "'holdout'; it is an option of Evaluation;"),
        (vfl.Job, JOB | {"shares": {}}, "'shares'; it is now details"),
        (vfl.Job, JOB | {"penality": PENALTY}, "did you mean 'penalty'"),
        (vfl.Job, {"partition": PARTITION}, "Job needs privacy"),
        (vfl.SkGD, {"message": "block"}, "'message'; it is an option of Details;"),
        (vfl.SkGD, {"pases": 2}, "did you mean 'passes'"),
        (vfl.solvers.CD, {"tau": 2}, "CD has no option 'tau'; it is an option of Details;"),
        (vfl.Privacy, {"epsilon": 1.0, "inference": 0.1}, "'inference'; it is now intervals"),
        (vfl.Privacy, {}, "Privacy needs epsilon"),
        (vfl.Evaluation, {"holduot": 0.2}, "did you mean 'holdout'"),
        (vfl.InProcess, {"address": "auto"}, "'address'; it is an option of Ray;"),
        (vfl.Ray, {"shard": 2}, "did you mean 'shards'"),
        (vfl.Federated, {"file": "f.toml", "wait_timeout_s": 3.0}, "'wait_timeout_s'; it is an option of Faults;"),
        (vfl.L2, {}, "L2 needs strength"),
        (vfl.Job, JOB | {"sparse": ["bank"]}, "'sparse'; it is an option of FeaturePartition;"),
        (
            vfl.Job,
            JOB | {"fill": {"calls": 0}},
            "'fill'; it is now fill of the column in columns (vfl.Numeric(fill=VALUE)",
        ),
        (vfl.Job, JOB | {"storage": "float32"}, "'storage'; it is now precision of the job"),
        (vfl.Job, JOB | {"margins": "float32"}, "'margins'; it is now precision of the job"),
        (vfl.Job, JOB | {"read_from_data": "the names"}, "it is an option of Privacy;"),
        (vfl.Privacy, {"epsilon": 1.0, "class_balance": 0.1}, "it is an option of Evaluation;"),
        (vfl.FeaturePartition, {"labels": ("bank", "y")}, "did you mean 'label'"),
    ],
)
def test_unknown_and_missing_keywords_name_the_place_or_the_nearest_option(specification, options, said):
    with pytest.raises(SpecificationError) as refused:
        specification(**options)
    assert said in str(refused.value)
    assert "epsilon" in inspect.signature(vfl.Privacy).parameters


@pytest.mark.parametrize("loss", ["Huber", "HUBER", "huber"])
@pytest.mark.parametrize("solver", ["cd", "CD"])
def test_strings_name_losses_penalties_and_solvers_in_any_case(loss, solver):
    bounds = {"*": (0.0, 1.0), "default": (0.0, 1.0)}
    given = job(loss=loss, penalty="None", solver=solver, bounds=bounds)
    assert given.digest == job(loss="huber", solver=vfl.solvers.CD(), bounds=bounds).digest


@pytest.mark.parametrize("name", ["smoothed_hinge", "SmoothedHinge"])
def test_underscores_in_names_do_not_matter(name):
    assert job(loss=name).digest == job(loss="smoothed_hinge").digest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"penalty": "l2"}, "L2 needs strength"),
        ({"penalty": "lasso2"}, "unknown penalty 'lasso2'"),
        ({"solver": "SkGDD"}, "unknown solver 'SkGDD' (did you mean 'SkGD'"),
    ],
)
def test_strings_that_name_nothing_are_refused(options, said):
    with pytest.raises(SpecificationError) as refused:
        job(**options)
    assert said in str(refused.value)


def test_job_files_name_kinds_in_any_case(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(job().to_toml())
    loaded, _ = read(path, ["solver=cd"])
    spelt, _ = read(path, ["solver.kind=CD"])
    assert loaded.digest == spelt.digest == job(solver="cd").digest
