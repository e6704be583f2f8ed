"""Jobs and their files: errors are found before anything starts, and valid jobs survive writing and reading."""

from __future__ import annotations

import dataclasses
import json
import re
import reprlib
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl
from vfl.errors import DataError, JobFileError, PartitionError, PrivacyError, SpecificationError
from vfl.job import file as jobfile
from vfl.job.site import Site, resolve
from vfl.planning import plan as make_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PARTIES = {"bank": ["income", "age"], "telco": ["calls", "data_mb"]}
LABEL = ("bank", "default")
BOUNDS = {"income": (0, 2e5), "age": (18, 100), "calls": (0, 500), "data_mb": (0, 1e5)}


def partition(**options: Any) -> vfl.FeaturePartition:
    return vfl.FeaturePartition(**({"parties": PARTIES, "label": LABEL} | options))


def job(**options: Any) -> vfl.Job:
    given = {"partition": partition(), "bounds": BOUNDS, "privacy": vfl.Privacy(epsilon=1.0)}
    return vfl.Job(**(given | options))


def train_nothing(spec: Any = None, **options: Any) -> vfl.Result:
    return vfl.train(job() if spec is None else spec, {}, **options)


def bounds_without(column: str) -> dict[str, tuple[float, float]]:
    return {c: b for c, b in BOUNDS.items() if c != column}


def solved_by(**options: Any) -> vfl.Plan:
    return make_plan(job(solver=vfl.SkGD().changed(**options)), 100)


