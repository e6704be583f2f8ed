"""Training that starts from a released model: where it starts, what it costs, and what its documents say."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import vfl
from vfl.apps import cli
from vfl.apps.monitor import count
from vfl.errors import OutputError, PrivacyError, SpecificationError
from vfl.job import file as jobfile
from vfl.job.flags import flags_of, voids
from vfl.job.start import Start
from vfl.launch.run.result import Result
from vfl.launch.run.verification import verify_run
from vfl.launch.train import starting_from
from vfl.planning import plan as make_plan
from vfl.planning.certificate import Certificate
from vfl.privacy import gaussian_dp
from vfl.privacy.events import bare
from vfl.privacy.ledger import SqliteLedger

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
    for solver in (vfl.SkGD(passes=1), vfl.solvers.CD(passes=1), vfl.solvers.GD(passes=1)):
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


@pytest.mark.parametrize(
    "solver", [vfl.SkGD(), vfl.solvers.CD(), vfl.solvers.GD(), vfl.SkGD(clip="coordinate")], ids=repr
)
def test_the_start_costs_nothing_and_is_used(first: Result, solver: Any) -> None:
    job = job_of(privacy=private(), solver=solver)
    warm = fitted(job, table(1), warm_start=first)
    assert warm.certificate.epsilon <= 1.0
    assert warm.certificate.start == {"model": first.certificate.model_digest}
    plan = make_plan(warm.job, N)
    begin = np.linalg.norm(plan.problem.start - warm.w)
    assert begin < np.linalg.norm(plan.problem.start)  # steps are short at this ε


@pytest.mark.filterwarnings("ignore:.*protects next to nothing:vfl.PrivacyWarning")
def test_squared_loss_starts_there_too() -> None:
    rng = np.random.default_rng(3)
    data = table().assign(y=lambda t: 2.0 * t["income"] + rng.normal(size=N))
    job = job_of(loss="squared", bounds=BOUNDS | {"y": (-10.0, 30.0)})
    exact = fitted(job, data)
    one = replace(job, solver=vfl.SkGD(passes=1, step_size=0.1), privacy=private(1e4))
    assert abs(fitted(one, data, warm_start=exact).w - exact.w).max() < 0.2
    assert abs(fitted(one, data).w - exact.w).max() > 1.0


def test_the_plan_the_certificate_and_the_folder_say_where_it_starts(first: Result, tmp_path: Path) -> None:
    before = first.save(tmp_path / "first")
    job = job_of(privacy=private())
    warm = fitted(job, table(1), warm_start=before, output=tmp_path / "second")
    digest = first.certificate.model_digest
    assert f"from the released model {digest[:12]}" in str(make_plan(warm.job, N))
    assert f"started from the released model {digest[:16]}" in str(warm.certificate)
    assert json.loads((tmp_path / "second" / "certificate.json").read_text())["start"] == {"model": digest}
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
    assert voids((flag,))
    assert job.start is not None
    (known,) = make_plan(replace(job, start=replace(job.start, mu=0.5)), N).flags
    assert not voids((known,))
    zeros = dict.fromkeys(job.start.coefficients, 0.0)
    assert make_plan(replace(job, start=Start(model="0" * 64, coefficients=zeros)), N).flags == ()


def unseeded(epsilon: float, **options: Any) -> vfl.Job:
    """Return a job whose certificate may claim privacy: its noise is not seeded."""
    return job_of(privacy=vfl.Privacy(epsilon=epsilon, delta=1e-6), **options)


@pytest.fixture(scope="module")
def laundered() -> tuple[Result, Result, Result]:
    """Return a run at ε = 1000, a run at ε = .01 that starts from it, and a third run that starts from the second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loud = fitted(unseeded(1000.0), table())
        quiet = fitted(unseeded(0.01, solver=vfl.SkGD(passes=1)), table(), warm_start=loud)
        third = fitted(unseeded(0.01, solver=vfl.solvers.GD(passes=1)), table(), warm_start=quiet)
    return loud, quiet, third


def mu_of_run(result: Result) -> float:
    """Return √Σ(Δ/σ)² over the charges of a run."""
    return math.sqrt(sum(n * (bare(e).sensitivity / bare(e).sigma) ** 2 for e, n in result.certificate.events))  # type: ignore[attr-defined]


