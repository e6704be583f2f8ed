"""Jobs on shares: every solver with every loss is offered or refused before any data, and so is every other option."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

import vfl
from parties.loading import load
from tests.coordinator.shares import job
from vfl.base.losses import LOSSES, ClassWeighted
from vfl.errors import DataError, PlacementError, PrivacyError, SpecificationError
from vfl.job import file as jobfile
from vfl.job.file import decode
from vfl.job.start import Start
from vfl.planning import plan
from vfl.planning.certificate.issue import who_sees_what
from vfl.secure import homomorphic
from vfl.secure.homomorphic import library
from vfl.secure.ring import PRIME
from vfl.secure.roles import ENCRYPTION
from vfl.solvers import SOLVERS

if TYPE_CHECKING:
    from pathlib import Path

OFFERED = {("SkGD", "logistic"), ("CD", "logistic"), ("GD", "logistic"), ("NoisyGram", "squared")}
NEEDS = {
    "GCD": "scores",
    "SGD": "secret batches",
    "SVRG": "secret batches",
    "SCD": "a dual state",
    "OutputPerturbation": "steps without noise",
    "NoisyGram": "squared loss",
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_and_loss_is_offered_or_refused(solver: str, loss: str) -> None:
    options: dict[str, Any] = {"solver": SOLVERS[solver](), "loss": loss, "bounds": {"*": (-2, 2), "y": (0, 1)}}
    if loss == "class_weighted":
        options["loss"] = ClassWeighted(positive=2.0)
    if (solver, loss) in OFFERED:
        assert plan(job(**options), 1000).sharing is not None
        return
    if loss == "multinomial":
        options["classes"] = ("a", "b", "c")
    needs = NEEDS.get(solver, "a residual")
    with pytest.raises(SpecificationError, match=rf"{solver} with {loss} needs {needs}"):
        job(**options)


JOINT = vfl.SkGD(joint=True)
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no privacy": ({"privacy": None}, PrivacyError, "the released sums are exact gradients"),
    "a hold-out of public records": (
        {"evaluation": vfl.Evaluation(holdout=0.2, public=True)},
        SpecificationError,
        "every number from shares is opened with noise: leave public out",
    ),
    "diagnostics": (
        {"evaluation": vfl.Evaluation(holdout=None, diagnostics=True)},
        SpecificationError,
        "leave diagnostics out",
    ),
    "moments of the data": (
        {"privacy": vfl.Privacy(epsilon=1.0, smoothness="data")},
        SpecificationError,
        "use smoothness='private'",
    ),
    "a start": (
        {
            "start": Start(
                model="0" * 64, coefficients=dict.fromkeys([*(f"x{j}" for j in range(6)), "(intercept)"], 0.0)
            )
        },
        SpecificationError,
        "leave start out",
    ),
    "weights": (
        {
            "partition": vfl.FeaturePartition({"q0": ["x0"], "q1": ["x1"]}, label=("q1", "y"), weight="s"),
            "bounds": {"*": (-1.0, 1.0), "s": (0.0, 1.0)},
        },
        SpecificationError,
        "leave weight out",
    ),
    "sparse columns": (
        {"partition": vfl.FeaturePartition({"q0": ["x0"], "q1": ["x1"]}, label=("q1", "y"), sparse=["q0"])},
        SpecificationError,
        "leave sparse out",
    ),
    "too many that collude": (
        {"trust": vfl.federation.Secure(collude=2)},
        SpecificationError,
        "give a number from 1 to 1",
    ),
    "two that collude without a dealer": (
        {"trust": vfl.federation.Secure(dealer=None, collude=2)},
        SpecificationError,
        "give a number from 1 to 1",
    ),
    "three parties without a dealer": (
        {
            "partition": vfl.FeaturePartition({"q0": ["x0"], "q1": ["x1"], "q2": ["x2"]}, label=("q1", "y")),
            "trust": vfl.federation.Secure(dealer=None),
        },
        SpecificationError,
        "without a dealer multiplies the vectors of two parties, and the partition has 3: use dealer='separate'",
    ),
    "class weights": ({"loss": ClassWeighted(positive=2.0)}, SpecificationError, "needs a residual"),
    "bounds that are missing": (
        {
            "scaling": "none",
            "bounds": {},
            "solver": vfl.solvers.GD(clip=1.0),
            "privacy": vfl.Privacy(epsilon=1.0, smoothness={f"x{j}": 0.25 for j in range(6)}),
        },
        SpecificationError,
        "needs bounds for 'x0'",
    ),
    "a party that is the dealer": (
        {"partition": vfl.FeaturePartition({"dealer": ["x0"], "q1": ["x1"]}, label=("q1", "y"))},
        SpecificationError,
        "the name 'dealer' is reserved: rename the party",
    ),
    "one party": (
        {"partition": vfl.FeaturePartition({"q1": ["x1"]}, label=("q1", "y"))},
        SpecificationError,
        "the partition has one",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    options, error, said = REFUSED[case]
    with pytest.raises(error, match=said):
        job(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dealer": "bank"}, "a party as the dealer could remove every mask"),
        ({"collude": 0}, "at least 1, not 0"),
        ({"collude": True}, "whole number"),
        ({"margin": -1.0}, "positive and finite"),
        ({"margin": "8"}, "must be a number, 8"),
    ],
)
def test_bad_threat_models(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        vfl.federation.Secure(**options)


def test_plans_refuse_clips_of_single_blocks_and_too_few_bits() -> None:
    with pytest.raises(SpecificationError, match="charges whole passes"):
        plan(job(solver=vfl.SkGD(clip=1.0)), 1000)
    with pytest.raises(PrivacyError, match="fewer than 34 bits"):
        plan(job(), 10**9)


def test_the_threat_model_is_part_of_the_digest_and_of_the_file() -> None:
    jobs = [
        job(3),
        job(3, collude=2),
        job(3, trust=vfl.federation.Secure(dealer="coordinator")),
        job(3, trust="trusted"),
        job(trust=vfl.federation.Secure(dealer=None)),
    ]
    assert len({each.digest for each in jobs}) == 5
    for each in jobs:
        assert decode(each.to_dict()) == each
    assert jobs[-1].to_dict()["trust"]["dealer"] == "none"
    assert vfl.federation.Secure(dealer=None) == vfl.federation.Secure(dealer="none")
    assert [each.dealer for each in jobs] == ["separate", "separate", "coordinator", None, None]
    assert job().secure == vfl.federation.Secure()
    assert "up to 1 party may pool" in repr(jobs[0])


def test_a_plan_states_the_threat_model() -> None:
    said = str(plan(job(3, collude=2), 10_000))
    assert re.search("up to 2 parties.*separate dealer.*q2, q0, q1", said)
    assert re.search("broken by: .*one party, or 3 parties", said)
    assert "price: 1.29 times the noise" in said
    assert "bits       40 after" in said
    assert "bias of a sum at most" in said
    assert plan(job(3), 10_000).sharing.roles.price == pytest.approx((4 / 3) ** 0.5)
    assert plan(job(trust="trusted"), 1000).sharing is None


@pytest.mark.parametrize("site", ["inprocess", vfl.Ray("127.0.0.1:1")], ids=repr)
def test_a_missing_library_is_reported_before_any_data_are_read(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def source() -> Any:
        raise AssertionError("data were read")

    monkeypatch.setitem(sys.modules, "tenseal", None)
    monkeypatch.setitem(sys.modules, "tenseal.sealapi", None)
    spec = job(trust=vfl.federation.Secure(dealer=None))
    assert plan(spec, 10_000).sharing is not None
    with pytest.raises(SpecificationError, match=r"pip install 'vfl\[he\]'"):
        vfl.train(spec, dict.fromkeys(("q0", "q1"), source), at=site)
    with pytest.raises(SpecificationError, match=r"party 'q0' cannot take part in job 'job': .*vfl\[he\]"):
        load(spec.for_party("q0"), source)
    with pytest.raises(DataError, match="AssertionError"):
        load(job().for_party("q0"), source)


def test_a_job_without_a_dealer_is_written_read_and_set(tmp_path: Path) -> None:
    spec = job(trust=vfl.federation.Secure(dealer=None))
    jobfile.write(spec, tmp_path / "job.toml")
    assert 'dealer = "none"' in (tmp_path / "job.toml").read_text(encoding="utf-8")
    assert jobfile.read(tmp_path / "job.toml")[0] == spec
    jobfile.write(job(), tmp_path / "other.toml")
    assert jobfile.read(tmp_path / "other.toml", ["trust=", "trust.dealer=none"])[0].digest == spec.digest


def test_a_plan_without_a_dealer_states_what_takes_its_place() -> None:
    planned = plan(job(trust=vfl.federation.Secure(dealer=None)), 10_000)
    said = str(planned)
    assert f"homomorphic encryption between the two parties in place of a dealer (BFV by {library()}; RLWE" in said
    assert re.search(r"broken by: (\w+) if it deviates, undetected", said)[1] != planned.job.partition.label[0]
    assert "price: 1.41 times the noise charged to ε, drawn by all parties\n" in said
    assert "masked" not in str(plan(job(trust=vfl.federation.Secure(dealer=None), solver=JOINT), 100_000))
    assert "all parties hold masked columns" in str(plan(job(solver=JOINT), 100_000))
    assert set(who_sees_what(planned, private=True)) == {"outsider", "party", "coordinator"}
    assert "dealer" not in who_sees_what(planned, private=True)["party"]


@pytest.mark.parametrize("site", [vfl.InProcess(shards=2), vfl.Ray(shards=2), vfl.Ray(parties_per_process=2)], ids=repr)
def test_shards_and_shared_processes_are_refused_before_any_data_are_read(site: Any) -> None:
    def source() -> Any:
        raise AssertionError("data were read")

    with pytest.raises(PlacementError, match=r"leave (shards|parties_per_process) at 1"):
        vfl.train(job(), dict.fromkeys(("q0", "q1"), source), at=site)


def test_certified_bits_follow_from_the_parameters() -> None:
    """The products' noise is at most MOST_PRODUCTS·(21 + ½)·N·t/2 per coefficient (docs/mathematics.md)."""
    seal = pytest.importorskip("tenseal.sealapi")
    own = homomorphic
    level = getattr(seal.SEC_LEVEL_TYPE, f"TC{ENCRYPTION['bits']}")
    assert sum(own.PRIME_BITS) <= seal.CoeffModulus.MaxBitCount(own.SLOTS, level)
    products = math.log2(own.MOST_PRODUCTS * 21.5 * own.SLOTS * PRIME / 2)
    coefficients = math.log2(own.MOST_REPLIES * own.SLOTS)
    assert own.FLOOD_BITS - products - coefficients >= ENCRYPTION["statistical_bits"]
