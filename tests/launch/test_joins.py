"""Alignment of ids that repeat at the label party, and left joins: indexes, predictions, and participants that lie."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import vfl
from coordinator.prediction import PredictionOutcome, apply
from coordinator.rounds import Round
from parties.alignment.index import Index
from parties.alignment.reading import AlignedSource, ChosenRows, check_unchanged, open_for, read_ids
from parties.prediction import NewRows, permitted
from parties.services.aligning import AlignmentService
from parties.services.predicting import PredictionService
from parties.sources.opening import open_source
from tests.coordinator.organisations import federation
from tests.launch.test_alignment import outcome_of
from vfl.crypto import buckets, psi
from vfl.crypto.alignment import Aligned, IdsGreeting, Indexed, IndexRules, reveals
from vfl.errors import DataError, FederationError, SpecificationError
from vfl.job import file as jobfile
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.train import resume
from vfl.network.messages import Applied
from vfl.network.shards import LocalGroup

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARTITION = vfl.FeaturePartition({"bank": ["income"], "telco": ["calls"]}, label=("bank", "default"))
SALT = bytes(range(32))
COUNTS = [3, 1, 5, 2, 1, 4, 1, 2]
"""Number of rows of each person at the bank."""


def job(most_rows: int = 5, join: str = "inner", **options: Any) -> vfl.Job:
    given: dict[str, Any] = {
        "partition": PARTITION,
        "id": vfl.columns.Id("customer", most_rows=most_rows, join=join),
        "bounds": {"income": (-1, 1)},
        "columns": {"calls": vfl.columns.Numeric((-1, 1), fill=0.0)},
        "penalty": vfl.L2(1e-2),
        "privacy": vfl.Privacy(epsilon=2.0, delta=1e-5, noise=vfl.SeededNoise(5)),
        "solver": vfl.SkGD(passes=3),
    }
    return vfl.Job(**given | options)


def data(*, several: bool = True, lacking: tuple[int, ...] = (2, 6), more: int = 3) -> dict[str, pd.DataFrame]:
    """Return the bank's rows in random order, and the telco's, which lacks some persons and has others."""
    rng = np.random.default_rng(2)
    person = np.repeat(np.arange(len(COUNTS)), COUNTS if several else 1)
    bank = pd.DataFrame(
        {
            "customer": [f"c{k}" for k in person],
            "income": rng.uniform(-1, 1, len(person)),
            "default": rng.integers(0, 2, len(person)),
        }
    )
    held = [k for k in range(len(COUNTS) + more) if k not in lacking]
    telco = pd.DataFrame({"customer": [f"c{k}" for k in held], "calls": rng.uniform(-1, 1, len(held))})
    return {"bank": bank.sample(frac=1, random_state=1), "telco": telco.sample(frac=1, random_state=2)}


def sides(spec: vfl.Job, tables: Any) -> dict[str, AlignmentService]:
    return {
        party: AlignmentService(spec.for_party(party), table, IndexRules(), parties=tuple(tables), salt=SALT)
        for party, table in tables.items()
    }


class Lying(InProcessTransport):
    """Transport that replaces answers of parties, and vectors that the coordinator sends."""

    def __init__(
        self, parties: Any, answer: Callable[..., Any] | None = None, sent: Callable[..., Any] | None = None
    ) -> None:
        super().__init__(parties)
        self._answer, self._sent = answer, sent

    def post(self, party: str, message: Any, vectors: Any = None, **options: Any) -> Any:
        if self._sent is not None and vectors and "positions" in vectors:
            vectors = {"positions": self._sent(party, np.array(vectors["positions"]))}
        return super().post(party, message, *([] if vectors is None else [vectors]), **options)

    def collect(self, posted: Any) -> list[Any]:
        found = super().collect(posted)
        if self._answer is None:
            return found
        return [(self._answer(own.to, reply), vectors) for own, (reply, vectors) in zip(posted, found, strict=True)]


def aligned(spec: vfl.Job, tables: Any) -> tuple[Aligned, dict[str, Index]]:
    parties = sides(spec, tables)
    outcome = outcome_of(InProcessTransport(parties), base=spec.base(tuple(tables)))
    return outcome, {party: side.concluded() for party, side in parties.items()}


def ids_of(table: pd.DataFrame, index: Index) -> list[str | None]:
    ids = table.customer.to_list()
    return [ids[row] if row >= 0 else None for row in index.rows]


class TestRepeatedIds:
    def test_parties_agree_on_persons_and_the_label_party_keeps_their_rows(self) -> None:
        tables = data()
        outcome, indexes = aligned(job(), tables)
        bank, telco = indexes["bank"], indexes["telco"]
        people = ids_of(tables["telco"], telco)
        assert outcome.n_records == len(people) == 6
        assert dict(outcome.sizes) == {"bank": len(COUNTS), "telco": 9}
        assert telco.person is None
        assert bank.person is not None
        assert [people[k] for k in bank.person] == ids_of(tables["bank"], bank)
        assert np.bincount(bank.person).tolist() == [COUNTS[int(str(own)[1:])] for own in people]
        for k in range(len(people)):
            assert (np.diff(bank.rows[bank.person == k]) > 0).all()
        assert bank.said() == telco.said()
        assert bank.hash != telco.hash

    def test_the_set_does_not_depend_on_the_numbers_of_rows(self) -> None:
        """Only ids cross, so parties and coordinator see the same for one row and for many."""
        told = []
        for several in (True, False):
            said: list[Any] = []
            parties = sides(job(), data(several=several))
            outcome_of(Lying(parties, lambda _, reply, said=said: said.append(reply) or reply))
            told.append([own for own in said if isinstance(own, IdsGreeting)])
        assert told[0] == told[1]

    def test_rows_beyond_the_declared_number_are_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        tables = data()
        with caplog.at_level(logging.WARNING, "vfl.parties"):
            outcome, indexes = aligned(job(2), tables)
        assert "some ids have more than 2 rows" in caplog.text
        assert outcome.n_records == 6
        person = indexes["bank"].person
        assert person is not None
        people = ids_of(tables["telco"], indexes["telco"])
        assert np.bincount(person).tolist() == [min(2, COUNTS[int(str(own)[1:])]) for own in people]
        kept = {own for own, row in zip(ids_of(tables["bank"], indexes["bank"]), indexes["bank"].rows, strict=True)}
        other = tables["bank"].copy()
        other.loc[other.customer == "c5", "customer"] = "c0"
        again = set(ids_of(other, aligned(job(2), tables | {"bank": other})[1]["bank"]))
        assert kept - again == {"c5"}

    def test_repeated_ids_of_another_party_are_an_error(self) -> None:
        tables = data()
        tables["telco"] = pd.concat([tables["telco"], tables["telco"].head(1)])
        with pytest.raises(DataError, match=r"party 'telco'.*occurs more than once"):
            aligned(job(), tables)
        with pytest.raises(DataError, match=r"party 'bank'.*occurs more than once"):
            aligned(job(1), data())

    def test_an_index_file_keeps_persons_and_absence(self, tmp_path: Path) -> None:
        person = np.array([0, 0, 1])
        for number, index in enumerate(
            (
                Index(SALT, "ab", "cd", np.array([5, 2, 9]), person, "ef"),
                Index(SALT, "ab", "cd", np.array([5, -1, -1]), None, "gh"),
            )
        ):
            path = tmp_path / f"{number}.index"
            index.write(path)
            again = Index.read(path)
            assert again is not None
            assert (again.rows.tolist(), again.hash, again.common) == (index.rows.tolist(), "ab", index.agreed)
            assert (again.person is None) == (index.person is None)
            assert again.said() == index.said()
        assert again.person is None
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(vfl.errors.OutputError, match="damaged"):
            Index.read(path)

    @pytest.mark.parametrize("join", ["inner", "left"])
    def test_a_changed_source_is_refused(self, join: str) -> None:
        spec, tables = job(join=join), data()
        _, indexes = aligned(spec, tables)
        for party, index in indexes.items():
            task = spec.for_party(party)
            ids, _ = read_ids(task, open_for(task, tables[party], ids=True))
            check_unchanged(index, "", list(ids), task)
            row = int(index.rows.max())
            with pytest.raises(DataError, match="changed after"):
                check_unchanged(index, "", [*ids[:row], b"new", *ids[row + 1 :]], task)

    def test_jobs_with_other_rules_keep_other_indexes(self, tmp_path: Path) -> None:
        """An index of one join is not that of another on the same files."""
        paths = files(tmp_path, data())
        given = vfl.Source(paths, index={party: str(tmp_path / party) for party in paths})
        names, numbers = set(), []
        for spec in (job(), job(2), job(join="left")):
            found, again = (vfl.align(spec, given, at=vfl.InProcess(num_cpus=1)) for _ in range(2))
            assert not found.reused
            assert again.reused
            assert (again.alignment, again.n_records) == (found.alignment, found.n_records)
            names.add(found.alignment)
            numbers.append(found.n_records)
        assert len(names) == 3
        assert numbers == [6, 6, 8]


class TestLeftJoins:
    def test_all_ids_of_the_label_party_are_taken(self) -> None:
        for several in (True, False):
            tables = data(several=several)
            outcome, indexes = aligned(job(5 if several else 1, "left"), tables)
            people = [own for k, own in enumerate(ids_of(tables["bank"], indexes["bank"])) if k == 0 or several]
            person = indexes["bank"].person
            order = np.arange(len(COUNTS)) if person is None else np.unique(person, return_index=True)[1]
            own = [ids_of(tables["bank"], indexes["bank"])[k] for k in order]
            assert ids_of(tables["telco"], indexes["telco"]) == [None if k in ("c2", "c6") else k for k in own]
            assert outcome.n_records == len(COUNTS)
            assert dict(outcome.sizes) == {}
            assert people

    def test_what_is_said_does_not_depend_on_presence(self) -> None:
        """Two worlds that differ in one person's presence have one outcome and equal public texts."""
        outcomes = []
        for lacking in ((2, 6), (2,), tuple(range(8))):
            outcome, indexes = aligned(job(join="left"), data(lacking=lacking))
            outcomes.append((outcome, str(outcome), indexes["telco"].said(), indexes["bank"].said()))
        assert outcomes[0] == outcomes[1] == outcomes[2]

    def test_patterns_of_three_parties(self) -> None:
        rng = np.random.default_rng(0)
        points = {p: rng.integers(0, 256, (n, 32), dtype=np.uint8) for p, n in (("a", 5), ("b", 4), ("c", 3))}
        points["b"][:2], points["c"][:1], points["c"][1] = points["a"][1:3], points["a"][4:], points["b"][0]
        found = psi.intersect(points, "a")
        assert sorted(found["a"].tolist()) == [0, 1, 2, 3, 4]
        place = {int(k): i for i, k in enumerate(found["a"])}
        assert {k: int(found["b"][i]) for k, i in place.items()} == {0: -1, 1: 0, 2: 1, 3: -1, 4: -1}
        assert {k: int(found["c"][i]) for k, i in place.items()} == {0: -1, 1: 1, 2: -1, 3: -1, 4: 0}
        inner = psi.intersect(points)
        assert {name: own.tolist() for name, own in inner.items()} == {"a": [1], "b": [0], "c": [1]}

    def test_buckets_give_the_same(self) -> None:
        rng = np.random.default_rng(0)
        a = rng.integers(0, 256, (500, 32), dtype=np.uint8)
        points = {"a": a, "b": np.concatenate([a[::3], rng.integers(0, 256, (99, 32), dtype=np.uint8)])}
        for base in (None, "a", "b"):
            expected = psi.intersect(points, base)
            found = psi.joined({name: buckets.Buckets(own) for name, own in points.items()}, base)
            assert {name: own.tolist() for name, own in found.items()} == {k: v.tolist() for k, v in expected.items()}

    def test_certificate_and_plan_state_the_disclosures(self) -> None:
        plan = str(vfl.plan(job(1, "left"), 100))
        for who, what in reveals(2, "left").items():
            assert f"{who}: {what}" in plan
        assert reveals(2, "left") != reveals(2)

    def test_a_job_round_trips(self, tmp_path: Path) -> None:
        spec = job(7, "left")
        jobfile.write(spec, tmp_path / "job.toml")
        again, _ = jobfile.read(tmp_path / "job.toml")
        assert again == spec
        assert len({spec.digest, job(7).digest, job(1, "left").digest, job(1).digest}) == 4
        with pytest.raises(SpecificationError, match="join must be one of: inner, left"):
            vfl.columns.Id("customer", join="outer")