def test_a_start_launders_no_epsilon(laundered: tuple[Result, Result, Result], tmp_path: Path, call: Any) -> None:
    loud, quiet, third = laundered
    for number, result in enumerate((quiet, third), 2):
        certificate = result.certificate
        assert certificate.private
        assert certificate.epsilon <= 0.01  # of this run alone
        μ = math.hypot(*map(mu_of_run, laundered[:number]))
        expected = gaussian_dp.epsilon_of(μ, 1e-6)
        assert certificate.guaranteed == (pytest.approx(expected, rel=1e-9), 1e-6)
        assert expected > loud.certificate.epsilon
        assert certificate.flags
        stated, alone = str(certificate).splitlines()[0], f"{certificate.epsilon:.4g}"
        assert f"{expected:.4g}" in stated
        assert alone not in stated
        run = result.save(tmp_path / str(number))
        said = call("verify", str(run))
        assert said.code == 0, said.err
        (sentence, *_) = said.out.splitlines()
        assert f"ε = {expected:.4g}" in sentence
        assert sentence.index(f"{expected:.4g}") < sentence.index(alone)
        assert "was not trained" in sentence
        shown = json.loads(call("verify", str(run), "--json").out)
        assert shown["epsilon"] == pytest.approx(expected, rel=1e-9)
        assert shown["flags"]
        assert Certificate.load(run / "certificate.json").guaranteed == certificate.guaranteed


def test_a_ledger_with_both_runs_changes_no_claim(tmp_path: Path) -> None:
    SqliteLedger(tmp_path / "l.db").set_cap("d", epsilon=60.0, delta=1e-6)
    one = fitted(unseeded(50.0, dataset="d"), table(), ledger=tmp_path / "l.db")
    two = fitted(unseeded(0.5, dataset="d"), table(), ledger=tmp_path / "l.db", warm_start=one)
    assert two.certificate.guaranteed[0] > one.certificate.epsilon > 40.0
    assert two.certificate.start["dataset"] == "d"
    assert any("of the same data set" in flag for flag in two.certificate.flags)
    assert verify_run(two.save(tmp_path / "two"), ledger=tmp_path / "l.db").ok


def test_every_door_to_a_start_is_flagged(laundered: tuple[Result, Result, Result], tmp_path: Path) -> None:
    """Job files, tunes, and the counts of a monitored model; a data set refuses a start without a stated cost."""
    job = starting_from(unseeded(1.0, evaluation=vfl.Evaluation(holdout=0.3)), laundered[0])
    path = tmp_path / "job.toml"
    jobfile.write(job, path)
    assert flags_of(jobfile.read(path)[0]) == flags_of(job) != ()
    tuned = vfl.tune(job, [{}, {"penalty": {"strength": 0.1}}], table(), at="inprocess").certificate
    assert tuned.total["rule"] == "sum"
    assert tuned.guaranteed[0] > 999.0
    assert set(flags_of(job)) <= set(tuned.flags)
    scope = count(laundered[0], table(), epsilon=1.0, delta=1e-6, at="inprocess").scope
    assert "on which that model was trained" in scope
    assert job.start is not None
    unknown = replace(job, dataset="d", start=replace(job.start, mu=None))
    with pytest.raises(PrivacyError, match="NOT PRIVATE"):
        vfl.train(unknown, table(), at="inprocess", ledger=tmp_path / "l.db")


def test_costs_of_other_mechanisms_add_up_as_sums() -> None:
    """Without an exact μ of both runs, ε and δ add up."""
    job = unseeded(0.5, start=Start(model="0" * 64, coefficients=COEFFICIENTS, epsilon=2.0, delta=1e-5))
    certificate = fitted(job, table()).certificate
    assert certificate.total["rule"] == "sum"
    assert certificate.guaranteed == pytest.approx((2.0 + certificate.epsilon, 1e-5 + 1e-6))
    exact = replace(job, start=Start(model="0" * 64, coefficients=COEFFICIENTS, mu=0.4))
    assert "with its cost, ε" in str(make_plan(exact, N))


COEFFICIENTS = {"income": 0.2, "age": 0.0, "calls": 0.1, "(intercept)": 0.3}


@pytest.mark.parametrize(
    ("lie", "check"),
    [
        ({"total": {}}, "start"),
        ({"start": {}, "total": {}}, "plan"),
        ({"start": {"model": "0" * 64, "mu": 0.001}}, "start"),
        ({"flags": ()}, "start"),
        ({"total": {"rule": "sum", "epsilon": 0.1, "delta": 1e-6}}, "start"),
    ],
    ids=str,
)
def test_a_certificate_that_hides_its_start_does_not_hold(
    laundered: tuple[Result, Result, Result], lie: dict[str, Any], check: str
) -> None:
    quiet = laundered[1]
    liar = replace(quiet, certificate=replace(quiet.certificate, **lie))
    with pytest.raises(OutputError, match=rf"\b{check}: "):
        liar.verify()
    with pytest.raises(OutputError, match="certificate"):
        starting_from(unseeded(1.0), liar)  # nor can a third run start from it


