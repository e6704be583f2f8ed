"""The certificate: what it claims follows from what was charged, and what was not charged it says in words."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from vfl.certificate import Certificate
from vfl.errors import OutputError
from vfl.planning import plan as make_plan
from vfl.privacy.gaussian_dp import epsilon_of

if TYPE_CHECKING:
    from pathlib import Path

N = 40
PARTITION = vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c"]}, label=("telco", "y"))
BOUNDS = dict.fromkeys("abc", (-1.0, 1.0))


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {c: rng.uniform(-1, 1, N) for c in "abc"} | {"y": rng.integers(0, 2, N)}


def job(*, privacy: vfl.Privacy | str | None = "default", **options: Any) -> vfl.Job:
    if privacy == "default":
        privacy = vfl.Privacy(epsilon=1.5, delta=1e-6)
    solver = vfl.SkGD(**{"passes": 3, "clip": 0.7, **options.pop("solver", {})})
    return vfl.Job(partition=PARTITION, bounds=BOUNDS, privacy=privacy, solver=solver, **options)


def certificate(**options: Any) -> Certificate:
    return vfl.train(job(**options), data(), engine="inprocess").certificate


SEEDED = vfl.Privacy(epsilon=1.5, delta=1e-6, noise=vfl.SeededNoise(1))

SOLVERS = {
    "single coordinates": {"block_size": 1},
    "blocks of two": {"block_size": 2},
    "one block a message": {"sweep": "block", "block_size": 2},
    "importance": {"sampling": "importance"},
    "τ-nice": {"sampling": "nice", "tau": 2, "block_size": 1},
    "full": {"sampling": "full", "block_size": 2},
}


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
class TestClaim:
    def test_epsilon_follows_from_the_events(self, solver: dict[str, Any]) -> None:
        """μ² = Σ (Δ/σ)² over what is listed, then ε at δ: computed here in two lines, without the accountant."""
        said = certificate(solver=solver)
        mu = math.sqrt(sum(event["count"] * (event["sensitivity"] / event["sigma"]) ** 2 for event in said.events))
        assert said.epsilon <= epsilon_of(mu, said.delta) * (1 + 1e-9)
        assert said.epsilon == pytest.approx(epsilon_of(mu, said.delta), rel=1e-6)

    def test_the_budget_is_used_up_and_not_exceeded(self, solver: dict[str, Any]) -> None:
        said = certificate(solver=solver)
        assert 1.5 * (1 - 1e-6) < said.epsilon <= 1.5
        assert said.delta == 1e-6
        assert said.private
        assert said.flags == ()

    def test_it_counts_every_release_that_went_by(self, solver: dict[str, Any]) -> None:
        charged: list[Any] = []
        result = vfl.train(
            job(solver=solver), data(), engine="inprocess", watch=lambda e: charged.extend(getattr(e, "events", ()))
        )
        assert result.certificate.releases == len(charged)
        assert sum(event["count"] for event in result.certificate.events) == len(charged)

    def test_the_plan_promised_it(self, solver: dict[str, Any]) -> None:
        planned = make_plan(job(solver=solver), N)
        assert certificate(solver=solver).epsilon <= planned.epsilon <= 1.5


def test_what_it_says_of_the_run() -> None:
    spec = job(name="credit")
    said = vfl.train(spec, data(), engine="inprocess").certificate
    assert said.adjacency == "replace-one"
    assert said.noise == "CryptographicNoise"
    assert said.smoothness == "private"
    assert said.clip == 0.7
    assert said.n_records == N
    assert (said.job, said.job_digest) == ("credit", spec.digest)
    assert said.code_version == vfl.__version__
    assert "this one fit only" in said.scope
    assert all(event["adjacency"] == "replace-one" for event in said.events)


def test_delta_defaults_to_one_over_n_squared() -> None:
    assert certificate(privacy=vfl.Privacy(epsilon=1.0)).delta == 1 / N**2


def test_who_sees_what_is_never_left_out() -> None:
    """Noise protects the model alone, with and without a guarantee."""
    for said in (certificate(), certificate(privacy=None)):
        assert said.who_sees_what.keys() == {"outsider", "party", "coordinator"}
        for insider in ("party", "coordinator"):
            assert "NOT protected by noise" in said.who_sees_what[insider]


class TestFlags:
    def test_without_privacy(self) -> None:
        said = certificate(privacy=None)
        assert said.private is False
        assert (said.epsilon, said.delta, said.events, said.releases) == (math.inf, 0.0, (), 0)
        assert said.noise == "none"
        assert said.flags == ("trained with privacy=None: the model is not differentially private",)
        assert str(said).startswith("NOT PRIVATE: trained without noise\n")

    def test_seeded_noise(self) -> None:
        said = certificate(privacy=SEEDED)
        assert said.private is False
        assert said.noise == "SeededNoise"
        assert said.flags == ("NOT PRIVATE: the noise is seeded, so whoever knows the seed can take it off",)
        assert str(said).startswith("NOT PRIVATE (the accounting, had it been: (ε = ")

    def test_smoothness_from_data(self) -> None:
        said = certificate(privacy=vfl.Privacy(epsilon=1.5, delta=1e-6, smoothness="data"))
        assert said.private is False
        (flag,) = said.flags
        assert "means and smoothness of the columns were computed from the data and not charged" in flag
        assert flag in str(said)

    @pytest.mark.parametrize("smoothness", ["bounds", dict.fromkeys("abc", 0.25)])
    def test_public_smoothness_costs_nothing_and_is_no_flag(self, smoothness: Any) -> None:
        said = certificate(privacy=vfl.Privacy(epsilon=1.5, delta=1e-6, smoothness=smoothness))
        assert said.private
        assert said.flags == ()
        assert len(said.events) == 1  # the blocks; no moments
        assert said.smoothness == ("bounds" if smoothness == "bounds" else "declared")

    def test_flags_add_up(self) -> None:
        privacy = vfl.Privacy(epsilon=1.5, noise=vfl.SeededNoise(0), smoothness="data")
        assert len(certificate(privacy=privacy).flags) == 2

    def test_a_private_one_is_said_in_one_sentence(self) -> None:
        said = str(certificate())
        assert said.startswith("(ε = 1.5, δ = 1e-06)-differentially private for every record (replace-one)\n")
        assert "NOT PRIVATE" not in said


class TestFile:
    @pytest.mark.parametrize("privacy", ["default", None, SEEDED])
    def test_it_survives(self, tmp_path: Path, privacy: Any) -> None:
        said = certificate(privacy=privacy)
        (tmp_path / "certificate.json").write_text(said.to_json(), encoding="utf-8")
        again = Certificate.load(tmp_path / "certificate.json")
        assert again.to_json() == said.to_json()
        for field in dataclasses.fields(Certificate):
            assert getattr(again, field.name) == getattr(said, field.name), field.name

    def test_it_is_json_that_others_can_read(self) -> None:
        """No Infinity, which is not JSON."""

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        plain = json.loads(certificate(privacy=None).to_json(), parse_constant=refuse)
        assert plain["epsilon"] == "inf"

    def test_it_holds_no_data(self) -> None:
        """Counts, ids and cells stay out: with other data of the same shape every public word is the same."""
        other = {c: values[::-1].copy() for c, values in data().items()}
        one, two = (vfl.train(job(privacy=SEEDED), d, engine="inprocess").certificate for d in (data(), other))
        assert one == two

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "3", "{}", '{"format": 1}', '{"format": 1, "events": 3, "flags": []}']
    )
    def test_what_is_no_certificate(self, text: str) -> None:
        with pytest.raises(OutputError):
            Certificate.from_json(text)

    def test_another_format_and_another_field(self) -> None:
        plain = json.loads(certificate().to_json())
        with pytest.raises(OutputError, match="this vfl reads certificates of format 1, not 2"):
            Certificate.from_json(json.dumps(plain | {"format": 2}))
        with pytest.raises(OutputError, match="this is not a certificate"):
            Certificate.from_json(json.dumps(plain | {"guarantee": "total"}))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"cannot read the certificate .*: No such file or directory"):
            Certificate.load(tmp_path / "certificate.json")