class TestLies:
    """A coordinator or a party that says something else than the protocol."""

    @pytest.mark.parametrize(
        ("party", "lie"),
        [
            ("telco", lambda p: p[:-1]),
            ("telco", lambda p: np.append(p, -1)),
            ("telco", lambda p: np.where(p < 0, p.max(), p)),
            ("telco", lambda p: np.where(p < 0, -2, p)),
            ("telco", lambda p: np.where(p == p.max(), 1000, p)),
            ("bank", lambda p: np.where(p == 0, -1, p)),
            ("bank", lambda p: p[:-1]),
        ],
    )
    def test_positions_of_a_left_join(self, party: str, lie: Callable[..., Any]) -> None:
        spec = job(join="left")
        transport = Lying(sides(spec, data()), sent=lambda to, own: lie(own) if to == party else own)
        with pytest.raises(FederationError, match=r"was sent (another number of )?positions"):
            outcome_of(transport, base="bank")

    def test_a_coordinator_that_joins_in_another_way_than_the_job(self) -> None:
        with pytest.raises(FederationError, match="positions that are not in its set"):
            outcome_of(InProcessTransport(sides(job(), data())), base="bank")
        with pytest.raises(FederationError, match="another number of positions"):
            outcome_of(InProcessTransport(sides(job(join="left"), data())))

    @pytest.mark.parametrize("join", ["inner", "left"])
    def test_parties_that_state_other_records(self, join: str) -> None:
        spec = job(join=join)
        base = spec.base(("bank", "telco"))

        def more(_: str, said: Any) -> Any:
            return replace(said, n_records=said.n_records + 1) if isinstance(said, Indexed) else said

        with pytest.raises(FederationError, match="another number of records"):
            outcome_of(Lying(sides(spec, data()), more), base=base)
        with pytest.raises(FederationError, match="aligned ids differ"):
            outcome_of(
                Lying(sides(spec, data()), lambda to, said: more(to, said) if to == "telco" else said), base=base
            )

    def test_a_kept_index_of_another_number_of_records(self) -> None:
        kept = Indexed("a", "b", 5)

        def lie(_: str, said: Any) -> Any:
            return replace(said, kept=kept) if isinstance(said, IdsGreeting) else said

        assert outcome_of(Lying(sides(job(), data()), lie)).reused
        with pytest.raises(FederationError, match="holds an index of another number of records"):
            outcome_of(Lying(sides(job(join="left"), data()), lie), base="bank")


