"""Alignment of records by private set intersection, in a job and alone: models, stored indexes and failures."""

from __future__ import annotations

import os
import signal
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import vfl
from coordinator.alignment import align as coordinate
from coordinator.coordinator import agreed_records
from coordinator.rounds import Round
from parties.alignment import reading as aligned
from parties.alignment.index import Index, digest_of, place
from parties.loading import load
from parties.services.aligning import AlignmentService
from parties.session import Credentials
from vfl.crypto import psi
from vfl.crypto.alignment import Aligned, AlignmentProgress, IdsGreeting, Indexed, IndexRules, alignment_name, reveals
from vfl.crypto.identifiers import alignment_hash, in_order
from vfl.errors import (
    BudgetExceeded,
    ConsentRefused,
    DataError,
    FederationError,
    LedgerError,
    OutputError,
    PartyLost,
    SpecificationError,
    VersionMismatch,
)
from vfl.job import file as jobfile
from vfl.launch.sites.inprocess import InProcessTransport
from vfl.launch.train import resume
from vfl.network.messages import BeginAligning, Conclude, Greeting, ReadIds
from vfl.privacy.ledger import SqliteLedger
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 120
OWNED = {"bank": ["income"], "telco": ["calls"], "lab": ["dose"]}
SALT = bytes(range(32))
KEPT = IndexRules()


def people(n: int = N) -> pd.DataFrame:
    """Return one table of all columns, with text ids."""
    rng = np.random.default_rng(3)
    X = pd.DataFrame(rng.uniform(-1, 1, (n, 3)), columns=["income", "calls", "dose"])
    default = (X.income - X.calls + X.dose / 2 + rng.logistic(scale=0.2, size=n) > 0).astype(int)
    return X.assign(customer=[f"c{k:05}" for k in range(n)], default=default)


def frames(n: int = N, parties: int = 2, kept: float = 0.8) -> dict[str, pd.DataFrame]:
    """Return each party's part: some of the rows, in an order of its own."""
    whole = people(n)
    owned = dict(list(OWNED.items())[:parties])
    return {
        party: whole[["customer", *columns, *(["default"] if party == "bank" else [])]].sample(
            frac=kept, random_state=seed
        )
        for seed, (party, columns) in enumerate(owned.items())
    }