BAD_JOBS: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "a bound of one of two columns of a name": (
        lambda: job(
            partition=partition(parties={"bank": ["income", "age"], "telco": ["calls", "data_mb", "age"]}),
        ),
        PartitionError,
        ("'age'", "'bank'", "say which, 'bank.age' or 'telco.age'"),
    ),
    "two parties of one name": (
        lambda: partition(parties=[("bank", ["a"]), ("bank", ["b"])]),
        PartitionError,
        ("'bank'", "every party needs a name of its own"),
    ),
    "label at no party": (
        lambda: partition(label=("bnk", "default")),
        PartitionError,
        (
            "'default'",
            "'bnk'",
            "did you mean 'bank'?",
            "a party that holds the label alone is listed with no columns, []",
        ),
    ),
    "label among the features": (
        lambda: partition(label=("bank", "age")),
        PartitionError,
        ("'age'", "'bank'", "take it out of the features, or rename one"),
    ),
    "blocks that miss a column": (
        lambda: partition(blocks={"bank": [["income"]], "telco": [["calls", "data_mb"]]}),
        PartitionError,
        ("'age'", "'bank'", "blocks must cover all columns"),
    ),
    "blocks and block_size": (
        lambda: make_plan(
            job(
                partition=partition(blocks={"bank": [["age", "income"]], "telco": [["calls", "data_mb"]]}),
                solver=vfl.SkGD(block_size=2),
            ),
            100,
        ),
        PartitionError,
        ("leave block_size out, or leave the blocks out",),
    ),
    "bounds of a name one letter off": (
        lambda: job(bounds=BOUNDS | {"incme": (0, 1)}),
        SpecificationError,
        ("'incme'", "did you mean 'income'?", "spell it alike in the partition, the declarations and the data"),
    ),
    "reversed bounds": (
        lambda: job(bounds=BOUNDS | {"age": (100, 18)}),
        SpecificationError,
        ("'age'", "write [18, 100]"),
    ),
    "infinite bounds": (
        lambda: job(bounds=BOUNDS | {"age": (18, float("inf"))}),
        SpecificationError,
        ("'age'", "declare a range, to which values are clamped"),
    ),
    "a missing bound": (
        lambda: job(bounds=bounds_without("age")),
        SpecificationError,
        (
            "'age'",
            "age = [LOW, HIGH] under [bounds]",
            "release them with vfl.releases.private_bounds",
        ),
    ),
    "a missing bound, unscaled and private": (
        lambda: job(bounds=bounds_without("age"), scaling="none"),
        PrivacyError,
        ("'age'", "[bounds]", "M_j} in Privacy, or column = M_j under [privacy.smoothness] of a job file)"),
    ),
    "an unbounded label under squared loss": (
        lambda: job(loss="squared"),
        PrivacyError,
        ("declare bounds for the label 'default', or give the solver an explicit clip",),
    ),
    "a fill outside the bounds": (
        lambda: job(columns={"age": vfl.Numeric(fill=1000)}),
        SpecificationError,
        ("'age'", "fill 1000 lies outside the bounds [18, 100]"),
    ),
    "a loss one letter off": (
        lambda: job(loss="logistc"),
        SpecificationError,
        ("'logistc'", "did you mean 'logistic'?"),
    ),
    "an unknown scaling": (
        lambda: job(scaling="standard"),
        SpecificationError,
        ("'bounds'", "'none'"),
    ),
    "a trust that is not built": (
        lambda: job(trust="nobody"),
        SpecificationError,
        ("'nobody'", "trusted, secure"),
    ),
    "one class twice": (
        lambda: job(classes=("no", "no")),
        SpecificationError,
        ("classes are two different labels of a classification loss, the negative one first",),
    ),
    "ε = 0": (
        lambda: vfl.Privacy(epsilon=0.0),
        PrivacyError,
        ("epsilon", 'privacy = "none" in a job file'),
    ),
    "ε < 0": (
        lambda: vfl.Privacy(epsilon=-1.0),
        PrivacyError,
        ("epsilon", 'privacy = "none" in a job file'),
    ),
    "ε = ∞": (
        lambda: vfl.Privacy(epsilon=float("inf")),
        PrivacyError,
        ("epsilon", 'privacy = "none" in a job file'),
    ),
    "ε = NaN": (
        lambda: vfl.Privacy(epsilon=float("nan")),
        PrivacyError,
        ("epsilon", 'privacy = "none" in a job file'),
    ),
    "δ = 1": (
        lambda: vfl.Privacy(epsilon=1.0, delta=1.0),
        PrivacyError,
        ("leave it out for 1/n²",),
    ),
    "δ = 0": (
        lambda: vfl.Privacy(epsilon=1.0, delta=0.0),
        PrivacyError,
        ("leave it out for 1/n²",),
    ),
    "smoothness one letter off": (
        lambda: vfl.Privacy(epsilon=1.0, smoothness="privat"),
        SpecificationError,
        ("'privat'", "did you mean 'private'?"),
    ),
    "negative smoothness": (
        lambda: vfl.Privacy(epsilon=1.0, smoothness={"age": -1.0}),
        SpecificationError,
        ("'age'",),
    ),
    "smoothness of some columns": (
        lambda: job(privacy=vfl.Privacy(epsilon=1.0, smoothness={"income": 1.0})),
        PrivacyError,
        ("'age'",),
    ),
    "smoothness of no column": (
        lambda: job(privacy=vfl.Privacy(epsilon=1.0, smoothness=dict.fromkeys([*BOUNDS, "ages"], 1.0))),
        SpecificationError,
        ("'ages'", "did you mean 'age'?"),
    ),
    "all of the budget for smoothness": (
        lambda: vfl.Privacy(epsilon=1.0, smoothness_share=1.0),
        PrivacyError,
        ("smoothness_share must lie strictly between 0 and 1, not 1.0",),
    ),
    "an unknown precision": (
        lambda: job(precision="float16"),
        SpecificationError,
        ("'float16'", "float64, float32"),
    ),
    "clip = 0": (lambda: vfl.SkGD(clip=0.0), SpecificationError, ("clip must be positive, not 0.0",)),
    "clip < 0": (lambda: vfl.SkGD(clip=-1.0), SpecificationError, ("clip must be positive, not -1.0",)),
    "clip = NaN": (lambda: vfl.SkGD(clip=float("nan")), SpecificationError, ("clip must be positive, not nan",)),
    "no clip with privacy": (
        lambda: solved_by(clip=float("inf")),
        PrivacyError,
        ('give a finite clip, or train without privacy (privacy=None, or privacy = "none" in a job file)',),
    ),
    "no passes": (
        lambda: vfl.SkGD(passes=0),
        SpecificationError,
        ("passes must be a whole number of at least 1, not 0",),
    ),
    "half a pass": (
        lambda: vfl.SkGD(passes=1.5),
        SpecificationError,
        ("passes must be a whole number of at least 1, not 1.5",),
    ),
    "passes and inner rounds": (
        lambda: vfl.SkGD(passes=3, details=vfl.solvers.Details(inner_rounds=3)),
        SpecificationError,
        ("give passes, or outer_rounds and inner_rounds of details, not both",),
    ),
    "a step of 0": (
        lambda: vfl.SkGD(step_size=0.0),
        SpecificationError,
        ("step_size must be positive and finite, not 0.0",),
    ),
    "an unknown message": (
        lambda: vfl.SkGD(details=vfl.solvers.Details(message="all")),
        SpecificationError,
        ("message must be one of party, consecutive, block, not 'all'",),
    ),
    "sampling one letter off": (
        lambda: vfl.SkGD(sampling="shufled"),
        SpecificationError,
        ("'shufled'", "did you mean 'shuffled'?", "shuffled, cyclic, uniform, importance, nice, full"),
    ),
    "τ-nice without τ": (
        lambda: vfl.SkGD(sampling="nice"),
        SpecificationError,
        ("'nice'",),
    ),
    "a negative penalty": (
        lambda: vfl.L2(-1.0),
        SpecificationError,
        ("L2 needs a finite strength of at least 0, not -1.0",),
    ),
    "a seed that is no number": (
        lambda: vfl.SeededNoise(1.5),
        SpecificationError,
        ("use int(...)",),
    ),
    "no records": (
        lambda: make_plan(job(), 0),
        SpecificationError,
        ("n_records must be a whole number of at least 1, not 0",),
    ),
    "half a record": (
        lambda: make_plan(job(), 3e4),
        SpecificationError,
        ("n_records must be a whole number, 30000, not 30000.0",),
    ),
    "a number of records in text": (
        lambda: make_plan(job(), "1000"),
        SpecificationError,
        ("'1000'",),
    ),
    **{
        f"{option} = {value!r}": (
            lambda option=option, value=value: job(**{option: value}),
            SpecificationError,
            (said,),
        )
        for option, value, said in (
            ("penalty", "l2", "L2 needs strength"),
            ("penalty", 0.1, "penalty must be a penalty such as vfl.L2(0.1), not 0.1"),
            ("penalty", vfl.L2, f"penalty must be a penalty such as vfl.L2(0.1), not {reprlib.repr(vfl.L2)}"),
            ("privacy", 1.0, "privacy must be vfl.Privacy(epsilon=...), or None to train without, not 1.0"),
            (
                "partition",
                {"a": ["x"]},
                (
                    "partition must be vfl.FeaturePartition({party: its columns}, label=(party, column)), "
                    "not {'a': ['x']}"
                ),
            ),
            (
                "loss",
                3,
                (
                    "loss must be the name of a loss such as 'logistic', or a loss such as "
                    "vfl.losses.Huber(width=2.0), not 3"
                ),
            ),
            ("evaluation", True, "evaluation must be vfl.Evaluation(...), or None, not True"),
            ("bounds", [(0, 1)], "bounds must be a mapping, {column: (low, high)}, not [(0, 1)]"),
            ("name", None, "name must be text, not None"),
            ("dataset", 7, "dataset must be text, or None, not 7"),
        )
    },
    **{
        f"classes = {value!r}": (
            lambda value=value: job(loss="multinomial", classes=value),
            SpecificationError,
            (f'classes must be a list of all labels, ["A", "B", "C"], not {value!r}',),
        )
        for value in (3, "abc")
    },
    **{
        f"train with {options}": (lambda options=options: train_nothing(**options), SpecificationError, (said,))
        for options, said in (
            (
                {"spec": "job.toml"},
                "job must be a vfl.Job (Job.from_toml(FILE) returns the job of a file, and its environment), not 'job.toml'",
            ),
            (
                {"at": 2},
                "vfl.InProcess(...), vfl.Ray(...) or vfl.Federated(FILE), not 2",
            ),
            ({"ledger": 3}, "ledger must be the path of a ledger, or vfl.Ledger(path), not 3"),
        )
    },
    **{
        f"{kind.__name__}({options})": (lambda kind=kind, options=options: kind(**options), SpecificationError, (said,))
        for kind, options, said in (
            (vfl.Privacy, {"epsilon": "1"}, "epsilon must be a number, 1, not '1'"),
            (vfl.Privacy, {"epsilon": None}, "epsilon must be a number, not None"),
            (vfl.Privacy, {"epsilon": True}, "epsilon must be a number, not True"),
            (vfl.Privacy, {"epsilon": 1.0, "delta": "1e-6"}, "delta must be a number, 1e-6, not '1e-6'"),
            (
                vfl.Privacy,
                {"epsilon": 1.0, "smoothness": 0.5},
                "smoothness must be one of private, bounds, data, or a mapping from columns to M_j, not 0.5",
            ),
            (vfl.Evaluation, {"epsilon": "1"}, "evaluation: epsilon must be a number, 1, not '1'"),
            (vfl.L2, {"strength": "0.1"}, "L2: the strength must be a number, 0.1, not '0.1'"),
            (vfl.penalties.Box, {"low": "0"}, "Box: low must be a number, 0, not '0'"),
            (vfl.SkGD, {"step_size": "0.1"}, "SkGD: step_size must be a number, 0.1, not '0.1'"),
            (vfl.solvers.SGD, {"step_size": "0.1"}, "SGD: step_size must be a number, 0.1, not '0.1'"),
            (vfl.solvers.Details, {"tol": "no"}, "details: tol must be a number, not 'no'"),
        )
    },
    "nothing to train": (
        lambda: make_plan(vfl.Job(partition=partition(parties={"bank": []}), privacy=None, intercept=False), 10),
        SpecificationError,
        ("no party has a column, and there is no intercept",),
    ),
}