class TestAbsentRows:
    def test_cells_of_absent_rows_are_missing(self, tmp_path: Path) -> None:
        """For every kind of source, records that the party lacks have missing cells, of the column's type."""
        frame = pd.DataFrame({"x": [1.5, 2.5, 3.5], "t": ["a", "b", "c"]})
        frame.to_csv(tmp_path / "a.csv", index=False)
        frame.to_parquet(tmp_path / "a.parquet", index=False)
        rows = np.array([2, -1, 0, -1, -1, -1, -1, 1])
        for source in (frame, str(tmp_path / "a.csv"), str(tmp_path / "a.parquet")):
            opened = open_source(source, {"x": "number", "t": "text"}, party="telco")
            made = AlignedSource.of(opened, ChosenRows(rows, 3), source)
            cells = [cell for batch in made.batches(["x", "t"], 2) for cell in batch.to_pylist()]
            assert isinstance(made, AlignedSource)
            ordered = [cells[k] for k in made.order]
            expected = [None if row < 0 else (frame.x[row], frame.t[row]) for row in rows]
            assert [None if cell["x"] is None else (float(cell["x"]), cell["t"]) for cell in ordered] == expected
            assert all(cell["t"] is None for cell in ordered if cell["x"] is None)
            assert made.at_most == len(cells) == len(rows)

    def test_repeated_rows(self) -> None:
        frame = pd.DataFrame({"x": [1.0, 2.0]})
        opened = open_source(frame, {"x": "number"}, party="telco")
        made = AlignedSource.of(opened, ChosenRows(np.array([1, 1]), 2), frame)
        assert [cell["x"] for batch in made.batches() for cell in batch.to_pylist()] == [2.0, 2.0]

    def test_rows_of_a_sparse_matrix_have_no_entries(self) -> None:
        matrix = scipy.sparse.csr_array(np.array([[1.0, 0.0], [0.0, 2.0]]))
        opened = open_source(matrix, {"x": "number", "y": "number"}, party="telco")
        made = AlignedSource.of(opened, ChosenRows(np.array([-1, 1, 0, -1]), 2), matrix)
        assert made.matrix.toarray().tolist() == [[0, 0], [0, 2], [1, 0], [0, 0]]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def results() -> dict[str, vfl.Result]:
    """Train in this process on both joins."""
    return {join: vfl.train(job(join=join), data(), at=vfl.InProcess(num_cpus=1)) for join in ("inner", "left")}


