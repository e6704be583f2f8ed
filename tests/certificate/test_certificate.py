"""Certificates: claims follow from the charged events, and every release that was not charged is flagged in words."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from parties.party import Party
from vfl.base.types import Adjacency
from vfl.crypto.signatures import SigningKey
from vfl.errors import OutputError
from vfl.planning import plan as make_plan
from vfl.planning.certificate import FORMAT, SCHEMA, Certificate, verify
from vfl.planning.certificate.document import OPTIONAL
from vfl.privacy.events import BoundedRange, Gaussian, Laplace, PoissonSubsampledGaussian, Selection
from vfl.privacy.gaussian_dp import epsilon_of
from vfl.queries import RecordNorms

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
    solver = vfl.SkGD().changed(**{"passes": 3, "clip": 0.7, **options.pop("solver", {})})
    return vfl.Job(partition=PARTITION, bounds=BOUNDS, privacy=privacy, solver=solver, **options)


def certificate(**options: Any) -> Certificate:
    return vfl.train(job(**options), data(), at="inprocess").certificate


SEEDED = vfl.Privacy(epsilon=1.5, delta=1e-6, noise=vfl.SeededNoise(1))

SOLVERS = {
    "single coordinates": {"block_size": 1},
    "blocks of two": {"block_size": 2},
    "one block a message": {"message": "block", "block_size": 2},
    "importance": {"sampling": "importance"},
    "τ-nice": {"sampling": "nice", "tau": 2, "block_size": 1},
    "full": {"sampling": "full", "block_size": 2},
}


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
class TestClaim:
    def test_epsilon_follows_from_the_events(self, solver: dict[str, Any]) -> None:
        """Compute μ² = Σ (Δ/σ)² over the listed events, then ε at δ, without the accountant."""
        said = certificate(solver=solver)
        mu = math.sqrt(sum(count * (event.sensitivity / event.sigma) ** 2 for event, count in said.events))
        assert said.epsilon <= epsilon_of(mu, said.delta) * (1 + 1e-9)
        assert said.epsilon == pytest.approx(epsilon_of(mu, said.delta), rel=1e-6)

    def test_the_budget_is_used_up_and_not_exceeded(self, solver: dict[str, Any]) -> None:
        said = certificate(solver=solver)
        assert 1.5 * (1 - 1e-6) < said.epsilon <= 1.5
        assert said.delta == 1e-6
        assert said.private
        assert said.flags == ()

    def test_it_counts_every_release(self, solver: dict[str, Any]) -> None:
        charged: list[Any] = []
        result = vfl.train(
            job(solver=solver), data(), at="inprocess", watch=lambda e: charged.extend(getattr(e, "events", ()))
        )
        assert result.certificate.releases == len(charged)
        assert dict(result.certificate.events) == Counter(charged)

    def test_epsilon_is_at_most_that_of_the_plan(self, solver: dict[str, Any]) -> None:
        planned = make_plan(job(solver=solver), N)
        assert certificate(solver=solver).epsilon <= planned.epsilon <= 1.5


def test_fields_describe_the_run() -> None:
    spec = job(name="credit")
    said = vfl.train(spec, data(), at="inprocess").certificate
    assert said.adjacency == "replace-one"
    assert said.noise == "CryptographicNoise"
    assert said.smoothness == "private"
    assert said.clip == 0.7
    assert said.n_records == N
    assert (said.job, said.job_digest) == ("credit", spec.digest)
    assert said.code_version == vfl.__version__
    assert "this one fit only" in said.scope
    assert all(event.adjacency == "replace-one" for event, _ in said.events)
    assert said.solver["passes"] is None  # None: the job gave rounds instead
    assert (said.solver["name"], said.solver["block_size"], said.solver["sampling"]) == ("SkGD", 1, "shuffled")
    assert said.geometry.startswith("Euclidean norm of a record's gradient of a block, coordinate j divided by √M_j")
    assert (said.dataset, said.ledger, said.party_ledgers, said.signature) == ("", {}, {}, None)


def test_delta_defaults_to_one_over_n_squared() -> None:
    assert certificate(privacy=vfl.Privacy(epsilon=1.0)).delta == 1 / N**2


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(passes=2, clip=0.7),
        vfl.SkGD(passes=2, clip="record"),
        vfl.solvers.CD(passes=2),
        vfl.solvers.GCD(rounds=2),
        vfl.solvers.GD(passes=2),
        vfl.solvers.SGD(passes=2),
        vfl.solvers.SVRG(passes=2),
        vfl.solvers.SCD(passes=2),
        vfl.solvers.OutputPerturbation(),
        vfl.solvers.NoisyGram(clip=1.0),
    ],
    ids=lambda solver: solver.name,
)
def test_norms_are_stated_exactly_if_parties_are_asked_for_them(solver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = set(), Party.answer

    def observed(self: Party, query: Any, *rest: Any, **options: Any) -> Any:
        asked.add(type(query))
        return answer(self, query, *rest, **options)

    monkeypatch.setattr(Party, "answer", observed)
    squared = isinstance(solver, vfl.solvers.NoisyGram)
    job = vfl.Job(
        partition=PARTITION,
        bounds=BOUNDS | {"y": (0.0, 1.0)} if squared else BOUNDS,
        loss="squared" if squared else "logistic",
        solver=solver,
        penalty=vfl.L2(0.1),
        privacy=vfl.Privacy(epsilon=1.5, delta=1e-6),
    )
    table = data()
    result = vfl.train(job, table | {"y": table["y"].astype(float)} if squared else table, at="inprocess")
    assert ("norm of each party's columns" in result.certificate.who_sees_what["coordinator"]) is (RecordNorms in asked)
    assert ("compute the norm" in result.certificate.who_sees_what["party"]) is (RecordNorms in asked)
    assert (vfl.plan(job, N).vectors.norms > 0) is (RecordNorms in asked)


def test_who_sees_what_is_never_left_out() -> None:
    """Noise protects the model only. The table of visibility is there with and without a guarantee."""
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
        assert said.flags == ("NOT PRIVATE: the noise is seeded, so anyone who knows the seed can subtract it",)
        assert str(said).startswith("NOT PRIVATE (the accounting alone would give: (ε = ")

    def test_smoothness_from_data(self) -> None:
        said = certificate(privacy=vfl.Privacy(epsilon=1.5, delta=1e-6, smoothness="data"))
        assert said.private is False
        (flag,) = said.flags
        assert re.search("means and smoothness.*not charged", flag)
        assert flag in str(said)

    @pytest.mark.parametrize("smoothness", ["bounds", dict.fromkeys("abc", 0.25)])
    def test_public_smoothness_costs_nothing_and_is_no_flag(self, smoothness: Any) -> None:
        said = certificate(privacy=vfl.Privacy(epsilon=1.5, delta=1e-6, smoothness=smoothness))
        assert said.private
        assert said.flags == ()
        assert len(said.events) == 1  # the block releases; no moments
        assert said.smoothness == ("bounds" if smoothness == "bounds" else "declared")

    def test_flags_add_up(self) -> None:
        privacy = vfl.Privacy(epsilon=1.5, noise=vfl.SeededNoise(0), smoothness="data")
        assert len(certificate(privacy=privacy).flags) == 2

    def test_a_private_certificate_is_one_sentence(self) -> None:
        said = str(certificate())
        assert said.startswith("(ε = 1.5, δ = 1e-06)-differentially private for every record (replace-one)\n")
        assert "NOT PRIVATE" not in said


class TestFile:
    @pytest.mark.parametrize("privacy", ["default", None, SEEDED])
    def test_round_trip_through_a_file(self, tmp_path: Path, privacy: Any) -> None:
        said = certificate(privacy=privacy)
        (tmp_path / "certificate.json").write_text(said.to_json(), encoding="utf-8")
        again = Certificate.load(tmp_path / "certificate.json")
        assert again.to_json() == said.to_json()
        for field in dataclasses.fields(Certificate):
            assert getattr(again, field.name) == getattr(said, field.name), field.name
        assert again == said

    def test_it_is_json_that_others_can_read(self) -> None:
        """The file contains no Infinity, which JSON does not allow."""

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        plain = json.loads(certificate(privacy=None).to_json(), parse_constant=refuse)
        assert plain["epsilon"] is None

    def test_it_holds_no_data(self) -> None:
        """Counts, ids and cells stay out: other data of the same shape give the same public text."""
        other = {c: values[::-1] if c == "y" else values / 2 for c, values in data().items()}
        one, two = (vfl.train(job(privacy=SEEDED), d, at="inprocess").certificate for d in (data(), other))
        differs = {f.name for f in dataclasses.fields(one) if getattr(one, f.name) != getattr(two, f.name)}
        assert differs == {"model_digest", "moments_digest"}  # digests of released values

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "3", "{}", '{"format": 1}', '{"format": 1, "events": 3, "flags": []}']
    )
    def test_text_that_is_not_a_certificate_is_refused(self, text: str) -> None:
        with pytest.raises(OutputError):
            Certificate.from_json(text)

    def test_unknown_formats_and_fields_are_refused(self) -> None:
        plain = json.loads(certificate().to_json())
        with pytest.raises(OutputError, match="format 1, not 3"):
            Certificate.from_json(json.dumps(plain | {"format": 3}))
        with pytest.raises(OutputError, match="is not a certificate"):
            Certificate.from_json(json.dumps(plain | {"guarantee": "total"}))

    # A run has no `selection`; a certificate that charges one needs it (tests/tuning). Nor has it a `start` or `trust`.
    @pytest.mark.parametrize("missing", [f.name for f in dataclasses.fields(Certificate) if f.name not in OPTIONAL])
    def test_no_field_can_be_left_out(self, missing: str) -> None:
        plain = json.loads(certificate().to_json())
        del plain[missing]
        with pytest.raises(OutputError):
            Certificate.from_json(json.dumps(plain))

    def test_another_spelling_of_the_same_values_is_refused(self) -> None:
        text = certificate().to_json()
        others = (
            json.dumps(json.loads(text)),
            text.rstrip("\n"),
            text + " ",
            text.replace("\n", "\r\n"),
            text.replace("1e-06", "0.000001"),
            text.replace("ε", "\\u03b5"),
        )
        for other in others:
            with pytest.raises(OutputError, match="altered or reformatted"):
                Certificate.from_json(other)

    def test_line_endings_are_not_repaired(self, tmp_path: Path) -> None:
        (tmp_path / "certificate.json").write_bytes(certificate().to_json().replace("\n", "\r\n").encode())
        with pytest.raises(OutputError, match="not as vfl writes it"):
            Certificate.load(tmp_path / "certificate.json")

    def test_bytes_that_are_not_text_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "certificate.json").write_bytes(b"\xff\xfe{}")
        with pytest.raises(OutputError, match="not a certificate"):
            Certificate.load(tmp_path / "certificate.json")

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="No such file"):
            Certificate.load(tmp_path / "certificate.json")


GAUSSIAN = Gaussian(Adjacency.REPLACE_ONE, 0.1, 1 / 3, 7)
EVENTS = (
    GAUSSIAN,
    Gaussian(Adjacency.REPLACE_ONE, 5e-324, 1.7976931348623157e308, 1),
    BoundedRange(Adjacency.REPLACE_ONE, 1e-7),
    Laplace(Adjacency.REPLACE_ONE, 2.0, math.nextafter(2.0, 3.0)),
    PoissonSubsampledGaussian(Adjacency.REPLACE_ONE, 1e22, 1e23, 1 / 7),
    Selection(Adjacency.REPLACE_ONE, 1 / 7, 8, 4),
)

WORDS = ["", "none", "pld", "bounds", "replace-one", "0" * 64, "0" * 63 + "G", "ed25519"]
NAMES = ["x", "name", "outsider", "party", "coordinator", "run", "account", "entries", "head", "type", "count"]
SIMPLE = st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = SIMPLE | st.sampled_from([*WORDS, 1 << 53]) | st.text(max_size=3)
TABLES = st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=5)
VALUES = SCALARS | TABLES | st.lists(SCALARS | TABLES, max_size=2) | st.dictionaries(st.sampled_from(NAMES), TABLES)


@pytest.fixture(scope="module")
def schema() -> Any:
    import jsonschema

    rules = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(rules)
    return jsonschema.Draft202012Validator(rules)


class TestSchema:
    """The shipped schema tells other programs which certificates this one reads and writes."""

    def test_it_has_every_field_and_describes_no_other(self, schema: Any) -> None:
        names = [field.name for field in dataclasses.fields(Certificate)]
        assert sorted(schema.schema["properties"]) == sorted(names)
        assert sorted(schema.schema["required"]) == sorted(set(names) - set(OPTIONAL))
        assert schema.schema["properties"]["format"] == {
            "type": "integer",
            "const": FORMAT,
            "description": "Version of this schema.",
        }

    @pytest.mark.parametrize("event", EVENTS)
    def test_every_event_is_typed_and_exact(self, schema: Any, event: Any) -> None:
        said = dataclasses.replace(certificate(), events=((event, 3), (GAUSSIAN, 1)), reserved=((event, 10**6),))
        plain = json.loads(said.to_json())
        schema.validate(plain)
        again = Certificate.from_json(said.to_json())
        assert again.events == said.events
        assert again.reserved == said.reserved
        assert type(again.events[0][0]) is type(event)

    @pytest.mark.parametrize("privacy", ["default", None, SEEDED])
    def test_written_certificates_are_valid(self, schema: Any, privacy: Any) -> None:
        said = certificate(privacy=privacy)
        schema.validate(json.loads(said.to_json()))
        books = {"bank": {"entries": 3, "head": "0" * 64}}
        place = {"run": "r", "account": "credit", "entries": 9, "head": "f" * 64}
        said = dataclasses.replace(said, party_ledgers=books, ledger=place).signed(
            SigningKey(Ed25519PrivateKey.generate())
        )
        schema.validate(json.loads(said.to_json()))
        assert Certificate.from_json(said.to_json()) == said

    @given(field=st.sampled_from([f.name for f in dataclasses.fields(Certificate)]), value=VALUES)
    @settings(max_examples=200, deadline=None)
    def test_invalid_certificates_are_not_read(self, schema: Any, field: str, value: Any) -> None:
        """Replace a field by any value: if the result is read as a certificate, the schema accepts it too."""
        plain = json.loads(_written()) | {field: value}
        text = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
        try:
            Certificate.from_json(text)
        except OutputError:
            return
        schema.validate(plain)

    @pytest.mark.parametrize("field", ["sensitivity", "sigma", "dimension", "adjacency", "type", "count"])
    @pytest.mark.parametrize("value", [0, -1.0, None, "gaussian", "add-remove", 10**400, True, "0x1p+0"])
    def test_events_are_read_strictly(self, schema: Any, field: str, value: Any) -> None:
        plain = json.loads(_written())
        if plain["events"][0][field] == value:
            return
        plain["events"][0][field] = value
        with pytest.raises(OutputError):
            Certificate.from_json(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")


@functools.cache
def _written() -> str:
    return certificate().signed(SigningKey(Ed25519PrivateKey.generate())).to_json()


class TestShares:
    """Certificates of runs on shares, which state the threat model."""

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls) -> Certificate:
        from tests.coordinator.shares import job, table

        return vfl.train(job(3), table(), at="inprocess").certificate

    def test_it_states_the_threat_model(self, shared: Certificate) -> None:
        assert shared.trust == {
            "mode": "secure",
            "participants": "semi-honest",
            "dealer": "separate",
            "collude": 1,
            "holders": ["q2", "q0"],
            "contributors": ["q0", "q1", "q2", "dealer"],
            "price": pytest.approx((4 / 3) ** 0.5),
            "bits": 40,
        }
        assert set(shared.who_sees_what) == {"outsider", "party", "coordinator", "dealer"}
        assert any("in one process" in flag for flag in shared.flags)
        assert "semi-honest" in str(shared)

    def test_the_schema_describes_it(self, schema: Any, shared: Certificate) -> None:
        plain = json.loads(shared.to_json())
        schema.validate(plain)
        assert not schema.is_valid(plain | {"trust": {}})
        signed = shared.signed(SigningKey(Ed25519PrivateKey.generate()))
        assert Certificate.from_json(signed.to_json()) == signed

    @pytest.mark.parametrize(
        "change",
        [
            {"trust": {}},
            {"who_sees_what": {"outsider": "", "party": "", "coordinator": ""}},
        ],
    )
    def test_a_threat_model_and_what_a_dealer_sees_go_together(
        self, shared: Certificate, change: dict[str, Any]
    ) -> None:
        with pytest.raises(vfl.errors.OutputError, match="not a certificate"):
            Certificate.from_json(dataclasses.replace(shared, **change).to_json())

    def test_verification_recomputes_it(self, shared: Certificate) -> None:
        from tests.coordinator.shares import N, job
        from vfl.planning import plan

        planned = plan(job(3), N)
        key = SigningKey(Ed25519PrivateKey.generate())
        assert verify(shared.signed(key), plan=planned).ok
        cheaper = dataclasses.replace(shared, trust=shared.trust | {"price": 1.0})
        report = verify(cheaper.signed(key), plan=planned)
        assert not report.ok
        assert "'trust'" in str(report)