def test_a_lying_caller_is_flagged_and_found_out(laundered: tuple[Result, Result, Result], tmp_path: Path) -> None:
    """A job that states a small cost, edits coefficients or names another model keeps the flag; certificates differ."""
    loud, quiet, _ = laundered
    honest = quiet.job
    assert honest.start is not None
    edited = {name: value + 1.0 for name, value in honest.start.coefficients.items()}
    runs = {"loud": loud.save(tmp_path / "loud"), "quiet": quiet.save(tmp_path / "quiet")}
    for number, changes in enumerate(({"mu": 0.001}, {"coefficients": edited}, {"model": "ab" * 32}, {"mu": None})):
        lying = replace(honest, start=replace(honest.start, **changes))
        assert flags_of(lying)
        result = fitted(lying, table())
        assert result.certificate.flags
        assert result.certificate.private is ("mu" not in changes or changes["mu"] is not None)
        if "coefficients" not in changes:
            report = verify_run(result.save(tmp_path / str(number)), start=runs["loud"])
            assert "start" in {check.name for check in report.failed}
    report = verify_run(runs["quiet"], start=runs["loud"])
    assert next(check.holds for check in report.checks if check.name == "start")
    assert report.ok
    assert "not verified" not in report.guarantee[0]
    assert (
        "(if that model cost no more than the job states, which was not verified)"
        in verify_run(runs["quiet"]).guarantee[0]
    )
    assert not verify_run(runs["loud"], start=runs["quiet"]).ok


def test_one_certificate_does_not_verify_a_chain_of_starts(
    laundered: tuple[Result, Result, Result], tmp_path: Path
) -> None:
    """The second run's job states the cost of the first, which a lie may understate."""
    loud, quiet, _ = laundered
    assert quiet.job.start is not None
    second = fitted(replace(quiet.job, start=replace(quiet.job.start, mu=0.001)), table())
    third = fitted(unseeded(0.01, solver=vfl.solvers.GD(passes=1)), table(), warm_start=second)
    assert third.certificate.guaranteed[0] < loud.certificate.epsilon
    report = verify_run(third.save(tmp_path / "third"), start=second.save(tmp_path / "second"))
    assert next(check.holds for check in report.checks if check.name == "start") is None
    assert "which was not verified" in report.guarantee[0]


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
        starting_from(job_of(solver=vfl.solvers.SGD()), first)
    with pytest.raises(SpecificationError, match=r"label_share.* leave it out"):
        make_plan(
            starting_from(
                job_of(privacy=private(), solver=vfl.SkGD(details=vfl.solvers.Details(label_share=0.1))), first
            ),
            N,
        )


def test_bad_starts_are_refused(first: Result, tmp_path: Path) -> None:
    for wrong, said in (
        ({"model": "abc", "coefficients": {}}, "64 hexadecimal digits"),
        ({"model": "0" * 64, "coefficients": {"age": float("nan")}}, "is not finite"),
        ({"model": "0" * 64, "coefficients": {}, "epsilon": 1.0}, "both epsilon and delta"),
        ({"model": "0" * 64, "coefficients": {}, "epsilon": 1.0, "delta": 0.0, "mu": 1.0}, "give mu, or both"),
        ({"model": "0" * 64, "coefficients": {}, "mu": -1.0}, "mu is the cost"),
        ({"model": "0" * 64, "coefficients": {}, "epsilon": float("inf"), "delta": 0.0}, "epsilon is the cost"),
        ({"model": "0" * 64, "coefficients": {}, "epsilon": 1.0, "delta": 1.0}, "delta is the cost"),
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
    arguments = ["run", str(tmp_path / "job.toml"), "--at", "inprocess", "--warm-start", str(before)]
    done = CliRunner().invoke(cli.vfl, [*arguments, "--output", str(tmp_path / "second")])
    assert done.exit_code == 0, done.output
    assert f"from the released model {first.certificate.model_digest[:12]}" in done.output
    missing = CliRunner().invoke(
        cli.vfl, [*arguments[:-1], str(tmp_path / "nothing"), "--output", str(tmp_path / "third")]
    )
    assert missing.exit_code != 0
    assert not (tmp_path / "third").exists()