def by_hand(result: vfl.Result, tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the bank's rows in their order, with the margins that pandas' merge gives."""
    merged = tables["bank"].merge(tables["telco"], on="customer", how=result.job.join).fillna(0.0)
    known = merged.customer.isin(tables["telco"].customer)
    b = dict(result.original)
    own = merged.income * b["income"] + merged.calls * b["calls"] + b["(intercept)"]
    return merged.assign(margin=own + known * b.get("known at telco", 0.0))


class Cut(Exception):
    """The end of a run before its time."""


class TestEngines:
    """Sums are exact, so the model does not depend on the order of persons."""

    @pytest.mark.parametrize("join", ["inner", "left"])
    def test_training_does_not_depend_on_the_alignment(self, results: dict[str, vfl.Result], join: str) -> None:
        again = vfl.train(job(join=join), data(), at=vfl.InProcess(num_cpus=1))
        assert again.coef_.tobytes() == results[join].coef_.tobytes()
        assert again.certificate.n_records == (6 if join == "inner" else 8)

    def test_ray_trains_and_predicts_the_same(self, local_ray: Any, results: dict[str, vfl.Result]) -> None:
        tables, result = data(), results["left"]
        found = vfl.train(result.job, tables, at=vfl.Ray(num_cpus=1))
        assert found.coef_.tobytes() == result.coef_.tobytes()
        expected = vfl.predict(result, tables)
        there = vfl.predict(result, tables, at=vfl.Ray(num_cpus=1))
        assert there.scores.tobytes() == expected.scores.tobytes()
        assert (there.ids, there.rows, there.n_joined) == (expected.ids, expected.rows, expected.n_joined)

    @pytest.mark.slow
    def test_shards_on_ray_predict_the_same(
        self, local_ray: Any, results: dict[str, vfl.Result], tmp_path: Path
    ) -> None:
        tables = data()
        paths = files(tmp_path, tables)
        for result in results.values():
            found = vfl.predict(result, paths, at=vfl.Ray(num_cpus=1, shards=2))
            assert found.scores.tobytes() == vfl.predict(result, tables).scores.tobytes()
            measured = vfl.evaluate(result, paths, at=vfl.Ray(num_cpus=1, shards=2))
            assert str(measured) == str(vfl.evaluate(result, tables))

    def test_organisations_train_and_predict_the_same(self, results: dict[str, vfl.Result], tmp_path: Path) -> None:
        tables = data()
        with federation(tmp_path) as joined:
            for party, table in tables.items():
                joined.start(party, table)
            for result in results.values():
                assert vfl.train(result.job, at=joined.place).coef_.tobytes() == result.coef_.tobytes()
                expected, found = vfl.predict(result, tables), vfl.predict(result, at=joined.place)
                assert found.scores.tobytes() == expected.scores.tobytes()
                assert (found.ids, found.rows) == (expected.ids, expected.rows)
                assert str(vfl.evaluate(result, at=joined.place)) == str(vfl.evaluate(result, tables))

    @pytest.mark.parametrize("join", ["inner", "left"])
    @pytest.mark.parametrize("memory", [False, True], ids=["files", "memory"])
    def test_a_resumed_run_keeps_rows_and_order(
        self, results: dict[str, vfl.Result], tmp_path: Path, join: str, memory: bool
    ) -> None:
        tables: Any = data()
        given = tables if memory else files(tmp_path, tables)

        def cut(event: object) -> None:
            if isinstance(event, Round) and event.number == 2:
                raise Cut

        with pytest.raises(Cut):
            vfl.train(job(join=join), given, at="inprocess", output=tmp_path / "run", watch=cut)
        seen: list[Any] = []
        again = resume(tmp_path / "run", given, at="inprocess", watch=seen.append)
        assert [event.reused for event in seen if isinstance(event, Aligned)] == [True]
        assert again.coef_.tobytes() == results[join].coef_.tobytes()


def files(folder: Path, tables: dict[str, pd.DataFrame]) -> dict[str, str]:
    paths = {party: str(folder / f"{party}.parquet") for party in tables}
    for party, frame in tables.items():
        frame.to_parquet(paths[party], index=False)
    return paths


class TestPredictions:
    """Every row of the label party gets a prediction."""

    @pytest.mark.parametrize("join", ["inner", "left"])
    @pytest.mark.parametrize("shards", [1, 3])
    def test_rows_take_the_columns_of_their_person(
        self, results: dict[str, vfl.Result], join: str, shards: int
    ) -> None:
        tables, result = data(), results[join]
        found, expected = vfl.predict(result, tables, at=vfl.InProcess(shards=shards)), by_hand(result, tables)
        assert found.ids == tuple(expected.customer)
        np.testing.assert_allclose(found.scores, expected.margin, atol=1e-12)
        assert found.rows == ({"bank": 8, "telco": 9} if join == "inner" else {})
        assert found.unmatched == ({"bank": 2, "telco": 3} if join == "inner" else {})
        np.testing.assert_array_equal(result.decision_function(left(tables)), vfl.predict(result, left(tables)).scores)

    @pytest.mark.parametrize("join", ["inner", "left"])
    def test_measures_are_means_over_persons(self, results: dict[str, vfl.Result], join: str) -> None:
        tables, result = data(), results[join]
        expected = by_hand(result, tables)
        right = (expected.margin > 0) == (expected.default > 0)
        for shards in (1, 2):
            found = vfl.evaluate(result, tables, at=vfl.InProcess(shards=shards), threshold=0.5)
            assert found.n_records == (6 if join == "inner" else 8)
            mean = right.groupby(expected.customer).mean().mean()
            assert found.measures["accuracy"].value == pytest.approx(mean, abs=2e-3)

    def test_the_services_give_the_same(self, results: dict[str, vfl.Result]) -> None:
        """Over an alignment, other parties send an entry per person."""
        tables = data()
        for result in results.values():
            expected = vfl.predict(result, tables)
            found, told = services(result, tables)
            assert found.scores.tobytes() == expected.scores.tobytes()
            assert tuple(found.ids or ()) == expected.ids
            assert {said.n_records for said in told.values()} == {6 if result.job.join == "inner" else 8}
            assert told["telco"].n_rows is None
            assert told["bank"].n_rows == len(expected)
            _, told = services(result, tables, measured=True)
            assert told["bank"].n_rows is None

    @pytest.mark.parametrize(
        ("party", "change", "why"),
        [
            ("telco", {"n_rows": 13}, "several rows of a record"),
            ("bank", {"n_rows": 5}, "impossible number"),
            ("bank", {"n_rows": 1 << 60}, "impossible number"),
            ("bank", {"n_rows": 14}, "unexpected size"),
            ("telco", {"n_records": 7}, "different number of records"),
        ],
    )
    def test_parties_that_state_other_rows(
        self, results: dict[str, vfl.Result], party: str, change: dict[str, int], why: str
    ) -> None:
        def lie(to: str, said: Any) -> Any:
            return replace(said, **change) if isinstance(said, Applied) and to == party else said

        with pytest.raises((FederationError, DataError), match=why):
            services(results["inner"], data(), lie)

    def test_rows_of_a_job_without_repeats_are_refused(self) -> None:
        result = vfl.train(job(1), data(several=False), at=vfl.InProcess(num_cpus=1))

        def lie(to: str, said: Any) -> Any:
            return replace(said, n_rows=9) if isinstance(said, Applied) and to == "bank" else said

        with pytest.raises(FederationError, match="several rows of a record"):
            services(result, data(several=False), lie)


def left(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return tables in which no party lacks an id of the bank."""
    known = tables["bank"][tables["bank"].customer.isin(tables["telco"].customer)]
    return tables | {"bank": known}


def services(
    result: vfl.Result, tables: Any, lie: Callable[..., Any] | None = None, *, measured: bool = False
) -> tuple[PredictionOutcome | vfl.Findings, dict[str, Applied]]:
    """Predict over an alignment of services, as on Ray and across organisations."""
    parts, parties, told = {party: result.part(party) for party in tables}, tuple(tables), dict[str, Applied]()
    asked = {
        party: PredictionService(
            part,
            tables[party],
            parties=parties,
            permission=permitted(part, tables[party]),
            measured=measured,
            aligning=AlignmentService(
                result.job.for_party(party).features, tables[party], IndexRules(), parties=parties, salt=SALT
            ),
            rows=LocalGroup([NewRows(part, labelled=measured and party == "bank") for _ in range(2)]),
        )
        for party, part in parts.items()
    }

    def note(to: str, said: Any) -> Any:
        said = said if lie is None else lie(to, said)
        if isinstance(said, Applied):
            told[to] = said
        return said

    w = result.w if measured else None
    work = apply(Lying(asked, note), result.job, aligns=True, ids=True, threshold=0.0, w=w)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, told
