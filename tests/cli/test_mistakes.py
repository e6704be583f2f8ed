"""Error messages of the command line: each names a remedy that a job file or an option accepts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

import vfl
from vfl.errors import WITHOUT_PRIVACY, entry, nearest
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

N = 40
JOB = """format = 1
name = "credit"

[partition]
parties = { bank = ["income", "age"], telco = ["calls"] }
label = ["bank", "default"]

[bounds]
income = [0, 100]
age = [18, 100]
calls = [0, 500]

[privacy]
epsilon = 2.0
delta = 1e-5

[solver]
passes = 2

[simulation]
table = "all.csv"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a job file and its table, and run commands from it."""
    rng = np.random.default_rng(5)
    income, age, calls = rng.uniform(0, 100, N), rng.uniform(18, 100, N), rng.integers(0, 500, N)
    table = pa.table({"income": income, "age": age, "calls": calls, "default": (income > 50).astype(int)})
    pacsv.write_csv(table, tmp_path / "all.csv")
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ASSIGNMENTS = [
    ("penalty=l2", "[penalty]: strength is missing"),
    ("solver=SkGDD", "unknown kind 'SkGDD' in [solver] (did you mean 'SkGD'"),
    ("penalty.strength=1", "[penalty] needs a kind; known: "),
    ("epsilon=2", "it belongs to [privacy] or [evaluation] or [start] (--set privacy.epsilon=...)"),
    ("delta=1e-6", "it belongs to [privacy] or [start] (--set privacy.delta=...)"),
    ("passes=2", "it belongs to [solver] (--set solver.passes=...)"),
    ("strength=2", "it belongs to [penalty] (--set penalty.strength=...)"),
    ("solver.epsilon=2", "unknown key 'epsilon' in [solver]; it belongs to [privacy] or [evaluation]"),
    (
        "privacy.holdout=0.2",
        "unknown key 'holdout' in [privacy]; it belongs to [evaluation] (--set evaluation.holdout=...); known: ",
    ),
    ("dta.bank=x.csv", "unknown key 'dta' in the job file (did you mean 'data' or 'dataset'?)"),
    ("privacy=2", "[privacy] must be a table, not a whole number"),
    ("bounds=[1]", "[bounds] must be a table, not a list"),
    (
        "privacy.epsilon=0",
        "epsilon must be positive and finite, not 0; or train without privacy (privacy=None, or",
    ),
    ("bounds.income=[1]", "bounds are two numbers, low and high, not [1]"),
    (
        "solver.clip=inf",
        "clip=inf bounds no record's influence: give a finite clip, or train without privacy (privacy=None, or",
    ),
    ("evaluation.holdout=x", "[evaluation]: holdout must be a number, not 'x'"),
    ("holdout=0.2", "unknown key 'holdout' in the job file; it belongs to [evaluation] (--set evaluation.holdout=...)"),
    ("solver={kind='NoisyGram'}", "NoisyGram needs loss='squared'"),
    ("id_kind=integer", "it is now id = vfl.columns.Id"),
    ("storage=float32", "unknown key 'storage' in the job file; it is now precision of the job"),
    (
        "fill.calls=0",
        "it is now fill of the column in columns (vfl.Numeric(fill=VALUE), fill = VALUE under [columns.COLUMN]",
    ),
    ("sparse=[]", "it is now sparse of vfl.FeaturePartition ([partition] of a job file)"),
    ("privacy.class_balance=0.1", "it belongs to [evaluation] (--set evaluation.class_balance=...)"),
    ("read_from_data=x", "it belongs to [privacy] (--set privacy.read_from_data=...)"),
]


@pytest.mark.parametrize(("assignment", "said"), ASSIGNMENTS)
def test_a_value_in_the_wrong_place_or_spelling(
    folder: Path, call: Callable[..., Said], assignment: str, said: str
) -> None:
    answer = call("plan", "job.toml", "--set", assignment)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


@pytest.mark.parametrize(
    ("assignment", "tables"),
    [
        ('bounds."mean radius"=[5, 30]', {"bounds": {"mean radius": [5, 30]}}),
        ("bounds.mean radius=[5, 30]", {"bounds": {"mean radius": [5, 30]}}),
        ("bounds.'a.b=c'=[0, 1]", {"bounds": {"a.b=c": [0, 1]}}),
        ("data.bank=x=y.csv", {"data": {"bank": "x=y.csv"}}),
        ("evaluation.holdout=0.2", {"evaluation": {"holdout": 0.2}}),
    ],
)
def test_names_may_be_quoted(assignment: str, tables: dict[str, object]) -> None:
    plain: dict[str, object] = {}
    jobfile.override(plain, [assignment])
    assert plain == tables


TEXTS = [
    ("[privacy]", "[privacy", "; line 13 is: [privacy\n"),
    ('name = "credit"', "name = credit", "; line 2 is: name = credit\n"),
    ("epsilon = 2.0", "epsilon = 2.0\nepsilon = 3.0", "; line 15 is: epsilon = 3.0\n"),
    ("passes = 2", "passes = 2\n\n[privacy]", "; line 20 is: [privacy]\n"),
    (
        "income = [0, 100]\n",
        "",
        (
            "no bounds for column 'income': declare bounds={'income': (low, high)}, or income = [LOW, HIGH] under [bounds] of "
            "a job file, or vfl.Categorical for text, release"
        ),
    ),
    (
        '"income", "age"',
        '"incme", "age"',
        (
            "column 'income' is declared, and no party of the partition holds it (did you mean 'incme'?); spell it alike "
            "in the partition, the declarations and the data"
        ),
    ),
]


@pytest.mark.parametrize(("there", "instead", "said"), TEXTS)
def test_an_invalid_file(folder: Path, call: Callable[..., Said], there: str, instead: str, said: str) -> None:
    (folder / "job.toml").write_text(JOB.replace(there, instead), encoding="utf-8")
    answer = call("plan", "job.toml")
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"calls": None},
            (
                "column 'calls' has missing values: declare columns={'calls': vfl.Numeric(fill=VALUE)}, or calls = { fill = "
                "VALUE } under [columns] of a job file, or complete it"
            ),
        ),
        (
            {"default": "maybe"},
            (
                "label 'default' is not 0/1 or boolean: declare its two classes, the negative one first: "
                'classes = ["NEGATIVE", "POSITIVE"] (above the tables of a job file; numbers need no quotes: [-1, 1]); for '
                'more classes choose loss = "multinomial", for numbers "squared" or "poisson"'
            ),
        ),
    ],
)
def test_invalid_data(folder: Path, call: Callable[..., Said], change: dict[str, object], said: str) -> None:
    table = pacsv.read_csv("all.csv")
    for column, value in change.items():
        cells = [value, *table[column].to_pylist()[1:]]
        table = table.set_column(
            table.column_names.index(column), column, [list(map(str, cells)) if value is not None else cells]
        )
    pacsv.write_csv(table, folder / "all.csv")
    answer = call("run", "job.toml", "--at", "inprocess", "--output", "run")
    assert answer.code == 3
    assert said in answer.err


def test_remedies_can_be_copied_into_a_job_file(tmp_path: Path) -> None:
    """Job-file lines in remedies, with values put in, parse to the intended values."""
    bounds, fill = (
        entry(option, "a b", "...", value).partition(", or ")[2].removesuffix(f" under [{option}] of a job file")
        for option, value in (("bounds", "[0, 1]"), ("columns", "{ fill = 0.5 }"))
    )
    (privacy,) = re.findall(r'privacy = "\w+"', WITHOUT_PRIVACY)
    text = (
        f'format = 1\n{privacy}\n[partition]\nparties = {{ x = ["a b"] }}\nlabel = ["x", "y"]\n'
        f"[bounds]\n{bounds}\n[columns]\n{fill}\n"
    )
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    job, _ = jobfile.read(tmp_path / "job.toml")
    assert job.schema["a b"] == vfl.Numeric(bounds=(0, 1), fill=0.5)
    assert job.privacy is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "job.toml"), "There is no command 'train' (it is vfl run)."),
        (("trian", "job.toml"), "There is no command 'trian' (it is vfl run)."),
        (("vrify", "x"), "There is no command 'vrify' (did you mean 'verify'?)."),
        (("run", "job.toml", "--epsilon", "2"), ": a value of the job is given as --set privacy.epsilon=..."),
        (("plan", "job.toml", "--solver", "SGD"), ": a value of the job is given as --set solver.kind=..."),
        (("run", "job.toml", "--ledger", "b.db"), "No such option '--ledger': it is --set ledger.path=FILE"),
        (("show", "run", "--ledger", "b.db"), "No such option '--ledger'."),
        (("verify", "run", "--key", "k"), "No such option '--key': it is --signer"),
        (("join", "f.toml", "--cores", "2"), "No such option '--cores': it is a limit of the process"),
        (("resume", "run", "--signing-key", "k"), "it is the environment variable VFL_KEY"),
        (("tune", "job.toml", "-n", "9"), "it is vfl plan JOB --candidates FILE --records N"),
        (("show", "a", "b", "--output", "c"), "No such option '--output': it is vfl report RUN..."),
        (("federation", "new", "x", "--output", "y"), "No such option '--output': it is a path as NAME"),
        (("verify", "run", "--start", "x"), "No such option '--start': it is --warm-start"),
        (
            ("ledger", "replay", "b.db"),
            "There is no command 'replay' (it is vfl ledger show LEDGER DATASET --accountant",
        ),
        (("identity", "show", "b.pem"), "There is no command 'show' (it is vfl federation show, for members"),
        (("ledger", "verfy", "b.db"), "There is no command 'verfy' (did you mean 'verify'?)."),
        (("run", "job.toml", "--bogus"), "No such option '--bogus'."),
        (("verify", "run", "--epsilon", "2"), "No such option '--epsilon'."),
        (("run", "job"), "(did you mean 'job.toml'?); examples: "),
        (("run", "."), "cannot read job file '.': Is a directory"),
        (("predict", "run", "--data", "none.csv"), "there is no folder 'run'"),
        (("ledger", "settle", "run"), "there is no folder 'run'"),
        (("resume", "job.toml"), "'job.toml' is a file: name the folder that a run left"),
        (
            ("plan", "job.toml", "--set", "partition.label=y"),
            'the label is a party and its column, ["PARTY", "COLUMN"], not',
        ),
        (("plan", "job.toml", "--set", "bounds.age=[9, 1]"), "bounds [9, 1] are reversed: write [1, 9]"),
        (("plan", "job.toml", "--set", 'partition.label=["bnk", "y"]'), "is listed with no columns, []"),
        (
            ("plan", "job.toml", "--set", "simulation.table=none.csv"),
            "none.csv': no such file or folder; correct table = ... under [simulation]",
        ),
        (
            ("init", "none.csv"),
            "file 'none.csv': no such file or folder; a relative path starts at the party's working folder",
        ),
        (("run", "job.toml", "--set", "dataset=d"), "(ledger=..., or --set ledger.path=FILE)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_invalid_command(folder: Path, call: Callable[..., Said], words: tuple[str, ...], said: str) -> None:
    answer = call(*words)
    assert answer.code in (2, 3, 6)
    assert said in answer.err


PARTS = JOB.replace('[simulation]\ntable = "all.csv"', '[data]\nbank = "bank.csv"\ntelco = "telco.csv"')
ID_NAMES = [
    ({}, "", None),
    ({"telco": "user"}, "", '; telco.csv has a column \'user\': id = { "bank" = "...", "telco" = "user" } at the top'),
    ({"bank": "customer_id", "telco": "user"}, "", ': id = { "bank" = "customer_id", "telco" = "user" } at the top'),
    (
        {"bank": "customer_id", "telco": "customer_id"},
        "",
        "; bank.csv has a column 'customer_id', telco.csv has a column 'customer_id': id = \"customer_id\" at the top",
    ),
    ({"bank": "customer_id", "telco": "customer_id"}, 'id = "customer_id"\n', None),
    ({"bank": "customer_id", "telco": "customer_id"}, "[simulation]", None),
]


@pytest.mark.parametrize(("ids", "instead", "said"), ID_NAMES)
def test_rows_that_could_be_aligned_are_mentioned(
    folder: Path, call: Callable[..., Said], ids: dict[str, str], instead: str, said: str | None
) -> None:
    """The plan reads headers only, so the cells of its files may hold anything."""
    whole = pacsv.read_csv("all.csv")
    for party, columns in {"bank": ["income", "age", "default"], "telco": ["calls"]}.items():
        table = whole.select(columns)
        if party in ids:
            table = table.append_column(ids[party], [[f"r{k}" for k in range(N)]])
        pacsv.write_csv(table, folder / f"{party}.csv")
    text = JOB if instead == "[simulation]" else PARTS.replace("[partition]", f"{instead}[partition]", 1)
    (folder / "job.toml").write_text(text, encoding="utf-8")
    planned = call("plan", "job.toml", "-n", "40")
    plain = json.loads(call("plan", "job.toml", "-n", "40", "--json").out)
    ran = call("run", "job.toml", "--at", "inprocess", "--output", "run")
    again = json.loads(call("run", "job.toml", "--at", "inprocess", "--output", "again", "--json").out)
    assert ran.code == 0, ran.err
    assert [len(found["warnings"]) for found in (plain, again)] == [int(said is not None)] * 2
    assert planned.out.count("  warning    row i of every file is taken") == int(said is not None)
    assert ran.err.count("warning: row i of every file is taken") == int(said is not None)
    if said is not None:
        assert all(said in text for text in (planned.out, ran.err, plain["warnings"][0], again["warnings"][0]))


@pytest.mark.parametrize("command", ["run", "align"])
def test_a_missing_file_is_reported_before_ray_starts(
    folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (folder / "bank.csv").write_text("income,age,default\n", encoding="utf-8")
    (folder / "telco.csv").write_text("calls\n", encoding="utf-8")
    (folder / "job.toml").write_text(PARTS.replace("bank.csv", "bnk.csv"), encoding="utf-8")
    monkeypatch.setattr("vfl.launch.sites.connection.import_ray", lambda: pytest.fail("Ray was imported"))
    answer = call(command, "job.toml")
    assert answer.code == 3
    assert "bnk.csv': no such file or folder (did you mean 'bank.csv'?)" in answer.err
    assert "--set data.bank=FILE" in answer.err


class TestRunFolders:
    @pytest.fixture
    def cut_off(self, folder: Path, call: Callable[..., Said]) -> str:
        """Make a run that lacks only the files written at its end."""
        assert call("run", "job.toml", "--at", "inprocess", "--output", "run", "--json").code == 0
        for name in ("model.json", "certificate.json"):
            (folder / "run" / name).unlink()
        return "run"

    @pytest.mark.parametrize(
        "words",
        [
            ("verify", "RUN"),
            ("evaluate", "RUN"),
            ("evaluate", "RUN", "--data", "all.csv"),
            ("predict", "RUN", "--data", "all.csv"),
            ("report", "RUN"),
            ("export", "RUN", "--output", "out"),
        ],
        ids=" ".join,
    )
    def test_an_unfinished_run_is_to_be_resumed(
        self, cut_off: str, call: Callable[..., Said], words: tuple[str, ...]
    ) -> None:
        answer = call(*(cut_off if word == "RUN" else word for word in words))
        assert (answer.code, answer.out) == (6, "")
        assert f"vfl resume {cut_off}" in answer.err
        missing = call(*("nowhere" if word == "RUN" else word for word in words))
        assert missing.code == 6
        assert "no folder 'nowhere'" in missing.err

    def test_a_finished_run_is_only_shown(self, folder: Path, call: Callable[..., Said]) -> None:
        """Its data may no longer exist."""
        assert call("run", "job.toml", "--at", "inprocess", "--output", "run", "--json").code == 0
        (folder / "all.csv").unlink()
        again = call("resume", "run")
        assert (again.code, again.err) == (0, "the run in 'run' is finished: nothing is left to do\n")
        assert "differentially private for every record" in again.out

    def test_the_result_names_training_and_held_out_records(self, folder: Path, call: Callable[..., Said]) -> None:
        call("run", "job.toml", "--at", "inprocess", "--output", "run", "--json", "--set", "evaluation.holdout=0.25")
        result = vfl.Result.load("run")
        held_out = result.findings["held out"].n_records
        assert f"Result of job 'credit': 40 records ({held_out} of them held out), 3 features" in repr(result)


def test_a_file_that_is_not_a_certificate_is_named(folder: Path, call: Callable[..., Said]) -> None:
    answer = call("verify", "job.toml")
    assert answer.code == 6
    assert "'job.toml' is not a certificate" in answer.err


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("SKGD", ["SGD", "SkGD", "GD"], " (did you mean 'SkGD'?)"),
        ("Income", ["income", "incomes"], " (did you mean 'income'?)"),
        ("incme", ["income"], " (did you mean 'income'?)"),
        ("x", ["income"], ""),
        ("gr\u00f6\u00dfe", ["gro\u0308\u00dfe"],
         " (there is one in another normal form of Unicode, which looks the same: write both in form NFC)"),
    ],
)  # fmt: skip
def test_the_nearest_name_ignores_case_first(name: str, known: list[str], said: str) -> None:
    assert nearest(name, known) == said