@pytest.mark.parametrize("case", BAD_JOBS.values(), ids=BAD_JOBS)
def test_a_bad_job_is_refused_with_these_facts(
    case: tuple[Callable[[], Any], type[Exception], tuple[str, ...]],
) -> None:
    make, kind, facts = case
    with pytest.raises(kind) as raised:
        make()
    assert [fact for fact in facts if fact not in str(raised.value)] == []
    assert type(raised.value) is kind


def table(**changed: Any) -> dict[str, list[Any]]:
    """Three records in one table; a column that is set to None is left out."""
    whole = {
        "income": [1e4, 2e4, 3e4],
        "age": [30, 40, 50],
        "calls": [1, 2, 3],
        "data_mb": [5, 6, 7],
        "default": [0, 1, 0],
    }
    return {c: cells for c, cells in (whole | changed).items() if cells is not None}


def bank(**changed: Any) -> dict[str, list[Any]]:
    return table(calls=None, data_mb=None, **changed)


BAD_DATA: dict[str, tuple[Any, type[Exception], str]] = {
    "a missing column": (table(age=None), PartitionError, "column 'age' of party 'bank' is not in the table"),
    "a column one letter off": (
        table(age=None, ages=[1, 2, 3]),
        PartitionError,
        "column 'age' of party 'bank' is not in the table (did you mean 'ages'?)",
    ),
    "a column one letter off at its owner": (
        {"bank": bank(age=None, ages=[1, 2, 3]), "telco": table()},
        DataError,
        "party 'bank', the table: there is no column 'age' (did you mean 'ages'?)",
    ),
    "a label of three classes": (
        table(default=[0, 1, 2]),
        DataError,
        (
            "party 'bank', the table: label 'default' is not 0/1 or boolean: declare its two classes, the negative one first: "
            'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for more '
            'classes choose loss = "multinomial", for numbers "squared" or "poisson"'
        ),
    ),
    "a label of words": (
        table(default=["yes", "no", "no"]),
        DataError,
        (
            "party 'bank', the table: label 'default' is not 0/1 or boolean: declare its two classes, the negative one first: "
            'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for more '
            'classes choose loss = "multinomial", for numbers "squared" or "poisson"'
        ),
    ),
    "an array whose label is not the last column": (
        np.array([[0, 1e4, 30, 1, 5], [1, 2e4, 40, 2, 6]]),
        DataError,
        (
            "party 'bank', the table: label 'default' is not 0/1 or boolean: declare its two classes, the negative one first: "
            'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for more '
            'classes choose loss = "multinomial", for numbers "squared" or "poisson"; or put the '
            "array's columns in the partition's order, the label last: they are matched by position"
        ),
    ),
    "an array of a party whose label is not the last column": (
        {"bank": np.array([[0, 1e4, 30], [1, 2e4, 40]]), "telco": np.ones((2, 2))},
        DataError,
        (
            "party 'bank', the table: label 'default' is not 0/1 or boolean: declare its two classes, the negative one first: "
            'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for more '
            'classes choose loss = "multinomial", for numbers "squared" or "poisson"; or put the '
            "array's columns in the partition's order, the label last: they are matched by position"
        ),
    ),
    "a missing label": (
        table(default=[0, 1, None]),
        DataError,
        "party 'bank', the table: label 'default' has missing values: a record without a label must be left out",
    ),
    "text in numbers": (
        table(age=["30", "x", "40"]),
        DataError,
        (
            "the table: column 'age' holds text where numbers are declared: clean the cells, declare what "
            "marks a missing value, or declare the column categorical; of a text file with "
            "decimal commas, declare decimal = ','"
        ),
    ),
    "a missing value": (
        table(age=[30, None, 40]),
        DataError,
        (
            "party 'bank', the table: column 'age' has missing values: declare columns={'age': vfl.Numeric(fill=VALUE)}, "
            "or age = { fill = VALUE } under [columns] of a job file, or complete it"
        ),
    ),
    "row counts that differ": (
        {"bank": bank(), "telco": {"calls": [1], "data_mb": [2]}},
        DataError,
        (
            "parties 'bank' and 'telco' hold different numbers of records: "
            "every party needs the same records in the same order, or name the id column in the job (id=...) to align them"
        ),
    ),
    "data for no party": (
        {"bank": bank(), "telc": table()},
        SpecificationError,
        "data are given for 'telc', which is not a party (did you mean 'telco'?)",
    ),
    "no data for a party": ({"bank": bank()}, SpecificationError, "no data are given for party 'telco'"),
    "a file that is not there": (
        {"bank": "nowhere.csv", "telco": table()},
        DataError,
        "party 'bank', file 'nowhere.csv': no such file or folder; a relative path starts at the party's working folder",
    ),
    "no records": ({column: [] for column in table()}, DataError, "the table: there are no records"),
    "no table": (
        42,
        SpecificationError,
        (
            "a source may not be of type 'int': give a path, a pandas, Polars or Arrow table, an array, a mapping from "
            "columns to arrays, or a function that returns one of these"
        ),
    ),
}


@pytest.mark.parametrize("case", BAD_DATA.values(), ids=BAD_DATA)
def test_bad_data_are_refused_with_this_message(case: tuple[Any, type[Exception], str]) -> None:
    data, kind, said = case
    rounds: list[Any] = []
    with pytest.raises(kind) as raised:
        vfl.train(job(), data, at="inprocess", watch=rounds.append)
    assert str(raised.value) == said
    assert rounds == []  # before anything starts


def test_an_undeclared_class() -> None:
    with pytest.raises(DataError, match=r"'default'.*two declared classes"):
        vfl.train(job(classes=("no", "yes")), table(default=["yes", "no", "maybe"]), at="inprocess")


