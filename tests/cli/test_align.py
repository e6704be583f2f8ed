"""`vfl align`, and the commands that use a job with an id column."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Said

N = 90
JOB = """
format = 1
name = "credit"
id = "customer"

[partition]
parties = { bank = ["income"], telco = ["calls"] }
label = ["bank", "default"]

[bounds]
income = [-1, 1]
calls = [-1, 1]

[privacy]
epsilon = 2.0
delta = 1e-5

[solver]
kind = "SkGD"
passes = 3
"""
DATA = """
[data]
bank = "bank.parquet"
telco = "telco.csv"

[alignment]
num_cpus = 1

[alignment.index]
bank = "own/bank"
telco = "own/telco"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a job file and two files in different row order, and run commands from it."""
    rng = np.random.default_rng(1)
    whole = pd.DataFrame({"customer": [f"c{k}" for k in range(N)], "income": rng.uniform(-1, 1, N)})
    whole = whole.assign(calls=rng.uniform(-1, 1, N), default=(whole.income > 0).astype(int))
    whole[["customer", "income", "default"]][10:].to_parquet(tmp_path / "bank.parquet", index=False)
    whole[["customer", "calls"]].sample(70, random_state=2).to_csv(tmp_path / "telco.csv", index=False)
    whole.to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "job.toml").write_text(JOB + DATA, encoding="utf-8")
    (tmp_path / "one.toml").write_text(JOB + '\n[simulation]\ntable = "all.csv"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def common(folder: Path) -> int:
    return len(pd.read_parquet(folder / "bank.parquet").merge(pd.read_csv(folder / "telco.csv"), on="customer"))


def test_align_prints_the_count_and_who_learned_what(folder: Path, call: Callable[..., Said]) -> None:
    said = call("align", "job.toml", "--at", "inprocess")
    assert said.code == 0, said.err
    assert f"{common(folder)} records are common" in said.out
    assert "(of 80 of bank, 70 of telco)" in said.out
    assert "coordinator learned" in said.out
    assert "aligning 300/300  comparing" in said.err
    assert len(list(folder.glob("own/*/*.index"))) == 2


def test_align_then_run_then_predict(folder: Path, call: Callable[..., Said], call_apart: Callable[..., Said]) -> None:
    told = call_apart("align", "job.toml", "--at", "inprocess", "--json")
    outcome = json.loads(told.out)
    assert told.err == ""
    assert (outcome["n_records"], outcome["sizes"]) == (common(folder), {"bank": 80, "telco": 70})
    assert outcome["kept"] is True
    ran = call("run", "job.toml", "--at", "inprocess", "--output", "run")
    assert ran.code == 0, ran.err
    assert f"earlier alignment: {common(folder)} records" in ran.err
    certificate = json.loads((folder / "run" / "certificate.json").read_text(encoding="utf-8"))
    assert certificate["n_records"] == common(folder)
    assert "in the alignment" in certificate["who_sees_what"]["party"]
    verified = call("verify", "run")
    assert verified.code == 0, verified.err
    pd.read_csv("telco.csv").assign(calls=0.5).to_csv("telco.csv", index=False)
    changed = call("run", "job.toml", "--at", "inprocess", "--output", "other")
    assert (changed.code, changed.out) == (3, "")
    assert re.search("party 'telco'.*data changed", changed.err)
    assert not (folder / "other").exists()


def test_a_simulated_job_aligns_its_one_table(
    folder: Path, call: Callable[..., Said], call_apart: Callable[..., Said]
) -> None:
    outcome = json.loads(call("align", "one.toml", "--at", "inprocess", "--json").out)
    assert (outcome["n_records"], outcome["kept"]) == (N, False)
    ran = call_apart("run", "one.toml", "--at", "inprocess", "--output", "run", "--json")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    predicted = call("predict", "run", "--data", "all.csv")
    assert len(predicted.out.splitlines()) == N + 1


def test_the_plan_includes_the_alignment(call: Callable[..., Said], folder: Path) -> None:
    said = call("plan", "job.toml", "--records", "1000000")
    assert re.search(r"align +by customer, about 54 s on one core .*1000000", said.out)
    planned = json.loads(call("plan", "job.toml", "--records", "1000", "--json").out)["alignment"]
    assert planned["id"] == {"bank": ["customer"], "telco": ["customer"]}
    assert "n" in planned["reveals"]["outsider"]
    assert json.loads(call("plan", "job.toml", "-n", "10", "--set", "id=customer", "--json").out)["alignment"]


def test_a_valid_alignment_is_reused(folder: Path, call: Callable[..., Said]) -> None:
    def aligned(*options: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(call("align", "job.toml", "--at", "inprocess", "--json", *options).out)
        return told

    first, second, third = aligned(), aligned(), aligned("--again")
    assert [told["reused"] for told in (first, second, third)] == [False, True, False]
    assert first["alignment"] == second["alignment"] != third["alignment"]
    assert second["sizes"] == {"bank": 80, "telco": 70}
    said = call("align", "job.toml", "--at", "inprocess")
    assert "still holds an alignment" in said.out
    assert "aligning" not in said.err
    pd.read_csv("telco.csv")[5:].to_csv("telco.csv", index=False)
    changed = aligned()
    assert (changed["reused"], changed["sizes"]["telco"], changed["n_records"]) == (False, 65, common(folder))
    assert call("run", "job.toml", "--at", "inprocess", "--output", "run", "--json").code == 0
    for kept in (folder / "own" / "bank").glob("*.index"):  # the ledger of the job, and that of the run
        kept.unlink()
    assert aligned()["reused"] is False


def test_a_plan_takes_n_from_the_alignment(
    folder: Path, call: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    asked = call("plan", "job.toml")
    assert asked.code == 2
    assert re.search("--records N.*vfl align JOB", asked.err)
    call("align", "job.toml", "--at", "inprocess")
    assert json.loads(call("plan", "job.toml", "--json").out)["n_records"] == common(folder)
    said = call("plan", "job.toml").out
    assert f"n was found by vfl align: {common(folder)} records" in said
    assert ", as done by vfl align\n" in said
    assert "s on one core" not in said
    assert json.loads(call("plan", "job.toml", "--json", "-n", "500").out)["n_records"] == 500
    backwards = JOB + '[data]\ntelco = "telco.csv"\n[data.bank]\npath = "bank.parquet"\n'
    (folder / "backwards.toml").write_text(backwards, encoding="utf-8")
    assert call("plan", "backwards.toml").code == 0
    assert call("plan", "job.toml", "--set", "data.bank=other.parquet").code == 2
    for note in (folder / "state").rglob("*.noted"):
        assert json.loads(note.read_text(encoding="utf-8")) == {"format": 1, "n_records": common(folder)}
        note.write_text("{", encoding="utf-8")
    assert call("plan", "job.toml").code == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--set", "id=custumer"], 3, "there is no column 'custumer' (did you mean 'customer'?)"),
        (["--set", "id=income"], 2, "the id column 'income' is also a feature or the label"),
        (["--set", "alignment.num_cpu=2"], 2, "unknown key 'num_cpu' in [alignment] (did you mean 'num_cpus'?)"),
        (["--set", "alignment.num_cpus=many"], 2, "[alignment]: num_cpus must be a whole number, not 'many'"),
        (["--set", "alignment.index.telc=own"], 2, "unknown key 'telc' in [alignment.index] (did you mean 'telco'?)"),
        (["--set", "data.telco=bank.parquet"], 3, "party 'telco', file"),
        (["--at", "aray"], 2, "unknown site at='aray'"),
    ],
)
def test_errors_name_cause_and_remedy(
    folder: Path, call: Callable[..., Said], options: list[str], code: int, message: str
) -> None:
    said = call("align", "job.toml", "--at", "inprocess", *options)
    assert said.code == code
    assert message in said.err
    assert not list(folder.glob("own/*/*"))


def test_a_model_split_by_party_predicts_from_the_command_line(folder: Path, call: Callable[..., Said]) -> None:
    call("run", "job.toml", "--at", "inprocess", "--output", "run")
    data = ("--data", "bank=bank.parquet", "--data", "telco=telco.csv")
    whole = call("predict", "run", *data, "--output", "whole.csv")
    rows = pd.read_csv(folder / "whole.csv")
    sizes = {"bank": len(pd.read_parquet(folder / "bank.parquet")), "telco": len(pd.read_csv(folder / "telco.csv"))}
    unmatched = ", ".join(f"{n - len(rows)} of {n} of {party}" for party, n in sizes.items())
    assert whole.err == f"matched {len(rows)} records; rows without a counterpart: {unmatched}\n"
    assert (whole.code, whole.out) == (0, f"predictions of {len(rows)} records: whole.csv\n")
    own = pd.read_parquet(folder / "bank.parquet").customer
    assert list(rows.columns) == ["customer", "score", "prediction", "probability"]
    assert rows.customer.tolist() == own[own.isin(pd.read_csv(folder / "telco.csv").customer)].tolist()
    for party in ("bank", "telco"):
        assert call("export", "run", "--party", party, "--output", f"{party}.json").out.strip() == f"{party}.json"
    split = ("bank=bank.json", "telco=telco.json")
    assert call("predict", *split, *data).out == (folder / "whole.csv").read_text(encoding="utf-8")
    said = json.loads(call("predict", *split, *data, "--json").out)
    assert said["unmatched"] == {party: n - len(rows) for party, n in sizes.items()}
    assert (said["n_records"], said["id"], said["predictions"][0]["id"]) == (len(rows), "customer", rows.customer[0])
    for form in ("sklearn", "sql", "onnx"):
        for words in ((), ("--party", "telco")):
            path = f"{form}{len(words)}"
            assert call("export", "run", "--form", form, *words, "--output", path).out == f"{path}\n"
    assert "score_part" in (folder / "sql2").read_text("utf-8")
    assert call("export", "run", "--output", "parts").out.split() == ["parts/bank.part.json", "parts/telco.part.json"]
    for words, code, message in (
        (("predict", *data), 2, "Missing argument 'RUN | PARTY=PART...'"),
        (("predict", "run", *split, *data), 2, "name the folder RUN of one model, or PARTY=FILE"),
        (("predict", *split, "bank", *data), 2, "a part of the model takes PARTY=FILE, not 'bank'"),
        (("predict", "--part", "bank=bank.json", *data), 2, "it is PARTY=FILE in the place of RUN"),
        (("export", "run", "--party", "bnk", "--output", "new"), 2, "there is no party 'bnk' (did you mean 'bank'?)"),
        (("export", "run", "--party", "bank", "--output", "bank.json"), 6, "exists: name a new one"),
        (("export", "run", "--onnx", "--output", "new"), 2, "No such option '--onnx': it is --form"),
    ):
        failed = call(*words)
        assert (failed.code, message in failed.err) == (code, True), failed.err


def test_a_drafted_job_is_refused_until_its_values_are_declared(folder: Path, call: Callable[..., Said]) -> None:
    files = ("bank=bank.parquet", "telco.csv")
    said = call("init", *files, "--id", "customer", "--output", "draft.toml")
    first = (
        "the label is bank.default",
        'loss = "logistic": check that it fits the label',
        'id = "customer": by which records',
    )
    assert said.out.startswith("\n".join(f"draft.toml: {line}" for line in first))
    assert "\ndraft.toml: 2 declarations are left" in said.out
    assert said.out.endswith("\nnext: declare them in draft.toml, then: vfl plan draft.toml --records N\n")
    assert call("init", *files, "--id", "customer").out == (folder / "draft.toml").read_text(encoding="utf-8")
    refused = call("run", "draft.toml", "--at", "inprocess")
    assert (refused.code, refused.err.startswith("error: no bounds for column 'income'")) == (2, True)
    note = "vfl init left these declarations to you, as comments in draft.toml that end in 'read off the records: NOT "
    assert refused.err.endswith(f"\n{note}PRIVATE unless publicly known': income, calls under [bounds]\n")
    declared = ("--set", "bounds.income=[-1, 1]", "--set", "bounds.calls=[-1, 1]", "--set", "alignment.num_cpus=1")
    assert call("run", "draft.toml", "--at", "inprocess", "--output", "run", *declared).code == 0
    for words, code, message in (
        ((*files, "--output", "draft.toml"), 6, "exists: name a new one"),
        ((*files, "bank=telco.csv"), 2, "two files are given for party 'bank': name each, PARTY=FILE"),
        (("absent.csv",), 3, "party 'absent', file 'absent.csv': no such file or folder"),
    ):
        failed = call("init", *words)
        assert (failed.code, message in failed.err) == (code, True), failed.err


def test_a_model_is_measured_on_the_records_that_all_parties_have(folder: Path, call: Callable[..., Said]) -> None:
    """Records are matched by ids, in other orders and sets. The measures equal those on one table of the same
    records."""
    call("run", "job.toml", "--at", "inprocess", "--output", "run")
    joined = pd.read_parquet("bank.parquet").merge(pd.read_csv("telco.csv"), on="customer")
    joined.to_csv("joined.csv", index=False)
    by_id = json.loads(
        call("evaluate", "run", "--data", "bank=bank.parquet", "--data", "telco=telco.csv", "--json").out
    )
    as_one = json.loads(call("evaluate", "run", "--data", "joined.csv", "--json").out)
    assert by_id["data"]["n_records"] == common(folder)
    assert by_id["data"]["measures"] == as_one["data"]["measures"]
    assert "joined by their ids" in by_id["data"]["note"]
    shuffled = pd.read_csv("telco.csv").sample(frac=1, random_state=3)
    shuffled.drop(columns="customer").to_csv("bare.csv", index=False)
    failed = call("evaluate", "run", "--data", "bank=bank.parquet", "--data", "telco=bare.csv")
    assert failed.code == 3
    assert re.search("'telco'.*no id column 'customer'", failed.err)


@pytest.mark.parametrize(
    ("party", "change", "options", "code", "message"),
    [
        ("telco", {"calls": "many"}, (), 3, "column 'calls' holds text where numbers are declared"),
        ("bank", {"income": "1"}, (), 3, "column 'income' holds text where numbers are declared"),
        ("bank", {"default": [[]]}, (), 3, "column 'default' holds values of type list<"),
        ("bank", {"default": "yes"}, (), 3, "label 'default' is not 0/1 or boolean"),
        ("bank", {}, ("--set", "classes=['no', 'yes']"), 3, "none of its declared categories or classes is one"),
        (
            "telco",
            {},
            ("--set", "columns.calls={kind='categorical', categories=['NA', 'b']}", "--set", "bounds.calls="),
            3,
            "category 'NA', which the file reads as a missing cell",
        ),
        ("bank", {}, ("--set", "solver={kind='NoisyGram'}"), 2, "NoisyGram needs loss='squared'"),
    ],
)
def test_problems_known_before_an_alignment_are_reported_before_it(
    folder: Path,
    call: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
    party: str,
    change: dict[str, object],
    options: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    def blind(*given: object, **options: object) -> None:
        raise AssertionError("the alignment began")

    monkeypatch.setattr("vfl.crypto.psi.Blinder", blind)
    path = f"{party}.{'parquet' if party == 'bank' else 'csv'}"
    frame = pd.read_parquet(path) if party == "bank" else pd.read_csv(path)
    for column, value in change.items():
        frame[column] = value * len(frame) if isinstance(value, list) else value
    if party == "bank":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    failed = call("run", "job.toml", "--at", "inprocess", "--output", "run", *options)
    assert failed.code == code, failed.err
    assert message in failed.err
    assert "aligning" not in failed.err


def test_text_is_read_in_the_format_of_the_job(folder: Path, call: Callable[..., Said]) -> None:
    """A run of a file with semicolons predicts and measures further files with semicolons, unless --csv says otherwise."""
    telco = pd.read_csv("telco.csv")
    telco.to_csv("telco.csv", index=False, sep=";", decimal=",")
    telco.to_csv("plain.csv", index=False)
    form = DATA.replace('telco = "telco.csv"', "").replace(
        "[alignment]", '[data.telco]\npath = "telco.csv"\ndelimiter = ";"\ndecimal = ","\n\n[alignment]'
    )
    (folder / "job.toml").write_text(JOB + form, encoding="utf-8")
    assert call("run", "job.toml", "--at", "inprocess", "--output", "run").code == 0
    bank = ("--data", "bank=bank.parquet")
    first = call("predict", "run", *bank, "--data", "telco=telco.csv")
    plain = call(
        "predict", "run", *bank, "--data", "telco=plain.csv", "--csv", "telco.delimiter=,", "--csv", "decimal=."
    )
    assert (first.code, plain.code) == (0, 0), first.err + plain.err
    assert first.out == plain.out
    failed = call("predict", "run", *bank, "--data", "telco=plain.csv")
    assert failed.code == 3
    assert "check the format" in failed.err
    assert call("evaluate", "run", *bank, "--data", "telco=telco.csv").code == 0
    everywhere = call(
        "predict", "run", *bank, "--data", "telco=plain.csv", "--csv", "delimiter=,", "--csv", "decimal=."
    )
    assert everywhere.out == first.out  # a Parquet file has no format of text
