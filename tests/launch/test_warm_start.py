"""Training that starts from a released model: where it starts, what it costs, and what its documents say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import vfl
from vfl import cli
from vfl.errors import OutputError, SpecificationError
from vfl.job import file as jobfile
from vfl.job.start import Start
from vfl.launch.run.result import Result
from vfl.launch.train import starting_from
from vfl.planning import plan as make_plan

if TYPE_CHECKING:
    from pathlib import Path

N = 400
PARTITION = vfl.FeaturePartition({"bank": ["income", "age"], "telco": ["calls"]}, label=("telco", "y"))
BOUNDS = {"income": (0.0, 10.0), "age": (20.0, 60.0), "calls": (-5.0, 1.0)}


def table(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    X = {name: rng.uniform(*limits, N) for name, limits in BOUNDS.items()}
    margins = X["income"] - 0.1 * X["age"] + X["calls"]
    return pd.DataFrame(X).assign(y=(margins + rng.logistic(size=N) > 0).astype(int))


def job_of(**changes: Any) -> vfl.Job:
    options: dict[str, Any] = {"partition": PARTITION, "privacy": None, "bounds": BOUNDS, "penalty": vfl.L2(0.01)}
    return vfl.Job(**{**options, **changes})


def private(epsilon: float = 1.0, seed: int = 1) -> vfl.Privacy:
    return vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(seed))


def fitted(job: vfl.Job, data: pd.DataFrame, **options: Any) -> Result:
    return vfl.train(job, data, at="inprocess", **options)


@pytest.fixture(scope="module")
def first() -> Result:
    return fitted(job_of(), table())


def test_a_run_that_starts_at_the_optimum_stays_there(first: Result) -> None:
    for solver in (vfl.SkGD(passes=1), vfl.CD(passes=1), vfl.GD(passes=1)):
        again = fitted(job_of(solver=solver), table(), warm_start=first)
        np.testing.assert_allclose(again.w, first.w, atol=1e-6)
        cold = fitted(job_of(solver=solver), table())
        assert abs(cold.w - first.w).max() > 0.1


def test_other_bounds_start_at_the_same_model_in_original_units(first: Result) -> None:
    wider = {name: (low - 5.0, high + 7.0) for name, (low, high) in BOUNDS.items()}
    problem = make_plan(starting_from(job_of(bounds=wider), first), N).problem
    again = replace(first, job=job_of(bounds=wider), w=problem.start, coordinates=problem.layout.names)
    np.testing.assert_allclose(again.coef_, first.coef_, rtol=1e-12)
    assert again.intercept_ == pytest.approx(first.intercept_)


@pytest.mark.parametrize("solver", [vfl.SkGD(), vfl.CD(), vfl.GD(), vfl.SkGD(clip="coordinate")], ids=repr)
def test_the_start_costs_nothing_and_is_used(first: Result, solver: Any) -> None:
    job = job_of(privacy=private(), solver=solver)
    warm = fitted(job, table(1), warm_start=first)
    assert warm.certificate.epsilon <= 1.0
    assert warm.certificate.start == first.certificate.model_digest
    plan = make_plan(warm.job, N)
    begin = np.linalg.norm(plan.problem.start - warm.w)
    assert begin < np.linalg.norm(plan.problem.start)  # steps are short at this ε


@pytest.mark.filterwarnings("ignore:.*protects next to nothing:vfl.PrivacyWarning")
def test_squared_loss_starts_there_too() -> None:
    rng = np.random.default_rng(3)
    data = table().assign(y=lambda t: 2.0 * t["income"] + rng.normal(size=N))
    job = job_of(loss="squared", bounds=BOUNDS | {"y": (-10.0, 30.0)})
    exact = fitted(job, data)
    one = replace(job, solver=vfl.SkGD(passes=1), privacy=private(1e4))
    assert abs(fitted(one, data, warm_start=exact).w - exact.w).max() < 0.2
    assert abs(fitted(one, data).w - exact.w).max() > 1.0


def test_the_plan_the_certificate_and_the_folder_say_where_it_starts(first: Result, tmp_path: Path) -> None:
    before = first.save(tmp_path / "first")
    job = job_of(privacy=private())
    warm = fitted(job, table(1), warm_start=before, output=tmp_path / "second")
    digest = first.certificate.model_digest
    assert f"from the released model {digest[:12]}" in str(make_plan(warm.job, N))
    assert f"started from the released model {digest[:16]}" in str(warm.certificate)
    assert json.loads((tmp_path / "second" / "certificate.json").read_text())["start"] == digest
    assert "start" not in json.loads((before / "certificate.json").read_text())
    kept, _ = jobfile.read(tmp_path / "second" / "job.toml")
    assert kept == warm.job
    assert kept.start is not None
    assert kept.start.model == digest
    Result.load(tmp_path / "second").verify()


def test_an_interrupted_run_goes_on_from_the_same_start(first: Result, tmp_path: Path) -> None:
    job = job_of(privacy=private(), solver=vfl.SkGD(passes=6))
    whole = fitted(job, table(1), warm_start=first, output=tmp_path / "whole")
    rounds = 0

    def stop(event: object) -> None:
        nonlocal rounds
        rounds += type(event).__name__ == "Round"
        if rounds == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(job, table(1), warm_start=first, output=tmp_path / "cut", watch=stop)
    resumed = vfl.resume(tmp_path / "cut", table(1), at="inprocess")
    assert resumed.w.tobytes() == whole.w.tobytes()
    assert resumed.certificate.start == whole.certificate.start


def test_a_start_without_a_guarantee_leaves_none(first: Result) -> None:
    job = starting_from(job_of(privacy=vfl.Privacy(epsilon=1.0)), first)
    (flag,) = make_plan(job, N).flags
    assert "gives no guarantee" in flag
    assert job.start is not None
    assert make_plan(replace(job, start=replace(job.start, private=True)), N).flags == ()


def test_a_multinomial_model_starts_from_one(first: Result) -> None:
    classes = job_of(loss="multinomial", classes=(0, 1))
    exact = fitted(classes, table())
    again = fitted(replace(classes, solver=vfl.SkGD(passes=1)), table(), warm_start=exact)
    np.testing.assert_allclose(again.w, exact.w, atol=1e-6)
    with pytest.raises(SpecificationError, match=r"logistic loss.*multinomial loss"):
        starting_from(classes, first)


def test_models_of_other_columns_are_refused_in_one_sentence(first: Result) -> None:
    renamed = vfl.FeaturePartition({"bank": ["incomes", "age"], "telco": ["calls"]}, label=("telco", "y"))
    fewer = vfl.FeaturePartition({"bank": ["age"], "telco": ["calls"]}, label=("telco", "y"))
    for partition, said in (
        (renamed, r"no coefficient of 'incomes' \(did you mean 'income'\?\)"),
        (fewer, "a coefficient of 'income', which the job does not have"),
    ):
        bounds = {"incomes" if name == "income" and partition is renamed else name: b for name, b in BOUNDS.items()}
        bounds = {name: b for name, b in bounds.items() if name in partition.features}
        with pytest.raises(SpecificationError, match=said):
            starting_from(job_of(partition=partition, bounds=bounds), first)
    with pytest.raises(SpecificationError, match="use SkGD, CD or GD"):
        starting_from(job_of(solver=vfl.SGD()), first)
    with pytest.raises(SpecificationError, match=r"label_share.* leave it out"):
        make_plan(
            starting_from(job_of(privacy=private(), solver=vfl.SkGD(shares=vfl.Shares(label_share=0.1))), first), N
        )
    with pytest.raises(SpecificationError, match="start holds one model"):
        vfl.train_one_vs_rest(starting_from(job_of(), first), table(), classes=(0, 1, 2), n_records=N, at="ray")


def test_bad_starts_are_refused(first: Result, tmp_path: Path) -> None:
    for wrong, said in (
        ({"model": "abc", "coefficients": {}}, "64 hexadecimal digits"),
        ({"model": "0" * 64, "coefficients": {"age": float("nan")}}, "is not finite"),
    ):
        with pytest.raises(SpecificationError, match=said):
            Start(**wrong)
    with pytest.raises(SpecificationError, match="warm_start"):
        starting_from(job_of(), 3)  # type: ignore[arg-type]
    run = first.save(tmp_path / "altered")
    model = json.loads((run / "model.json").read_text())
    model["w"][0] += 1.0
    (run / "model.json").write_text(json.dumps(model))
    with pytest.raises(OutputError, match="its certificate does not hold"):
        starting_from(job_of(), run)


def test_the_command_takes_a_run(first: Result, tmp_path: Path) -> None:
    before = first.save(tmp_path / "first")
    table(1).to_csv(tmp_path / "next.csv", index=False)
    text = job_of(privacy=private(), solver=vfl.SkGD(passes=3)).to_toml() + '\n[simulation]\ntable = "next.csv"\n'
    (tmp_path / "job.toml").write_text(text)
    arguments = ["run", str(tmp_path / "job.toml"), "--engine", "inprocess", "--warm-start", str(before)]
    done = CliRunner().invoke(cli.vfl, [*arguments, "--output", str(tmp_path / "second")])
    assert done.exit_code == 0, done.output
    assert f"from the released model {first.certificate.model_digest[:12]}" in done.output
    missing = CliRunner().invoke(
        cli.vfl, [*arguments[:-1], str(tmp_path / "nothing"), "--output", str(tmp_path / "third")]
    )
    assert missing.exit_code != 0
    assert not (tmp_path / "third").exists()