def test_bounds_per_party_and_for_all() -> None:
    features = partition().features
    party = partition().parties[0]
    own = partition().columns(party)
    spec = job(
        bounds={"*": (0, 9), f"{party}.*": (-1, 1), own[0]: (2, 3)},
        columns={own[1]: vfl.Numeric(fill=1), features[-1]: vfl.Numeric(fill=5)},
    )
    expected = dict.fromkeys(features, (0.0, 9.0)) | dict.fromkeys(own, (-1.0, 1.0)) | {own[0]: (2.0, 3.0)}
    assert {column: spec.schema[column].limits for column in features} == expected
    assert spec.schema[own[1]].fill == 1.0
    assert spec.schema[features[-1]].fill == 5.0
    assert spec.schema[spec.partition.label_column].limits == vfl.base.schema.UNBOUNDED  # the label is named
    again = jobfile.decode(tomllib.loads(spec.to_toml()))
    assert (again, again.digest, again.schema) == (spec, spec.digest, spec.schema)
    flags = job(bounds={"*": (0, 9)}, columns={own[0]: vfl.base.columns.Boolean()})
    assert flags.schema[own[0]].limits == (0.0, 1.0)
    star = vfl.FeaturePartition({"bank": ["*", "income"]}, label=("bank", "default"))
    assert vfl.Job(partition=star, privacy=None, bounds={"*": (0, 1), "bank.*": (0, 2)}).schema["*"].limits == (
        0.0,
        1.0,
    )


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ({"*": (9, 0)}, r"bounds \['\*'\]: bounds \[9, 0\] are reversed: write \[0, 9\]"),
        ({"bnak.*": (0, 9)}, r"column 'bnak\.\*' is declared, and no party of the partition holds it"),
    ],
)
def test_wrong_bounds_per_party_and_for_all(bounds: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecificationError, match=problem):
        job(bounds=bounds)


def test_values_outside_bounds_and_missing_ones_are_never_refused() -> None:
    """Others can see a refusal, which would reveal one record: cells are clamped and filled as declared."""
    wild = table(age=[-1e300, float("inf"), None], income=[1e9, -5, 0])
    tame = table(age=[18, 100, 20], income=[2e5, 0, 0])
    spec = job(
        columns={"age": vfl.Numeric(fill=20)},
        privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(0)),
        solver=vfl.SkGD(passes=2),
    )
    results = [vfl.train(spec, data, at="inprocess") for data in (wild, tame)]
    assert results[0].w.tobytes() == results[1].w.tobytes()


def test_an_unknown_site_is_refused() -> None:
    with pytest.raises(SpecificationError, match=r"unknown site at='dask'.*'inprocess', 'ray'"):
        vfl.train(job(), table(), at="dask")


@pytest.mark.parametrize(
    ("at", "site"),
    [
        ("inprocess", vfl.InProcess(num_cpus=3, shards=2)),
        ("ray", vfl.Ray(num_cpus=3, shards=2)),
        ("auto", vfl.Ray("auto", num_cpus=3, shards=2)),
        ("10.0.0.1:6379", vfl.Ray("10.0.0.1:6379", num_cpus=3, shards=2)),
        ("org/credit.toml", vfl.Federated("org/credit.toml")),
        (None, vfl.InProcess()),
    ],
)
def test_sites_named_as_text(at: str | None, site: Site) -> None:
    """Cores and shards are those of the job's [ray] table."""
    assert resolve(at, vfl.InProcess(), vfl.Ray(num_cpus=3, shards=2)) == site


FILE = """
format = 1
name = "credit"
loss = "logistic"
intercept = true
classes = ["no", "yes"]
privacy = { epsilon = 1.0, noise = { seed = 3 } }
penalty = { kind = "l2", strength = 1e-4 }
solver = { kind = "SkGD", passes = 10 }
bounds = { income = [0, 2e5], calls = [0, 500] }

[partition]
parties = { bank = ["income"], telco = ["calls"] }
label = ["bank", "default"]

[data]
bank = "bank.parquet"
telco = "sub/telco.csv"

[ray]
address = "auto"
"""


def read(folder: Path, text: str, *assignments: str) -> tuple[vfl.Job, jobfile.Environment]:
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return jobfile.read(folder / "job.toml", assignments)


def test_a_file_names_sparse_parties_and_installed_sources(tmp_path: Path) -> None:
    text = FILE.replace("sub/telco.csv", "warehouse://calls").replace("calls = [0, 500]", '"*" = [-1, 500]')
    spec, environment = read(tmp_path, text, 'partition.sparse=["telco"]')
    assert environment.data == {"bank": str(tmp_path / "bank.parquet"), "telco": "warehouse://calls"}
    assert spec.partition.sparse == ("telco",)
    assert spec.scaling_of(["income", "calls"]).shift.tolist() == [1e5, 0.0]
    assert jobfile.decode(tomllib.loads(spec.to_toml())) == spec
    assert spec.digest != dataclasses.replace(spec, partition=spec.partition.changed(sparse=None)).digest


def test_a_file_declares_the_format_of_text(tmp_path: Path) -> None:
    told = (
        '{ path = "bank.csv", delimiter = ";", decimal = ",", thousands = ".", encoding = "cp1252", missing = ["?"] }'
    )
    spec, environment = read(tmp_path, FILE.replace('"bank.parquet"', told), "data.telco={path='calls.tsv',quote=''}")
    bank = vfl.Csv(
        str(tmp_path / "bank.csv"), delimiter=";", decimal=",", thousands=".", encoding="cp1252", missing=("?",)
    )
    telco = vfl.Csv(str(tmp_path / "calls.tsv"), delimiter="\t", quote="")
    assert environment.data == {"bank": bank, "telco": telco}
    assert jobfile.Environment.of_log(json.loads(json.dumps(environment.to_dict()))).data == environment.data
    assert spec.digest == read(tmp_path, FILE)[0].digest
    table = FILE.replace("[data]", "[simulation.table]").replace('bank = "bank.parquet"\n', 'path = "all.csv"\n')
    _, environment = read(tmp_path, table.replace('telco = "sub/telco.csv"', 'decimal = ","'))
    assert environment.table == vfl.Csv(str(tmp_path / "all.csv"), decimal=",")
    assert jobfile.Environment.of_log(json.loads(json.dumps(environment.to_dict()))).data == environment.data


def test_a_file_describes_the_job(tmp_path: Path) -> None:
    spec, environment = read(tmp_path, FILE)
    assert spec == vfl.Job(
        name="credit",
        loss="logistic",
        classes=("no", "yes"),
        partition=vfl.FeaturePartition({"bank": ["income"], "telco": ["calls"]}, label=LABEL),
        privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(3)),
        penalty=vfl.L2(1e-4),
        solver=vfl.SkGD(passes=10),
        bounds={"income": (0, 2e5), "calls": (0, 500)},
    )
    assert environment == jobfile.Environment(
        data={"bank": str(tmp_path / "bank.parquet"), "telco": str(tmp_path / "sub" / "telco.csv")},
        site=vfl.Ray("auto"),
    )


def test_the_environment_is_not_part_of_the_digest(tmp_path: Path) -> None:
    spec, environment = read(tmp_path, FILE)
    elsewhere, other = read(tmp_path, FILE.replace("bank.parquet", "other.csv").replace('"auto"', '"ray://x:1"'))
    assert spec.digest == elsewhere.digest
    assert environment != other


