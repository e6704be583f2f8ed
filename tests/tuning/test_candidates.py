"""Candidates: changes to a job, refusals, and the budget of the trials."""

from __future__ import annotations

import dataclasses
import math

import pytest

import vfl
from tests.tuning.setting import CANDIDATES, job
from vfl.apps.tuning.candidates import Tuning, tuning_of
from vfl.errors import JobFileError, PrivacyError, SpecificationError
from vfl.planning import plan
from vfl.privacy import gaussian_dp
from vfl.privacy.events import OnPart, Selection, bare
from vfl.privacy.private_selection import epsilon_of, mu_of
from vfl.privacy.spending import UNIT_BITS, mu_squared, units


def test_changes_are_applied_to_the_job():
    tuning = tuning_of(job(), [{}, {"penalty": {"strength": 0.5}}, {"penalty": {"kind": "l1", "strength": 0.2}}])
    assert [each.penalty for each in tuning.jobs] == [vfl.L2(0.01), vfl.L2(0.5), vfl.L1(0.2)]
    assert tuning.jobs[0].digest == job().digest
    given = tuning_of(job(), [job(), dataclasses.replace(job(), solver=vfl.solvers.CD(passes=3), name="other")])
    assert given.jobs[1].solver == vfl.solvers.CD(passes=3)
    assert given.jobs[1].name == "small"
    assert tuning_of(job(), [{}, {"penalty.strength": 0.5, "solver.passes": 3}]).jobs[1].solver.passes == 3


@pytest.mark.parametrize("evaluated", [None, 0.5])
def test_every_trial_stays_within_its_share_of_the_budget(evaluated):
    base = job(evaluation=vfl.Evaluation(epsilon=evaluated))
    tuning = tuning_of(base, CANDIDATES)
    mu, held_out = tuning.budgets
    assert mu == mu_of(1.0, 1e-6, 3, 4)
    assert held_out == mu_of(evaluated or 1.0, 1e-6, 3, 4)
    assert tuning.epsilon <= 1.0
    assert tuning.epsilon == epsilon_of(mu, 1e-6, 3, 4)
    assert gaussian_dp.mu_of(tuning.trial_epsilon, 1e-6) <= mu
    for planned in tuning.plans(400):
        for side, allowed in (("training", mu), ("held out", held_out)):
            spent = sum(units(e, mu_squared) * k for e, k in planned.releases if e.part == side)
            assert 0.9999 * allowed**2 < spent / 2**UNIT_BITS <= allowed**2
    sides = {event.part: bare(event) for event, count in tuning.events if count == 1}
    assert sides == {
        "training": Selection("replace-one", mu, 3, 4),
        "held out": Selection("replace-one", held_out, 3, 4),
    }
    assert all(isinstance(event, OnPart) for event, _ in tuning.events)


def test_trials_release_one_score_and_have_noise_of_their_own():
    seeded = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-6, noise=vfl.SeededNoise(3)))
    trials = tuning_of(seeded, CANDIDATES, score="accuracy").trials
    assert len({trial.privacy.noise.seed for trial in trials}) == 3
    assert {trial.evaluation.score for trial in trials} == {"accuracy"}
    (evaluation,) = plan(trials[0], 400).evaluations
    assert evaluation.name == "score"
    assert sum(count for event, count in plan(trials[0], 400).releases if event.part == "held out") == 1


def test_a_tune_is_restored_from_plain_values():
    tuning = tuning_of(job(), CANDIDATES, inclusion=7)
    again = Tuning.from_dict(tuning.to_dict())
    assert again.digest == tuning.digest
    assert again.inclusion == 7
    assert tuning_of(job(), CANDIDATES).digest != tuning.digest


def test_delta_of_one_over_n_squared_needs_n():
    tuning = tuning_of(job(privacy=vfl.Privacy(epsilon=1.0)), CANDIDATES)
    with pytest.raises(SpecificationError, match="state the number of records"):
        tuning.with_delta(None)
    assert tuning.with_delta(400).delta == 1 / 400**2
    assert tuning_of(job(), CANDIDATES).with_delta(None).delta == 1e-6


SELECTED = {"solver": {"kind": "GCD", "passes": None}}


