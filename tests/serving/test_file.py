"""The service file: what it reads, and the entry that each error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from vfl.apps.serving.file import read_service
from vfl.errors import SpecificationError

TEXT = f"""
format = 1
party = "bank"
answer_timeout_s = 2

[data]
bank = "bank.csv"
telco = "duckdb:///there/telco.duckdb?table=t"

[policies]
bank = "bank.policy.toml"
telco = "/telco.policy.toml"

[models.credit]
active = "new"
versions = {{ new = "runs/credit" }}

[callers.branch]
token = "{"a" * 64}"
models = ["credit"]
records = 10
"""


def test_paths_start_at_its_folder(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text(TEXT)
    read = read_service(tmp_path / "serve.toml")
    assert read.models["credit"].versions == {"new": tmp_path / "runs/credit"}
    assert read.data == {"bank": str(tmp_path / "bank.csv"), "telco": "duckdb:///there/telco.duckdb?table=t"}
    assert read.policies == {"bank": tmp_path / "bank.policy.toml", "telco": Path("/telco.policy.toml")}
    assert (read.callers["branch"].name, read.callers["branch"].models) == ("branch", ("credit",))
    assert (read.party, read.answer_timeout_s, read.federation) == ("bank", 2, None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "format = 2", "needs format = 1"),
        ('party = "bank"', "", "party is missing"),
        ('party = "bank"', "party = 3", "party must be text"),
        ("answer_timeout_s = 2", "answer_timeout_s = 0", "answer_timeout_s must be positive"),
        ("answer_timeout_s", "answer_secnds", "answer_secnds is unknown .did you mean 'answer_timeout_s'"),
        ('active = "new"', 'active = "old"', "models.credit.active must be one of the versions: new"),
        ('"runs/credit"', "3", "models.credit.versions must be a table of paths"),
        ('active = "new"', 'active = "new"\nfallback = "x"', "models.credit.fallback must be one of refuse, fill"),
        ("[models.credit]", '[models."a b"]', "models.a b needs names"),
        ("[callers.branch]", "[caller.branch]", "caller is unknown"),
        ("records = 10", 'records = 10\nname = "head office"', "callers.branch.name is unknown"),
        ('active = "new"', 'active = "new"\nname = "x"', "models.credit.name is unknown"),
        ("format = 1", 'format = 1\npath = "/x"', "path is unknown"),
        (f'token = "{"a" * 64}"', "", "callers.branch has neither token nor certificate"),
        ("a" * 64, "a", "callers.branch.token must be the SHA-256"),
        ("records = 10", "records = -1", "callers.branch.records must be a whole number"),
        ("records = 10", "rate = 0.0", "callers.branch.rate must be positive"),
        ("records = 10", "certificate = 1", "callers.branch.certificate must be the path"),
        ('models = ["credit"]', 'models = "credit"', "callers.branch.models must be a list of text"),
        ('telco = "/telco.policy.toml"', "", "policies.telco is missing"),
        ('bank = "bank.csv"', "", "data.bank is missing"),
        ('party = "bank"', 'party = "bank"\nlisten = "0.0.0.0:80"', "travel over HTTPS only"),
        ('party = "bank"', 'party = "bank"\nkey = "k"', "certificate and key belong together"),
        ('party = "bank"', 'party = "bank"\nmetrics = "x"', "metrics: 'x' is not an address"),
    ],
)
def test_errors_name_the_entry(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    (tmp_path / "serve.toml").write_text(TEXT.replace(old, new, 1))
    with pytest.raises(SpecificationError, match=said):
        read_service(tmp_path / "serve.toml")