BAD_FILES: dict[str, tuple[tuple[str, str], type[Exception], tuple[str, ...]]] = {
    "an unknown key": (
        ('loss = "logistic"', 'losss = "logistic"'),
        JobFileError,
        ("'losss'", "did you mean 'loss' or 'classes'?"),
    ),
    "an unknown table": (
        ("[ray]", "[rya]"),
        JobFileError,
        ("'rya'", "did you mean 'ray'?"),
    ),
    "an unknown key of privacy": (
        ("epsilon =", "epsilom ="),
        JobFileError,
        (
            "'epsilom'",
            "[privacy]",
            "did you mean 'epsilon'?",
            "epsilon, delta, noise, smoothness, smoothness_share, read_from_data",
        ),
    ),
    "an unknown key of the solver": (
        ("passes =", "pases ="),
        JobFileError,
        ("'pases'", "[solver]", "did you mean 'passes'?"),
    ),
    "an unknown key of the partition": (
        ("label = [", "labels = ["),
        PartitionError,
        ("'labels'", "did you mean 'label'?"),
    ),
    "an unknown key of ray": (
        ("address =", "adress ="),
        JobFileError,
        (
            "'adress'",
            "[ray]",
            "did you mean 'address'?",
            "address, shards, pin, resources, ready_timeout_s, party_cpus, parties_per_process",
        ),
    ),
    "data of no party": (
        ('telco = "sub', 'telko = "sub'),
        JobFileError,
        ("'telko'", "[data]", "did you mean 'telco'?", "bank, telco"),
    ),
    "data and a table": (
        ("[ray]", "[simulation]\ntable = 'all.csv'\n[ray]"),
        JobFileError,
        ("[data]", "[simulation]"),
    ),
    "a hold-out of the simulation": (
        ("[ray]", "[simulation]\nholdout = 0.2\n[ray]"),
        JobFileError,
        ("move holdout from [simulation] to [evaluation]",),
    ),
    "a hold-out in words": (
        ("format = 1", "format = 1\nevaluation.holdout = 'some'"),
        JobFileError,
        ("[evaluation]: holdout must be a number, not 'some'",),
    ),
    "an unknown key of evaluation": (
        ("[ray]", "[evaluation]\nepsilom = 1.0\n[ray]"),
        JobFileError,
        ("'epsilom'", "[evaluation]", "did you mean 'epsilon'?"),
    ),
    "a table that is no path": (
        ("[ray]", "[simulation]\ntable = 3\n[ray]"),
        JobFileError,
        ("[simulation]",),
    ),
    "data that are no path": (
        ('bank = "bank.parquet"', "bank = 3"),
        JobFileError,
        ("[data.bank]",),
    ),
    "data without a path": (
        ('bank = "bank.parquet"', 'bank = { delimiter = ";" }'),
        JobFileError,
        ("[data.bank]",),
    ),
    "data with an unknown option": (
        ('bank = "bank.parquet"', 'bank = { path = "bank.csv", delimeter = ";" }'),
        JobFileError,
        ("[data.bank]", "'delimeter'", "did you mean 'delimiter'?"),
    ),
    "data in an unknown encoding": (
        ('bank = "bank.parquet"', 'bank = { path = "bank.csv", encoding = "latin-99" }'),
        JobFileError,
        ("[data.bank]", "encoding 'latin-99' of a CSV file is unknown to Python"),
    ),
    "another format": (
        ("format = 1", "format = 2"),
        JobFileError,
        ("this vfl reads job files with format = 1, not 2",),
    ),
    "a format that is no number": (
        ("format = 1", "format = true"),
        JobFileError,
        ("this vfl reads job files with format = 1, not True",),
    ),
    "no format": (("format = 1\n", ""), JobFileError, ("this vfl reads job files with format = 1, not None",)),
    "no privacy": (
        ("privacy = { epsilon = 1.0, noise = { seed = 3 } }", ""),
        JobFileError,
        ("[privacy]", 'give epsilon, or privacy = "none"'),
    ),
    "privacy in other words": (
        ("privacy = { epsilon = 1.0, noise = { seed = 3 } }", 'privacy = "off"'),
        JobFileError,
        ("'off'",),
    ),
    "no epsilon": (("epsilon = 1.0, ", ""), JobFileError, ("[privacy]", "epsilon is missing")),
    "epsilon in words": (
        ("epsilon = 1.0", 'epsilon = "one"'),
        JobFileError,
        ("[privacy]", "epsilon must be a number, not 'one'"),
    ),
    "ε = 0": (
        ("epsilon = 1.0", "epsilon = 0"),
        PrivacyError,
        ("epsilon", 'privacy = "none" in a job file'),
    ),
    "a seed in words": (
        ("seed = 3", 'seed = "three"'),
        JobFileError,
        ("[privacy.noise]", "seed must be a whole number, not 'three'"),
    ),
    "no penalty of that kind": (
        ('kind = "l2"', 'kind = "l3"'),
        JobFileError,
        ("'l3'", "[penalty]"),
    ),
    "a penalty without strength": ((", strength = 1e-4", ""), JobFileError, ("[penalty]", "strength is missing")),
    "no solver of that kind": (
        ('kind = "SkGD"', 'kind = "SkGDD"'),
        JobFileError,
        ("'SkGDD'", "[solver]", "did you mean 'SkGD'"),
    ),
    "passes in words": (
        ("passes = 10", 'passes = "ten"'),
        JobFileError,
        ("[solver]", "passes must be a whole number, not 'ten'"),
    ),
    "passes that are true": (
        ("passes = 10", "passes = true"),
        JobFileError,
        ("[solver]", "passes must be a whole number, not True"),
    ),
    "an intercept in words": (
        ("intercept = true", 'intercept = "no"'),
        JobFileError,
        ("intercept must be true or false, not 'no'",),
    ),
    "a loss that is a number": (
        ('loss = "logistic"', "loss = 3"),
        JobFileError,
        ("loss must be text, not 3",),
    ),
    "classes that are no list": (
        ('classes = ["no", "yes"]', "classes = 3"),
        JobFileError,
        ("classes are a list of two labels, the negative one first, not 3",),
    ),
    "bounds that are no pair": (
        ("calls = [0, 500]", "calls = 500"),
        SpecificationError,
        ("'calls'", "bounds are two numbers, low and high, not 500"),
    ),
    "a missing bound": (
        (", calls = [0, 500]", ""),
        SpecificationError,
        (
            "'calls'",
            "calls = [LOW, HIGH] under [bounds]",
            "release them with vfl.releases.private_bounds",
        ),
    ),
    "columns that are no list": (
        ('telco = ["calls"]', 'telco = "calls"'),
        PartitionError,
        ("'telco'", "give a list of column names, not the single text 'calls'"),
    ),
}