def joined(data: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the join that pandas computes."""
    first, *others = data.values()
    for other in others:
        first = first.merge(other, on="customer")
    return first


def job(parties: int = 2, **options: Any) -> vfl.Job:
    owned = dict(list(OWNED.items())[:parties])
    given: dict[str, Any] = {
        "partition": vfl.FeaturePartition(owned, label=("bank", "default")),
        "id": "customer",
        "bounds": {column: (-1, 1) for columns in owned.values() for column in columns},
        "penalty": vfl.L2(1e-2),
        "privacy": vfl.Privacy(epsilon=2.0, delta=1e-5, noise=vfl.SeededNoise(5)),
        "solver": vfl.SkGD(passes=3),
    }
    return vfl.Job(**given | options)


def train(spec: vfl.Job, data: Any, *, indexes: Any = None, **options: Any) -> vfl.Result:
    return vfl.train(spec, vfl.Source(data, index=indexes), **{"at": vfl.InProcess(num_cpus=1)} | options)


def files(folder: Path, data: dict[str, pd.DataFrame]) -> dict[str, str]:
    """Write the first party's data as Parquet and the other parties' as CSV."""
    paths = {}
    for party, frame in data.items():
        path = folder / f"{party}.{'csv' if paths else 'parquet'}"
        (frame.to_csv if paths else frame.to_parquet)(path, index=False)
        paths[party] = str(path)
    return paths


@pytest.fixture
def indexes(tmp_path: Path) -> dict[str, str]:
    return {party: str(tmp_path / "indexes" / party) for party in ("bank", "telco")}


class TestTraining:
    @pytest.mark.parametrize("parties", [2, 3])
    def test_aligned_training_equals_training_on_the_join_to_the_bit(self, parties: int) -> None:
        """Sums are exact, so a model with the same seeded noise does not depend on the order of records."""
        data, spec, seen = frames(parties=parties), job(parties), []
        result = train(spec, data, watch=seen.append)
        expected = train(replace(spec, id=None), joined(data))
        assert result.coef_.tobytes() == expected.coef_.tobytes()
        assert result.intercept_ == expected.intercept_
        (outcome,) = [event for event in seen if isinstance(event, Aligned)]
        assert outcome.n_records == result.certificate.n_records == len(joined(data)) < N
        assert dict(outcome.sizes) == {party: len(frame) for party, frame in data.items()}
        progress = [event for event in seen if isinstance(event, AlignmentProgress)]
        assert progress[-1].done == progress[-1].total == parties * sum(outcome.sizes.values())

    @pytest.mark.parametrize("parties", [2, pytest.param(3, marks=pytest.mark.slow)])
    def test_training_on_ray_gives_the_same_model(self, local_ray: Any, parties: int) -> None:
        data, spec, seen = frames(parties=parties), job(parties), []
        result = train(spec, data, at="ray", watch=seen.append)
        assert result.coef_.tobytes() == train(replace(spec, id=None), joined(data)).coef_.tobytes()
        assert [type(event) for event in seen[:1]] == [AlignmentProgress]
        assert sum(isinstance(event, Aligned) for event in seen) == 1

    @pytest.mark.slow
    def test_an_error_of_a_party_passes_through_ray_unchanged(self, local_ray: Any) -> None:
        data = frames()
        data["telco"] = pd.concat([data["telco"], data["telco"][:1]])
        with pytest.raises(DataError, match=r"^party 'telco'.*more than once"):
            train(job(), data, at="ray")

    @pytest.mark.faults
    def test_a_dead_party_on_ray_is_named_in_time(self, local_ray: Any, tmp_path: Path) -> None:
        data, pid = (
            frames(n=60_000),
            tmp_path / "pid",
        )  # the first step outlasts the way of its first event to this process

        def telco() -> pd.DataFrame:
            pid.write_text(str(os.getpid()), encoding="utf-8")
            return data["telco"]

        def kill(event: object) -> None:
            if isinstance(event, AlignmentProgress) and pid.exists():
                os.kill(int(pid.read_text(encoding="utf-8")), signal.SIGKILL)
                pid.unlink()

        with pytest.raises(PartyLost, match="'telco' died"):
            train(job(), {**data, "telco": telco}, at="ray", watch=kill)

    def test_one_frame_with_its_id_column(self) -> None:
        whole, spec = people(), job(3)
        expected = train(replace(spec, id=None), whole.drop(columns="customer"))
        assert train(spec, whole).coef_.tobytes() == expected.coef_.tobytes()
        two_names = replace(spec, id={"bank": "customer", "telco": "number", "lab": "customer"})
        assert train(two_names, whole.assign(number=whole.customer)).coef_.tobytes() == expected.coef_.tobytes()

    @pytest.mark.parametrize("precision", ["float64", "float32"])
    def test_different_id_names_and_every_storage(self, precision: str) -> None:
        data = frames()
        other = {**data, "telco": data["telco"].rename(columns={"customer": "subscriber"})}
        spec = job(precision=precision)
        named = replace(spec, id={"bank": "customer", "telco": "subscriber"})
        assert train(named, other).coef_.tobytes() == train(replace(spec, id=None), joined(data)).coef_.tobytes()

    def test_rows_outside_the_intersection_may_hold_any_cells(self) -> None:
        data = frames()
        common = set(joined(data).customer)
        data["telco"].loc[~data["telco"].customer.isin(common), "calls"] = np.nan
        train(job(), data)
        data["telco"].loc[data["telco"].customer.isin(common), "calls"] = np.nan
        with pytest.raises(DataError, match="column 'calls' has missing values"):
            train(job(), data)

    @pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
    @pytest.mark.parametrize("wrong", [{"calls": np.nan}, {"default": 7}, {"default": None}])
    @pytest.mark.parametrize("chosen", ["the row", "other rows"])
    def test_across_organisations_errors_do_not_depend_on_the_rows_that_others_choose(
        self, wrong: dict[str, Any], chosen: str, sparse: bool
    ) -> None:
        """Another party that joins with the ids of one record would learn of this record's cells."""
        partition = vfl.FeaturePartition({"bank": ["income"], "telco": ["calls"]}, ("telco", "default"))
        spec = job(partition=partition.changed(sparse=["telco"] * sparse))
        source: Any = people()[["customer", "calls", "default"]].astype(dict.fromkeys(wrong, object))
        source.loc[7, list(wrong)] = list(wrong.values())
        if sparse:
            matrix = scipy.sparse.csr_array(source[["calls", "default"]].to_numpy(float))
            source = source.customer.tolist(), matrix
        rows = np.array([9, 7, 3] if chosen == "the row" else [9, 4, 3])
        task, (column,) = spec.for_party("telco"), wrong
        own, _ = aligned.read_ids(task, aligned.open_for(task, source, ids=True))
        index = Index(SALT, alignment_hash(in_order(own, rows), SALT), digest_of(source, "telco"), rows)
        with pytest.raises(DataError, match=f"'{column}'"):
            load(task, source, index=index, own=Credentials())
        if chosen == "other rows":
            assert load(task, source, index=index).n_records == 3

    def test_integers_and_declared_kinds(self) -> None:
        numbered = {
            party: frame.assign(customer=frame.customer.str[1:].astype(int)) for party, frame in frames().items()
        }
        expected = train(replace(job(), id=None), joined(numbered)).coef_.tobytes()
        assert train(job(), numbered).coef_.tobytes() == expected
        text = {**numbered, "telco": numbered["telco"].assign(customer=frames()["telco"].customer.str[1:])}
        with pytest.raises(DataError, match=r"integer at 'bank'.*kind='integer'\) or 'text'"):
            train(job(), text)
        assert train(job(id=vfl.columns.Id("customer", kind="integer")), text).coef_.tobytes() == expected
        with pytest.raises(DataError, match="no id is common"):  # as text, '00012' differs from '12'
            train(job(id=vfl.columns.Id("customer", kind="text")), text)

    def test_ids_of_every_kind_of_source(self, tmp_path: Path) -> None:
        data = {party: frame.assign(customer=frame.customer.str[1:].astype(int)) for party, frame in frames().items()}
        telco = data["telco"]
        (tmp_path / "folder").mkdir()
        telco[:40].to_parquet(tmp_path / "folder" / "0.parquet", index=False)
        telco[40:].to_parquet(tmp_path / "folder" / "1.parquet", index=False)
        telco.to_feather(tmp_path / "telco.feather")
        arrays = {column: telco[column].to_numpy() for column in ("customer", "calls")}
        np.savez(tmp_path / "telco.npz", **arrays)
        expected = train(replace(job(), id=None), joined(data)).coef_.tobytes()
        kinds = {
            "a mapping": arrays,
            "a structured array": telco[["customer", "calls"]].to_records(index=False),
            "a function": lambda: telco,
            "a categorical column": telco.assign(customer=telco.customer.astype("category")),
            "a folder": tmp_path / "folder",
            "Feather": tmp_path / "telco.feather",
            "NumPy": tmp_path / "telco.npz",
        }
        for kind, source in kinds.items():
            assert train(job(), {**data, "telco": source}).coef_.tobytes() == expected, kind
        with pytest.raises(DataError, match=r"'telco', id column 'customer'.*float"):
            train(job(), {**data, "telco": telco[["customer", "calls"]].to_numpy()})

    def test_prediction_joins_by_id_where_there_is_one(self) -> None:
        data = frames(kept=1.0)
        result = train(job(), data)
        together = data["bank"].merge(data["telco"], on="customer")
        expected = result.decision_function(together)
        np.testing.assert_array_equal(result.decision_function(data), expected)
        same_order = {party: together[[*OWNED[party]]] for party in data}
        np.testing.assert_array_equal(result.decision_function(same_order), expected)
        with pytest.raises(DataError, match="'telco' have no id column"):
            result.decision_function({**data, "telco": together[["calls"]]})
        with pytest.raises(DataError, match="no such file"):
            result.decision_function({**data, "telco": "absent.csv"})
        with pytest.raises(DataError, match="party 'telco' lacks records"):
            result.decision_function({**data, "telco": data["telco"][:-1]})


def broken(change: Callable[[pd.DataFrame], pd.DataFrame]) -> dict[str, pd.DataFrame]:
    data = frames()
    return {**data, "telco": change(data["telco"].reset_index(drop=True))}


def with_id(row: int, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        cells = frame.customer.astype(object)
        cells[row] = value
        return frame.assign(customer=cells)

    return change


BAD_DATA = {
    "an id twice": (lambda f: pd.concat([f, f[:1]]), "an id occurs more than once; keep one row for each id"),
    "an id missing": (with_id(3, None), "an id is missing; drop or fill such rows in the source"),
    "an id empty": (with_id(3, "  "), "an id is empty; drop or fill such rows in the source"),
    "ids that collide": (
        lambda f: pd.concat([f, f[:1].assign(customer=f.customer[0] + " ")]),
        "ids that differ as written are equal once they are normalised",
    ),
    "fractions": (lambda f: f.assign(customer=np.arange(len(f)) + 0.5), "ids are of type float; read the id column as"),
    "no rows": (lambda f: f[:0], "there are no ids; check that the source has rows"),
}


class TestBadInput:
    @pytest.mark.parametrize(("change", "message"), BAD_DATA.values(), ids=BAD_DATA)
    def test_bad_ids_are_errors_at_their_owner(self, change: Callable[..., pd.DataFrame], message: str) -> None:
        data = broken(change)
        with pytest.raises(DataError) as caught:
            train(job(), data)
        assert str(caught.value).startswith(f"party 'telco', id column 'customer': {message}")
        assert not any(cell in str(caught.value) for cell in people().customer)

    def test_an_empty_intersection(self) -> None:
        with pytest.raises(DataError, match=r"party 'bank': no id is common.*check"):
            train(job(), broken(lambda f: f.assign(customer="x" + f.customer)))

    def test_a_misspelt_column(self) -> None:
        missing = r"party 'telco', the table: there is no column 'customer' \(did you mean 'custumer'\?\)"
        with pytest.raises(DataError, match=missing):
            train(job(), broken(lambda f: f.rename(columns={"customer": "custumer"})))

    def test_a_missing_feature_is_found_before_the_alignment(self) -> None:
        seen: list[Any] = []
        with pytest.raises(DataError, match="there is no column 'calls'"):
            train(job(), broken(lambda f: f.drop(columns="calls")), watch=seen.append)
        assert seen == []

    def test_a_missing_ledger_is_found_before_the_alignment(self, tmp_path: Path) -> None:
        spec = job(dataset="customers", privacy=vfl.Privacy(epsilon=1.0, delta=1e-6))
        seen: list[Any] = []
        with pytest.raises(LedgerError, match="there is no ledger at"):
            train(spec, frames(), ledger=tmp_path / "none.db", watch=seen.append)
        assert seen == []

    @pytest.mark.parametrize("delta", [None, 1e-6])
    def test_a_cap_that_no_number_of_records_satisfies_is_refused_before_the_alignment(
        self, tmp_path: Path, delta: float | None
    ) -> None:
        spec = job(dataset="customers", privacy=vfl.Privacy(epsilon=1.0, delta=delta))
        SqliteLedger(tmp_path / "book.db").set_cap("customers", epsilon=0.3, delta=1e-6)
        seen: list[Any] = []
        with pytest.raises(BudgetExceeded, match=r"asks for .*vfl ledger cap LEDGER"):
            train(spec, frames(), ledger=tmp_path / "book.db", watch=seen.append)
        assert seen == []
        SqliteLedger(tmp_path / "book.db").set_cap("customers", epsilon=1.5, delta=1e-6)
        train(spec, frames(), ledger=tmp_path / "book.db")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"id": "income"}, "the id column 'income' is also a feature or the label"),
            ({"id": "default"}, "the id column 'default' is also a feature or the label"),
            ({"id": {"bank": "customer"}}, "id names no column of party 'telco'"),
            (
                {"id": {"bank": "a", "telcoo": "b"}},
                r"id names 'telcoo', which is not a party \(did you mean 'telco'\?\)",
            ),
            ({"id": ""}, "id is the name of a column"),
            ({"id": 7}, "id is the name of a column"),
            ({"id": vfl.columns.Id(3, kind="text")}, "id is the name of a column"),
        ],
    )
    def test_jobs_that_cannot_be_aligned(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(SpecificationError, match=message):
            job(**options)

    def test_an_id_is_of_a_known_kind(self) -> None:
        with pytest.raises(SpecificationError, match="one of: integer, text"):
            vfl.columns.Id("customer", kind="number")

    def test_align_needs_an_id(self) -> None:
        with pytest.raises(SpecificationError, match="set id"):
            vfl.align(job(id=None), frames(), at="inprocess")
        with pytest.raises(SpecificationError, match="'telc', which is not a party"):
            vfl.align(job(), vfl.Source(frames(), index={"telc": "x"}), at="inprocess")
        with pytest.raises(SpecificationError, match="num_cpus must be"):
            vfl.align(job(), frames(), at=vfl.InProcess(num_cpus=0))

    def test_an_owner_is_asked_before_its_ids_are_read(self, tmp_path: Path) -> None:
        policy = tmp_path / "policy.toml"
        text = 'format = 1\njobs = ["*"]\nallow_non_private = true\ncolumns = ["calls"]\n[total]\nepsilon = 9\ndelta = 1e-3\n'
        policy.write_text(text, encoding="utf-8")
        data = {**frames(), "telco": str(tmp_path / "not there.csv")}
        with pytest.raises(ConsentRefused, match="'customer', which is not allowed"):
            train(job(), {**data, "telco": vfl.Source(data["telco"], policy)})
        with pytest.raises(ConsentRefused, match="it uses column 'customer'"):
            vfl.align(job(), vfl.Source(data, policy={"telco": policy}), at="inprocess")


class TestKept:
    def test_a_later_run_reuses_the_indexes(self, tmp_path: Path, indexes: dict[str, str]) -> None:
        data = frames()
        paths, spec, seen = files(tmp_path, data), job(), []
        outcome = vfl.align(spec, vfl.Source(paths, index=indexes), at="inprocess")
        assert (outcome.n_records, outcome.reused) == (len(joined(data)), False)
        left = [path for party in paths for path in (tmp_path / "indexes" / party).iterdir()]
        assert [path.suffix for path in left] == [".index", ".index"]
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in left)
        assert all(stat.S_IMODE(path.parent.stat().st_mode) == 0o700 for path in left)
        assert not any(cell.encode() in path.read_bytes() for path in left for cell in data["bank"].customer)
        result = train(spec, paths, indexes=indexes, watch=seen.append)
        assert [event for event in seen if isinstance(event, AlignmentProgress | Aligned)] == [
            replace(outcome, reused=True)
        ]
        assert result.coef_.tobytes() == train(replace(spec, id=None), joined(data)).coef_.tobytes()

    def test_a_changed_file_is_an_error_until_it_is_aligned_again(
        self, tmp_path: Path, indexes: dict[str, str]
    ) -> None:
        data = frames()
        paths, spec = files(tmp_path, data), job()
        vfl.align(spec, vfl.Source(paths, index=indexes), at="inprocess")
        os.utime(paths["telco"])
        train(spec, paths, indexes=indexes)  # only its time changed
        data["telco"].sample(frac=1, random_state=9).to_csv(paths["telco"], index=False)
        with pytest.raises(DataError, match=r"'telco'.*data changed"):
            train(spec, paths, indexes=indexes)
        vfl.align(spec, vfl.Source(paths, index=indexes), at="inprocess")
        expected = train(replace(spec, id=None), joined(data)).coef_.tobytes()
        assert train(spec, paths, indexes=indexes).coef_.tobytes() == expected

    @pytest.mark.parametrize("change", ["another cell", "another order"])
    def test_a_file_that_changes_between_alignment_and_training(self, tmp_path: Path, change: str) -> None:
        data = frames()
        paths = files(tmp_path, data)
        changed = data["telco"].assign(calls=0.25) if change == "another cell" else data["telco"][::-1]

        def meddle(event: object) -> None:
            if isinstance(event, Aligned):
                changed.to_csv(paths["telco"], index=False)

        with pytest.raises(DataError, match=r"'telco'.*data changed"):
            train(job(), paths, watch=meddle, output=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_a_file_that_changes_during_reading(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file changes at the last moment, after its digest was computed."""
        data = frames()
        paths, spec = files(tmp_path, data), job()
        checked = aligned.check_unchanged

        def meddle(*arguments: Any) -> None:
            checked(*arguments)
            if arguments[-1].party == "telco":
                data["telco"].assign(calls=0.25).to_csv(paths["telco"], index=False)

        monkeypatch.setattr(aligned, "check_unchanged", meddle)
        with pytest.raises(DataError, match=r"'telco', file '.*': the source changed"):
            train(spec, paths)

    def test_a_source_with_different_rows_at_each_reading(self) -> None:
        data, calls = frames(), []

        def telco() -> pd.DataFrame:
            calls.append(1)
            return data["telco"].sample(frac=1, random_state=len(calls))

        with pytest.raises(DataError, match=r"'telco'.*data changed"):
            train(job(), {**data, "telco": telco})

    def test_an_index_of_a_single_party_does_not_count(self, tmp_path: Path, indexes: dict[str, str]) -> None:
        paths = files(tmp_path, frames())
        vfl.align(job(), vfl.Source(paths, index=indexes), at="inprocess")
        elsewhere, seen = {**indexes, "telco": str(tmp_path / "elsewhere")}, []
        train(job(), paths, indexes=elsewhere, watch=seen.append)
        assert any(isinstance(event, AlignmentProgress) for event in seen)

    def test_a_damaged_index(self, tmp_path: Path, indexes: dict[str, str]) -> None:
        paths = files(tmp_path, frames())
        vfl.align(job(), vfl.Source(paths, index=indexes), at="inprocess")
        (index,) = (tmp_path / "indexes" / "telco").iterdir()
        index.write_bytes(index.read_bytes()[:-8])
        with pytest.raises(OutputError, match="damaged: remove it"):
            train(job(), paths, indexes=indexes)

    def test_the_place_of_the_index(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("VFL_INDEX", raising=False)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert place(None) == tmp_path / "vfl" / "alignments"
        assert place(str(tmp_path / "given")) == tmp_path / "given"
        monkeypatch.setenv("VFL_INDEX", str(tmp_path / "own"))
        assert place(str(tmp_path / "given")) == tmp_path / "own"

    def test_nothing_is_stored_when_nothing_is_to_be_kept(self, tmp_path: Path, indexes: dict[str, str]) -> None:
        train(job(), files(tmp_path, frames()), indexes=indexes)
        assert not (tmp_path / "indexes").exists()


class Cut(Exception):
    """Stands for a crash."""


def cut_at(kind: type, number: int, of: str | None = None) -> Callable[[object], None]:
    seen: list[object] = []

    def watch(event: object) -> None:
        if isinstance(event, kind) and (of is None or getattr(event, "stage", "").startswith(of)):
            seen.append(event)
        if len(seen) > number:
            raise Cut

    return watch


class TestResume:
    def test_an_interrupted_alignment_repeats_only_missing_pieces(
        self, tmp_path: Path, indexes: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = frames(n=3000)
        paths, spec, multiplied = files(tmp_path, data), job(), []
        products = psi._Multiplier._products

        def counted(multiplier: Any, piece: bytes) -> bytes:
            multiplied.append(len(piece) // psi.SIZE)
            return products(multiplier, piece)

        monkeypatch.setattr(psi._Multiplier, "_products", counted)
        owned = vfl.Source(paths, index=indexes)
        with pytest.raises(Cut):
            vfl.align(spec, owned, watch=cut_at(AlignmentProgress, 0, of="others"), at=vfl.InProcess(num_cpus=1))
        size = sum(map(len, data.values()))
        assert sum(multiplied) == size
        left = [path for folder in (tmp_path / "indexes").iterdir() for path in folder.iterdir()]
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in left)
        multiplied.clear()
        assert vfl.align(spec, owned, at=vfl.InProcess(num_cpus=1)).n_records == len(joined(data))
        assert size <= sum(multiplied) < size + 200  # the others' sets, and a sample of the stored pieces
        left = [path for folder in (tmp_path / "indexes").iterdir() for path in folder.iterdir()]
        assert [path.suffix for path in left] == [".index", ".index"]  # neither secret nor points

    def test_other_ids_start_a_new_alignment(self, tmp_path: Path, indexes: dict[str, str]) -> None:
        """Under the old secret they would be a second question to the other parties."""
        data = frames()
        paths, spec = files(tmp_path, data), job()
        owned = vfl.Source(paths, index=indexes)
        with pytest.raises(Cut):
            vfl.align(spec, owned, watch=cut_at(AlignmentProgress, 0, of="others"), at=vfl.InProcess(num_cpus=1))
        data["telco"] = data["telco"][10:]
        files(tmp_path, data)
        offered = {}
        for party, path in paths.items():
            keeping = IndexRules(indexes[party], later=True)
            side = AlignmentService(spec.for_party(party), path, keeping, parties=tuple(paths), salt=SALT)
            offered[party] = side.answer(ReadIds(), {})[0].pending
            side.close()
        assert offered["bank"] is not None
        assert offered["telco"] is None
        assert vfl.align(spec, owned, at=vfl.InProcess(num_cpus=1)).n_records == len(joined(data))
        left = [path for folder in (tmp_path / "indexes").iterdir() for path in folder.iterdir()]
        assert [path.suffix for path in left] == [".index", ".index"]

    def test_two_concurrent_alignments_both_succeed(self, tmp_path: Path, indexes: dict[str, str]) -> None:
        data = frames()
        paths, spec, found = files(tmp_path, data), job(), []
        owned = vfl.Source(paths, index=indexes)

        def another(event: AlignmentProgress) -> None:
            if not found and event.stage.startswith("others"):
                found.append(vfl.align(spec, owned, at=vfl.InProcess(num_cpus=1)))

        whole = vfl.align(spec, owned, watch=another, at=vfl.InProcess(num_cpus=1))
        assert whole.n_records == found[0].n_records == len(joined(data))

    @pytest.mark.parametrize("when", ["aligning", "before the first round", "later"])
    def test_a_resumed_run_equals_an_uninterrupted_one(
        self, tmp_path: Path, indexes: dict[str, str], when: str
    ) -> None:
        data = frames()
        paths, spec = files(tmp_path, data), job()
        watches = {"aligning": (AlignmentProgress, 1), "before the first round": (Round, 0), "later": (Round, 4)}
        with pytest.raises(Cut):
            train(spec, paths, indexes=indexes, output=tmp_path / "run", watch=cut_at(*watches[when]))
        seen: list[Any] = []
        again = resume(tmp_path / "run", paths, at="inprocess", watch=seen.append)
        (outcome,) = [event for event in seen if isinstance(event, Aligned)]
        assert outcome.reused is (when != "aligning")
        assert again.coef_.tobytes() == train(replace(spec, id=None), joined(data)).coef_.tobytes()

    def test_runs_on_data_in_memory_are_resumed(self, tmp_path: Path) -> None:
        """Indexes are kept in the user's own folder, which the parties share if no other place is named."""
        data, spec, again = frames(), job(), []
        with pytest.raises(Cut):
            train(spec, data, output=tmp_path / "run", watch=cut_at(Round, 2))
        resumed = resume(tmp_path / "run", data, at="inprocess", watch=again.append)
        assert isinstance(again[0], Aligned)
        assert resumed.coef_.tobytes() == train(replace(spec, id=None), joined(data)).coef_.tobytes()
        (tmp_path / "run" / "model.json").unlink()
        with pytest.raises(DataError, match="the data changed"):
            resume(tmp_path / "run", {**data, "telco": data["telco"][::-1]}, at="inprocess")

    @pytest.mark.parametrize("before", [False, True], ids=["its own", "one that was kept"])
    def test_a_run_keeps_its_order_when_the_data_are_aligned_again(
        self, tmp_path: Path, indexes: dict[str, str], before: bool
    ) -> None:
        paths, spec, first, again = files(tmp_path, frames()), job(), [], []
        if before:
            vfl.align(spec, vfl.Source(paths, index=indexes), at="inprocess")

        def cut(event: object) -> None:
            first.append(event)
            if isinstance(event, Round):
                raise Cut

        with pytest.raises(Cut):
            train(spec, paths, indexes=indexes, output=tmp_path / "run", watch=cut)
        vfl.align(spec, vfl.Source(paths, index=indexes), at="inprocess")
        resume(tmp_path / "run", paths, at="inprocess", watch=again.append)
        names = [[e.alignment for e in events if isinstance(e, Aligned)] for events in (first, again)]
        assert names[0] == names[1]

    def test_a_missing_index(self, tmp_path: Path, indexes: dict[str, str]) -> None:
        paths = files(tmp_path, frames())
        with pytest.raises(Cut):
            train(job(), paths, indexes=indexes, output=tmp_path / "run", watch=cut_at(Round, 2))
        for path in (tmp_path / "indexes" / "telco").iterdir():
            path.unlink()
        with pytest.raises(DataError, match="'telco' no longer holds the index"):
            resume(tmp_path / "run", paths, at="inprocess")

    def test_a_file_that_changed_before_the_run_was_resumed(self, tmp_path: Path, indexes: dict[str, str]) -> None:
        data = frames()
        paths = files(tmp_path, data)
        with pytest.raises(Cut):
            train(job(), paths, indexes=indexes, output=tmp_path / "run", watch=cut_at(Round, 2))
        data["bank"].assign(income=0.5).to_parquet(paths["bank"], index=False)
        with pytest.raises(DataError, match=r"'bank'.*data changed"):
            resume(tmp_path / "run", paths, at="inprocess")


class Recording(InProcessTransport):
    """Records the messages to the coordinator, and can change those of one party."""

    def __init__(self, parties: Any, lie: Callable[[Any], Any] = lambda said: said) -> None:
        super().__init__(parties)
        self._lie = lie
        self.shown: list[bytes] = []
        self.told: list[object] = []

    def collect(self, posted: Any) -> Any:
        found = [
            (self._lie(reply) if own.to == "telco" else reply, vectors)
            for own, (reply, vectors) in zip(posted, super().collect(posted), strict=True)
        ]
        self.told += [reply for reply, _ in found]
        self.shown += [vectors["points"].tobytes() for _, vectors in found if "points" in vectors]
        return found


def sides(data: dict[str, pd.DataFrame], parties: int = 2) -> dict[str, AlignmentService]:
    spec = job(parties)
    return {
        party: AlignmentService(spec.for_party(party), frame, KEPT, parties=tuple(data), salt=SALT)
        for party, frame in data.items()
    }


def different(said: Any) -> Any:
    """Return an Indexed with another hash; other messages as they are."""
    return replace(said, hash="0" * 64) if isinstance(said, Indexed) else said


def outcome_of(transport: Any, **options: Any) -> Aligned:
    work = coordinate(transport, **options)
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: Aligned = end.value
            return found


class TestProtocol:
    def test_the_common_order_is_the_blinded_one(self) -> None:
        """The common order is that of no file and not that of the ids, and differs each time."""
        data, orders = frames(parties=3), []
        for _ in range(2):
            parties = sides(data, 3)
            outcome_of(InProcessTransport(parties))
            ids = {p: data[p].customer.to_numpy()[side.concluded().rows].tolist() for p, side in parties.items()}
            assert ids["bank"] == ids["telco"] == ids["lab"]
            assert set(ids["bank"]) == set(joined(data).customer)
            orders.append(ids["bank"])
        assert sorted(orders[0]) == sorted(orders[1])
        assert len({tuple(orders[0]), tuple(orders[1]), tuple(sorted(orders[0]))}) == 3

    def test_the_coordinator_sees_blinded_points_and_no_salt(self) -> None:
        data = frames()
        transport = Recording(sides(data))
        outcome_of(transport)
        assert len(transport.shown) == 2
        hashes = {psi.hash_to_points([cell.encode()], SALT).tobytes() for cell in people().customer}
        for points in transport.shown:
            assert not hashes & {points[k : k + psi.SIZE] for k in range(0, len(points), psi.SIZE)}
        assert SALT.hex() not in repr(transport.told)
        assert repr(SALT) not in repr(transport.told)

    def test_different_hashes_are_detected(self) -> None:
        with pytest.raises(FederationError, match="the parties' aligned ids differ"):
            outcome_of(Recording(sides(frames()), different))
        with pytest.raises(DataError, match="aligned differently"):
            agreed_records({name: Greeting(__version__, 5, alignment=name) for name in ("bank", "telco")})

    def test_another_version_is_refused(self) -> None:
        with pytest.raises(VersionMismatch, match=r"party 'telco' runs vfl 0\.0\.0"):
            outcome_of(Recording(sides(frames()), lambda said: IdsGreeting("0.0.0", 1, "text", "")))

    def test_messages_in_wrong_order(self) -> None:
        side = sides(frames())["bank"]
        with pytest.raises(FederationError, match="before it read its ids"):
            side.answer(Conclude(), {"positions": np.arange(3)})
        greeting, _ = side.answer(ReadIds(), {})
        sizes = {"bank": greeting.n_ids, "telco": 5}
        with pytest.raises(FederationError, match="before its alignment began"):
            side.answer(Conclude(), {"positions": np.arange(3)})
        with pytest.raises(FederationError, match="before its records were aligned"):
            side.concluded()
        with pytest.raises(FederationError, match="it does not have"):
            side.answer(BeginAligning(alignment_name(SALT), sizes), {})
        for wrong in ({}, sizes | {"bank": 1}, sizes | {"lab": 5}, sizes | {"telco": 1 << 29}):
            with pytest.raises(FederationError, match=r"number of its ids|impossible numbers"):
                side.answer(BeginAligning(None, wrong), {})

    def test_an_index_file_holds_the_written_values(self, tmp_path: Path) -> None:
        index = Index(SALT, "ab", "cd", np.array([5, 2, 9]))
        index.write(tmp_path / "a.index")
        again = Index.read(tmp_path / "a.index")
        assert again is not None
        assert (again.salt, again.hash, again.source, again.rows.tolist()) == (SALT, "ab", "cd", [5, 2, 9])
        assert Index.read(tmp_path / "b.index") is None

    def test_the_number_of_index_files_is_limited(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each run that may be resumed leaves one, and the coordinator chooses the names of runs."""
        monkeypatch.setattr("parties.alignment.index.MOST_FILES", 2)
        index = Index(SALT, "ab", "cd", np.array([5, 2, 9]))
        for name in ("a", "b", "a"):
            index.write(tmp_path / f"{name}.index")
        with pytest.raises(OutputError, match="holds 2 files"):
            index.write(tmp_path / "c.index")


class TestSaid:
    def test_certificate_and_plan_state_the_disclosures_of_an_alignment(self) -> None:
        result = train(job(3), frames(parties=3))
        said, plan = result.certificate.who_sees_what, str(vfl.plan(job(3), 1000))
        assert "size of every party's set" in said["party"]
        assert "pair by pair" in said["coordinator"]
        assert "NOT protected by noise" in said["coordinator"]
        for who, what in reveals(3).items():
            assert what in said[who]
            assert f"{who}: {what}" in plan
        assert "pair by pair" not in str(vfl.plan(job(), 1000))
        sizes = {str(len(frame)) for frame in frames(parties=3).values()}
        assert not any(size in text for size in sizes for text in said.values())

    def test_the_plan_estimates_the_time(self) -> None:
        assert vfl.plan(job(), 10**6).alignment_seconds == psi.seconds([10**6] * 2, 1)
        assert vfl.plan(job(id=None), 10**6).alignment_seconds == 0.0
        assert "align" not in str(vfl.plan(job(id=None), 100))

    @pytest.mark.parametrize("named", ["customer", {"bank": "customer", "telco": "subscriber"}])
    def test_a_job_round_trips_and_its_digest_counts_the_id(self, tmp_path: Path, named: Any) -> None:
        spec = job(id=vfl.columns.Id(named, kind="text"))
        jobfile.write(spec, tmp_path / "job.toml")
        again, _ = jobfile.read(tmp_path / "job.toml")
        assert again == spec
        assert again.ids == spec.ids == {"bank": ("customer",), "telco": spec.ids["telco"]}
        assert len({spec.digest, job(id=None).digest, job().digest}) == 3
        assert job(id=dict.fromkeys(("telco", "bank"), "customer")) == job()