@pytest.mark.parametrize(
    ("base", "candidates", "said"),
    [
        (job(), [{}], "at least two candidates"),
        (job(), [], "at least two candidates"),
        (job(), {"penalty.strength": 1.0}, "candidates must be a list"),
        (job(), [{}, 3], "candidate 2 must be a table of changes"),
        (job(), [{}, {"penalty.strength": 0.01}], "candidates 1 and 2 are the same job"),
        (job(), [{"penalty.strength": 10.0**-k} for k in range(65)], "65 candidates are more than 64"),
        (job(privacy=None), CANDIDATES, "the job has no privacy"),
        (job(evaluation=None), CANDIDATES, r"set evaluation=Evaluation\(holdout=0.2\)"),
        (
            job(evaluation=None, trust="secure"),
            CANDIDATES,
            "which every participant sees under trust='secure': tune with trust='trusted'",
        ),
        (job(evaluation=vfl.Evaluation(public=True)), CANDIDATES, "declared public"),
        (job(evaluation=vfl.Evaluation(holdout=None, diagnostics=True)), CANDIDATES, "diagnostics"),
        (job(evaluation=vfl.Evaluation(cost={"missed": 5, "false_alarm": 1})), CANDIDATES, "leave evaluation.cost"),
        (job(evaluation=vfl.Evaluation(thresholds=(0.3,))), CANDIDATES, "leave evaluation.cost"),
        (
            job(intervals=True),
            CANDIDATES,
            "leave intervals out, or train the chosen job",
        ),
        (job(), [{}, {"bounds": {"a": [-2, 2]}}], "candidate 2 differs from the first in bounds"),
        (job(), [{}, {"evaluation.holdout": 0.5}], "candidate 2 differs from the first in evaluation"),
        (job(), [{}, {"dataset": "other"}], "candidate 2 differs from the first in dataset"),
        (job(), [{}, {"privacy": {"delta": 1e-9}}], "candidate 2 differs from the first in privacy.delta"),
        (job(), [{}, {"privacy": {"epsilon": 2.0}}], "candidate 2 differs from the first in privacy.epsilon"),
        (job(), [{}, {"privacy": "none"}], "candidate 2"),
        (job(), [{}, {"partition": {"parties": {"bank": ["a"]}}}], "candidate 2"),
        (job(), [{}, {"loss": "hinge"}], "the score compares losses"),
        (job(), [{}, {"solvr": {}}], "candidate 2: unknown key 'solvr'"),
    ],
)
def test_candidates_between_which_no_choice_makes_sense_are_refused(base, candidates, said):
    with pytest.raises(SpecificationError, match=said):
        tuning_of(base, candidates)


def test_bad_options_are_refused():
    with pytest.raises(SpecificationError, match=r"'mae'.*'loss' or 'accuracy'"):
        tuning_of(job(), CANDIDATES, score="mae")
    for inclusion in (0, 65, 2.5, True):
        with pytest.raises(SpecificationError, match="inclusion is a whole number"):
            tuning_of(job(), CANDIDATES, inclusion=inclusion)
    with pytest.raises(PrivacyError, match="too small to choose among"):
        _ = tuning_of(job(privacy=vfl.Privacy(epsilon=1e-3, delta=1e-9)), CANDIDATES).budgets


def test_candidates_choose_pairs_and_find_knots():
    both = {"a": vfl.Curve(), "b": vfl.Numeric((-1, 1)), "ab": vfl.columns.Pair("a", "b")}
    partition = vfl.FeaturePartition({"bank": ["a", "b", "ab"]}, label=("bank", "y"))
    base = job(columns=both, partition=partition)
    tune = tuning_of(base, [{}, {"columns.ab.kind": "dropped"}, {"columns.ab.pieces": 3}])
    assert [plan.problem.layout.n_columns for plan in tune.plans(400)] == [8, 6, 9]
    assert all(plan.knots.event for plan in tune.plans(400))
    for change in ({"columns.b.kind": "dropped", "columns.ab.kind": "dropped"}, {"columns.a.pieces": 2}):
        with pytest.raises(SpecificationError, match=r"candidate 2 differs from the first in (partition|columns)"):
            tuning_of(base, [{}, change])


def test_a_plan_that_is_not_gaussian_is_refused_by_its_number():
    candidates = [{}, {"solver": {"kind": "GCD"}}]
    with pytest.raises(SpecificationError, match=r"candidate 2.*BoundedRange"):
        tuning_of(job(), candidates).plans(400)
    sampled = [{}, {"solver": {"kind": "SGD", "sampling": "poisson"}}]
    with pytest.raises(SpecificationError, match=r"candidate 2.*PoissonSubsampledGaussian"):
        tuning_of(job(), sampled).plans(4000)


def test_accuracy_compares_losses_of_any_kind():
    tuning = tuning_of(job(), [{}, {"loss": "smoothed_hinge"}], score="accuracy")
    assert [each.loss for each in tuning.jobs] == ["logistic", "smoothed_hinge"]


def test_regression_is_scored_by_its_clamped_squared_error():
    squared = job(loss="squared", bounds={"*": (-1.0, 1.0), "y": (0.0, 2.0)})
    tuning = tuning_of(squared, CANDIDATES)
    assert tuning.score == "mse"
    (evaluation,) = plan(tuning.trials[0], 400).evaluations
    assert "mse" in evaluation.explain()
    with pytest.raises(JobFileError, match="candidate 2"):
        tuning_of(squared, [{}, {"penalty": {"kind": "l3"}}])
    assert math.isfinite(tuning.epsilon)


def test_deviances_compare_models_of_one_loss_only():
    counts = job(loss="poisson", bounds={"*": (-1.0, 1.0), "y": (0.0, 9.0)})
    assert tuning_of(counts, CANDIDATES, score="deviance").trials[1].evaluation.score == "deviance"
    with pytest.raises(SpecificationError, match="candidate 2 has a different loss"):
        tuning_of(counts, [{}, {"loss": "gamma"}], score="deviance")
    with pytest.raises(SpecificationError, match="logistic loss: give 'loss' or 'accuracy'"):
        tuning_of(job(), CANDIDATES, score="deviance")