@pytest.mark.parametrize("case", BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_refused_with_these_facts(
    case: tuple[tuple[str, str], type[Exception], tuple[str, ...]], tmp_path: Path
) -> None:
    (right, wrong), kind, facts = case
    assert right in FILE
    with pytest.raises(kind) as raised:
        read(tmp_path, FILE.replace(right, wrong))
    assert [fact for fact in facts if fact not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("right", "wrong", "known"), [("loss =", "losss =", [*jobfile.ENVIRONMENT, "format"]), ("passes =", "pases =", [])]
)
def test_an_unknown_key_is_refused_with_the_known_ones(
    right: str, wrong: str, known: list[str], tmp_path: Path
) -> None:
    kind = vfl.Job if known else vfl.SkGD
    with pytest.raises(JobFileError) as raised:
        read(tmp_path, FILE.replace(right, wrong))
    assert str(raised.value).endswith(", ".join([*(f.name for f in dataclasses.fields(kind) if f.init), *known]))


def test_a_missing_or_invalid_file(tmp_path: Path) -> None:
    with pytest.raises(JobFileError) as raised:
        jobfile.read(tmp_path / "none.toml")
    assert repr(str(tmp_path / "none.toml")) in str(raised.value)
    with pytest.raises(JobFileError, match=r"job\.toml' is not valid.*line 2"):
        read(tmp_path, "format = 1\nloss = = 2")
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobFileError, match="cannot read job file"):
        jobfile.read(tmp_path / "job.toml")
    with pytest.raises(JobFileError, match="cannot read job file"):
        jobfile.read(tmp_path)


class TestSet:
    """--set key=value."""

    def test_values_are_toml_or_text(self, tmp_path: Path) -> None:
        spec, environment = read(
            tmp_path,
            FILE,
            "privacy.epsilon=2",
            "name=other=one",
            "solver.sampling=cyclic",
            "bounds.calls=[0, 9]",
            "intercept=false",
            "privacy.noise.seed=4",
            "ray.address=ray://host:10001",
            "solver.clip=inf",
        )
        assert spec.privacy == vfl.Privacy(epsilon=2, noise=vfl.SeededNoise(4))
        assert (spec.name, spec.intercept) == ("other=one", False)
        assert spec.solver == vfl.SkGD(passes=10, sampling="cyclic", clip=float("inf"))
        assert spec.bounds == {"income": [0, 2e5], "calls": [0, 9]}
        assert environment.site.address == "ray://host:10001"

    def test_an_override_may_start_a_table(self, tmp_path: Path) -> None:
        assert read(tmp_path, FILE, "columns.calls.fill=3")[0].columns == {"calls": vfl.Numeric(fill=3)}

    def test_an_empty_override_takes_a_value_out(self, tmp_path: Path) -> None:
        assert read(tmp_path, FILE, "evaluation.holdout=0.25", "evaluation=")[0].holdout is None
        assert read(tmp_path, FILE, "solver.passes=")[0].solver == vfl.SkGD()

    def test_the_last_override_wins(self, tmp_path: Path) -> None:
        assert read(tmp_path, FILE, "name=one", "name=two")[0].name == "two"

    @pytest.mark.parametrize("assignment", ["privacy.epsilon", "=2", ""])
    def test_an_override_without_an_assignment(self, tmp_path: Path, assignment: str) -> None:
        with pytest.raises(SpecificationError) as raised:
            read(tmp_path, FILE, assignment)
        assert "key=value" in str(raised.value)
        assert str(raised.value).endswith(repr(assignment))

    def test_an_override_of_a_table_that_is_not_one(self, tmp_path: Path) -> None:
        with pytest.raises(SpecificationError, match=r"name\.first: 'name' is not"):
            read(tmp_path, FILE, "name.first=2")

    def test_overrides_are_checked_like_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(JobFileError, match=r"unknown key 'epsilom' in \[privacy\]"):
            read(tmp_path, FILE, "privacy.epsilom=2")
        with pytest.raises(PrivacyError, match=r"epsilon must be positive.*-2"):
            read(tmp_path, FILE, "privacy.epsilon=-2")


names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8
).filter(str.strip)
strengths = st.floats(0, 1e6)
penalties = st.one_of(
    st.just(vfl.penalties.NoPenalty()),
    st.builds(vfl.L1, strengths),
    st.builds(vfl.L2, strengths),
    st.builds(vfl.ElasticNet, strengths, st.floats(0, 1)),
    st.builds(vfl.penalties.Box, st.floats(-10, 0), st.floats(0, 10, exclude_min=True)),
)
counts = st.none() | st.integers(1, 1000)
solvers = st.builds(
    vfl.SkGD().changed,
    block_size=counts,
    sampling=st.sampled_from(["shuffled", "cyclic", "uniform", "importance", "full"]),
    passes=counts,
    outer_rounds=counts,
    clip=st.none() | st.floats(1e-6, 1e6),
    step_size=st.floats(1e-3, 1e3),
    message=st.sampled_from(["party", "consecutive", "block"]),
    seed=st.integers(0, 2**63 - 1),
) | st.one_of(
    st.builds(vfl.SkGD().changed, sampling=st.just("nice"), tau=st.integers(1, 9), inner_rounds=counts),
    st.builds(
        vfl.SkGD().changed,
        parallel=st.integers(1, 9),
        clip=st.just("bounds"),
        noise_geometry=st.sampled_from(["scaled", "isotropic"]),
        iterate=st.sampled_from(["last", "average", "tail"]),
        tol=st.none() | st.floats(0, 0.5),
    ),
    st.builds(vfl.solvers.CD().changed, passes=counts, tol=st.none() | st.floats(0, 0.5)),
    st.builds(
        vfl.solvers.GCD,
        rule=st.sampled_from(["GS-s", "GS-q", "GS-r"]),
        rounds=counts,
        selection_share=st.floats(0.01, 0.9),
    ),
    st.builds(vfl.solvers.GD, passes=counts, clip=st.none() | st.floats(1e-6, 1e6)),
    st.builds(vfl.solvers.SGD, passes=counts, batch_size=counts, sampling=st.sampled_from(["poisson", "disjoint"])),
    st.builds(vfl.solvers.SVRG, passes=counts, batch_size=counts),
    st.builds(vfl.solvers.SCD, passes=counts, release=st.sampled_from(["v", "both"])),
    st.builds(vfl.solvers.OutputPerturbation, tolerance=st.none() | st.floats(1e-12, 1e-3)),
    st.builds(
        vfl.solvers.NoisyGram, clip=st.none() | st.floats(1e-6, 1e6), label_scale=st.none() | st.floats(1e-3, 1e3)
    ),
)
ranges = st.tuples(st.floats(-1e9, 0) | st.integers(-1000, 0), st.floats(1e-3, 1e9) | st.integers(1, 1000))


@st.composite
def jobs(draw: st.DrawFn) -> vfl.Job:
    """Any job that a user could write: every kind of column, penalty, solver and privacy."""
    columns = draw(st.lists(names, min_size=2, max_size=6, unique=True))
    *features, label = columns
    cut = draw(st.integers(0, len(features) - 1))
    owned = {"label party": features[:cut], "b.2": features[cut:]}
    blocks = None
    if draw(st.booleans()):
        blocks = {party: [[c] for c in draw(st.permutations(cs))] for party, cs in owned.items()}
    categorical = draw(st.sets(st.sampled_from(features)))
    declared = {
        c: draw(
            st.sampled_from(
                [vfl.Boolean(fill=True), vfl.Categorical(("x", 1, True), fill="x", unknown="zero"), vfl.Numeric((0, 1))]
            )
        )
        for c in sorted(categorical)
    }
    bounds = {c: draw(ranges) for c in features if c not in categorical}
    declared |= {c: vfl.Numeric(fill=bounds[c][1]) for c in bounds if draw(st.booleans())}
    loss = draw(st.sampled_from(["logistic", "squared", "huber", "smoothed_hinge", "hinge"]))
    regression = loss in ("squared", "huber")
    if regression:
        bounds[label] = (-1, 1.5)
    coordinates = [
        c for column in features for c in (declared[column] if column in declared else vfl.Numeric()).features(column)
    ]
    privacy = draw(
        st.none()
        | st.builds(
            vfl.Privacy,
            epsilon=st.floats(1e-3, 1e3),
            delta=st.none() | st.floats(1e-12, 0.1),
            noise=st.none() | st.builds(vfl.SeededNoise, st.integers(0, 2**63 - 1)),
            smoothness=st.sampled_from(["private", "bounds", "data", dict.fromkeys(coordinates, 0.25)]),
            smoothness_share=st.floats(0.01, 0.9),
        )
    )
    trained_by = draw(solvers)
    return vfl.Job(
        partition=vfl.FeaturePartition(
            {"a": owned["label party"], "b.2": owned["b.2"]},
            label=("a", label),
            blocks=None if blocks is None else {"a": blocks["label party"], "b.2": blocks["b.2"]},
        ),
        privacy=privacy,
        loss=loss,
        penalty=draw(penalties),
        solver=trained_by,
        bounds=bounds,
        columns=declared,
        classes=draw(st.none() | st.just(("no", "yes")) | st.just((1, 2))) if not regression else None,
        precision=draw(st.sampled_from(["float64", "float32"])),
        intercept=draw(st.booleans()),
        scaling=draw(st.sampled_from(["bounds", "none"])),
        dataset=draw(st.none() | names),
        name=draw(names),
    )


@settings(max_examples=150, deadline=None)
@given(spec=jobs())
def test_a_job_is_unchanged_by_writing_and_reading(spec: vfl.Job) -> None:
    again = jobfile.decode(tomllib.loads(spec.to_toml()))
    assert again == spec
    assert again.digest == spec.digest
    assert hash(again) == hash(spec)
    # Equality compares plain forms, so also compare attributes that `encode` could have forgotten.
    for f in dataclasses.fields(vfl.Job):
        if f.init and f.name not in ("bounds", "columns", "privacy"):
            assert getattr(again, f.name) == getattr(spec, f.name), f.name
    assert again.schema == spec.schema
    assert again.privacy == spec.privacy
    assert again.to_toml() == spec.to_toml()


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "float32"),
        ({"solver": vfl.solvers.GD()}, "float64"),
        ({"solver": vfl.SkGD(details=vfl.solvers.Details(message="block"))}, "float64"),
        ({"trust": "secure", "privacy": vfl.Privacy(epsilon=1.0)}, "float64"),
    ],
)
def test_float32_rounds_linear_predictors_only_where_a_party_takes_several_steps(given: Any, kind: str) -> None:
    spec = job(precision="float32", **given)
    assert (spec.for_party("bank").storage, spec.targets.kind) == ("float32", kind)


class TestDigest:
    def test_the_digest_is_the_same_in_every_process(self) -> None:
        """Hashing of text differs between processes; the digest must not."""
        code = (
            "import vfl;"
            "print(vfl.Job(partition=vfl.FeaturePartition({'b': ['x', 'y'], 'a': ['z']}, label=('a', 'l')),"
            " privacy=vfl.Privacy(epsilon=1.0), bounds={'x': (0, 1), 'z': (0, 1), 'y': (0, 1)}).digest)"
        )
        digests = {
            subprocess.run(
                [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
            ).stdout
            for seed in ("1", "2")
        }
        here = vfl.Job(
            partition=vfl.FeaturePartition({"b": ["x", "y"], "a": ["z"]}, label=("a", "l")),
            privacy=vfl.Privacy(epsilon=1.0),
            bounds={"y": (0, 1), "z": (0, 1), "x": (0, 1)},
        )
        assert digests == {here.digest + "\n"}

    @pytest.mark.parametrize(
        "same",
        [
            {"bounds": bounds_without("age"), "columns": {"age": vfl.Numeric((18, 100))}},
            {"bounds": {}, "columns": {column: vfl.Numeric(ends) for column, ends in BOUNDS.items()}},
            {"bounds": {f"{party}.{c}": BOUNDS[c] for party, own in PARTIES.items() for c in own}},
            {"columns": {"default": vfl.Numeric()}},
            {"name": "other"},
            {"precision": "float32"},
        ],
        ids=repr,
    )
    def test_equal_declarations_and_options_of_execution_keep_a_consent(self, same: dict[str, Any]) -> None:
        assert job(**same).digest == job().digest
        assert (job(**same) == job()) == (not {"name", "precision"} & set(same))

    def test_one_declaration_has_one_digest(self) -> None:
        fills = [
            {"columns": {"age": vfl.Numeric(fill=20)}},
            {"bounds": bounds_without("age"), "columns": {"age": vfl.Numeric((18, 100), 20)}},
        ]
        groups = [{"bounds": {"*": (0, 1)}}, {"bounds": {"bank.*": (0, 1), "telco.*": (0, 1)}}]
        groups += [{"bounds": dict.fromkeys(BOUNDS, (0, 1))}]
        trusts = [{"trust": "secure"}, {"trust": vfl.federation.Secure()}]
        ids = [{"id": vfl.columns.Id(column, kind="text")} for column in ("who", {"telco": "who", "bank": "who"})]
        for forms in (fills, groups, trusts, ids):
            assert len({job(**form).digest for form in (*forms, {})}) == 2
            assert len({job(**form) for form in forms}) == 1

    def test_every_field_changes_the_digest(self) -> None:
        others = [
            job(loss="squared", bounds=BOUNDS | {"default": (0, 1)}),
            job(penalty=vfl.L2(1e-3)),
            job(penalty=vfl.L1(1e-3)),
            job(solver=vfl.SkGD(passes=3)),
            job(solver=vfl.SkGD(seed=1)),
            job(bounds=BOUNDS | {"age": (18, 99)}),
            job(bounds=bounds_without("age"), columns={"age": vfl.Boolean()}),
            job(bounds=BOUNDS | {"default": (0, 1)}),
            job(columns={"age": vfl.Numeric(fill=20)}),
            job(classes=("no", "yes")),
            *(job(bounds=bounds_without("age"), columns={"age": vfl.Categorical([1, 2**53 + k])}) for k in range(2)),
            job(solver=vfl.SkGD(seed=2**53)),
            job(solver=vfl.SkGD(seed=2**53 + 1)),
            job(solver=vfl.SkGD(seed=10**400)),
            job(intercept=False),
            job(scaling="none"),
            job(dataset="credit-2026"),
            job(privacy=None),
            job(privacy=vfl.Privacy(epsilon=1.5)),
            job(privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(1))),
            job(partition=partition(parties={"telco": PARTIES["telco"], "bank": PARTIES["bank"]})),
            job(partition=partition(label=("telco", "default"))),
        ]
        digests = [spec.digest for spec in (job(), *others)]
        assert len(set(digests)) == len(digests)
        assert len({job(), job(), *others}) == len(digests)

    def test_1_and_1_0_are_the_same_number(self) -> None:
        """Equal jobs have equal digests, however their numbers were written."""
        one, other = job(bounds=BOUNDS | {"age": (18, 100)}), job(bounds=BOUNDS | {"age": (18.0, np.float64(100))})
        assert one == other
        assert one.digest == other.digest
        assert len({one, other}) == 1

    def test_a_job_equals_no_other_object(self) -> None:
        assert job() != "job"


class TestDroppedColumns:
    def test_dropping_a_column_equals_never_naming_it(self) -> None:
        named = vfl.FeaturePartition(
            {"bank": ["a", "b"], "telco": ["c"]}, ("bank", "y"), {"bank": [["a"], ["b"]], "telco": [["c"]]}
        )
        fewer = vfl.FeaturePartition(
            {"bank": ["a"], "telco": ["c"]}, ("bank", "y"), {"bank": [["a"]], "telco": [["c"]]}
        )
        limits = {"a": (0, 1), "c": (0, 1)}
        job = vfl.Job(partition=named, privacy=None, bounds=limits, columns={"b": vfl.Dropped()})
        assert job == vfl.Job(partition=fewer, privacy=None, bounds=limits)
        text = (
            vfl.Job(partition=named, privacy=None, bounds={"*": (0, 1)}).to_toml() + '\n[columns.b]\nkind = "dropped"\n'
        )
        assert jobfile.decode(tomllib.loads(text)).partition == fewer

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"columns": {"c": vfl.Dropped()}}, "'telco' are dropped: leave the party out"),
            ({"columns": {"y": vfl.Dropped()}}, "'y' is the label"),
            ({"columns": {"bb": vfl.Dropped()}}, "did you mean 'b'?"),
            ({"columns": {"b": vfl.Dropped()}, "bounds": {"b": (0, 1)}}, "leave it out of bounds"),
        ],
    )
    def test_columns_that_cannot_be_dropped(self, changes: dict[str, Any], message: str) -> None:
        partition = vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c"]}, ("bank", "y"))
        with pytest.raises(SpecificationError, match=re.escape(message)):
            vfl.Job(partition=partition, privacy=None, scaling="none", **changes)


def test_replace_can_remove_the_hold_out() -> None:
    partition = vfl.FeaturePartition({"a": ["x"]}, label=("a", "y"))
    plain = vfl.Job(partition=partition, privacy=None, bounds={"x": (0, 1)})
    held = dataclasses.replace(plain, evaluation=vfl.Evaluation(holdout=0.2))
    assert held == dataclasses.replace(plain, evaluation=vfl.Evaluation())
    assert dataclasses.replace(held, evaluation=None) == plain
    for measured in ({"public": True}, {"fairness": vfl.Fairness(group="x")}):
        with pytest.raises(SpecificationError, match="held out"):
            vfl.Evaluation(holdout=None, **measured)


TAKES_A_JOB: dict[str, Callable[[Any], Any]] = {
    "plan": lambda given: vfl.plan(given, 10),
    "align": lambda given: vfl.align(given, {}, at="ray"),
    "private_bounds": lambda given: vfl.releases.private_bounds(given, {}, epsilon=1.0, at="ray"),
    "private_quantiles": lambda given: vfl.releases.private_quantiles(given, {}, epsilon=1.0, at="ray"),
    "woe": lambda given: vfl.releases.woe(given, {}, epsilon=1.0, at="ray"),
    "tune": lambda given: vfl.tune(given, [{}, {}], at="ray"),
    "train, warm start": lambda given: vfl.train(given, {}, warm_start="runs/first", at="ray"),
}
TAKES_A_RESULT: dict[str, Callable[[Any], Any]] = {
    "evaluate": lambda given: vfl.evaluate(given, {}),
    "predict": lambda given: vfl.predict(given, {}),
}


@pytest.mark.parametrize("given", ["job.toml", None, 3], ids=str)
@pytest.mark.parametrize("call", TAKES_A_JOB.values(), ids=TAKES_A_JOB)
def test_what_is_no_job_is_refused_with_the_way_to_one(call: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(SpecificationError, match=r"^job must be.*Job\.from_toml"):
        call(given)


@pytest.mark.parametrize("given", ["runs/first", None, 3], ids=str)
@pytest.mark.parametrize("call", TAKES_A_RESULT.values(), ids=TAKES_A_RESULT)
def test_what_is_no_result_is_refused_with_the_way_to_one(call: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(SpecificationError, match=r"must be.*Result\.load"):
        call(given)


@pytest.mark.parametrize("call", [vfl.resume, vfl.Result.load], ids=["resume", "load"])
def test_what_is_no_folder_is_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises(SpecificationError, match=r"folder must be .*, not 3"):
        call(3)


def test_the_environment_of_a_job_file_is_data_site_and_ledger(tmp_path: Path) -> None:
    """`vfl.train` takes what `Job.from_toml` returns, and a resumed run finds the data again."""
    rows = "\n".join(f"{k},{k % 7},{'yes' if k % 2 else 'no'}" for k in range(40))
    (tmp_path / "all.csv").write_text("income,calls,default\n" + rows)
    named = FILE.split("[data]")[0] + '[simulation]\ntable = "all.csv"\n[ledger]\npath = "none.db"\n'
    spec, environment = read(tmp_path, named, "solver.passes=2", 'dataset="d"')
    with pytest.raises(PrivacyError, match="the ledger of data set"):
        vfl.train(spec, environment)
    spec = dataclasses.replace(spec, dataset=None)
    environment = dataclasses.replace(environment, ledger=vfl.Ledger())
    result = vfl.train(spec, environment, output=tmp_path / "run")
    assert result.certificate.n_records == 40
    assert str(tmp_path / "all.csv") in (tmp_path / "run" / "rounds.log").read_text()
