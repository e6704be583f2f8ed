"""Records that cannot be scored, data that cannot be read, and who is told which reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pandas as pd
import pytest
from prometheus_client import generate_latest

import vfl
from parties.prediction import ModelPart
from parties.services import serving
from parties.services.serving import ServingService
from tests.serving.setting import POLICY, Setting, table, train
from vfl.errors import SpecificationError
from vfl.network.federation.events import Warned
from vfl.network.messages import Asked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def result() -> vfl.Result:
    return train(columns={})


@pytest.fixture
def setting(tmp_path: Path, result: vfl.Result) -> Setting:
    """Return a service in whose data secret-5 lacks a cell at the telco, and secret-6 one at the bank."""
    made = Setting(tmp_path)
    made.prepare(result)
    for party, columns, row in (("bank", ["customer", "income", "age"], 6), ("telco", ["customer", "calls"], 5)):
        frame = table()[columns]
        frame.loc[row, columns[-1]] = None
        frame.to_csv(tmp_path / f"{party}.csv", index=False)
    return made


def warned(setting: Setting) -> list[Warned]:
    return [event for event in setting.events if isinstance(event, Warned)]


def data_events(setting: Setting) -> list[dict[str, Any]]:
    return [said for said in setting.said if said["event"] == "data"]


def test_a_missing_cell_refuses_its_own_record_and_only_the_owner_reads_why(
    setting: Setting, result: vfl.Result
) -> None:
    expected = dict(zip(table()["customer"], result.decision_function(table()), strict=True))
    asked = ["secret-3", "secret-5", "secret-6", "nobody", "secret-4"]
    with setting.joined(), setting.serving():
        answer = setting.ask(ids=asked)
        found = answer.json()["predictions"]
        assert [one.get("score") for one in found] == [expected["secret-3"], None, None, None, expected["secret-4"]]
        assert [one.get("error") for one in found] == [None, "unknown", "unknown", "unknown", None]
        assert answer.status_code == 200
        (telco,), (bank,) = warned(setting), data_events(setting)
        assert "'calls' has missing values" in telco.why
        assert "telco.csv" in telco.why
        assert "record 6 is" in telco.why
        assert not telco.stale
        assert bank["party"] == "bank"
        assert "'age' has missing values" in bank["why"]
        assert "calls" not in str(setting.said)
        assert "secret" not in str(setting.said) + str(setting.events)
        for party in ("bank", "telco"):
            setting.policy(party, "unusable = true\n")
        setting.until(lambda: setting.ask(ids=["secret-5"]).json()["predictions"][0].get("error") == "unusable")
        found = setting.ask(ids=asked).json()["predictions"]
        assert [one.get("error") for one in found] == [None, "unusable", "unusable", "unknown", None]


def test_a_missing_and_a_repeated_id_refuse_their_own_records(setting: Setting, result: vfl.Result) -> None:
    frame, path = table()[["customer", "calls"]], setting.folder / "telco.csv"
    pd.concat([frame[:10], frame[7:8].assign(calls=1.0), frame[10:].replace("secret-12", None)]).to_csv(
        path, index=False
    )
    setting.policy("telco", "unusable = true\n")
    expected = dict(zip(table()["customer"], result.decision_function(table()), strict=True))
    with setting.joined(), setting.serving():
        found = setting.ask(ids=["secret-7", "secret-12", *(f"secret-{k}" for k in range(13, 40))]).json()[
            "predictions"
        ]
        assert [one["error"] for one in found[:2]] == ["unusable", "unknown"]
        assert [one["score"] for one in found[2:]] == [expected[one["id"]] for one in found[2:]]
        assert "telco.csv" in warned(setting)[0].why
        assert "id column 'customer'" in warned(setting)[0].why
        assert "secret" not in warned(setting)[0].why


def test_a_fill_of_the_policy_scores_the_record_without_new_training(setting: Setting, result: vfl.Result) -> None:
    filled = table().assign(calls=table()["calls"].where(table()["customer"] != "secret-5", 7.0))
    expected = dict(zip(filled["customer"], result.decision_function(filled), strict=True))
    setting.policy("telco", "fill = { calls = 7.0 }\n")
    with setting.joined(), setting.serving():
        assert setting.ask(ids=["secret-5"]).json()["predictions"][0]["score"] == expected["secret-5"]
        assert warned(setting) == []
        setting.policy("telco")
        setting.until(lambda: "error" in (setting.ask(ids=["secret-5"]).json().get("predictions") or [{}])[0])


def test_unreadable_data_are_told_to_the_owner_in_readiness_and_in_metrics(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(serving, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr("vfl.apps.serving.scoring.CHECK_SECONDS", 0.1)

    def status() -> Any:
        return httpx.get(f"{setting.url}/readyz").json()["status"]

    with setting.joined(), setting.serving() as service:
        for party, column in (("telco", "calls"), ("bank", "age")):
            path = setting.folder / f"{party}.csv"
            before = path.read_text()
            path.write_text(
                before.replace("\n", "\nsecret-3" + ",secret" * before.splitlines()[0].count(",") + "\n", 1)
            )
            setting.until(lambda: status() == "stale")
            assert "score" in setting.ask(ids=["secret-3"]).json()["predictions"][0]
            line = f'vfl_serve_stale{{party="{party}"}} 1.0'
            setting.until(lambda line=line: line in generate_latest(service.application.registry).decode())
            why = warned(setting)[-1].why if party == "telco" else data_events(setting)[-1]["why"]
            assert path.name in why
            assert "column" in why
            assert "records read earlier" in why
            assert party == "bank" or column not in str(setting.said)
            said = f"{party}: cannot read its data, so earlier records are scored"
            setting.until(lambda said=said: {"event": "ready", "why": said} in setting.said)
            already = len(setting.said)
            service.reload(setting.said.append)
            later = setting.said[already:]
            assert any("not read again" in event.get("why", "") for event in later) is (party == "bank")
            path.write_text(before)
            setting.until(lambda: status() == "ready")
        path = setting.folder / "telco.csv"
        path.unlink()
        setting.until(lambda: status() == "stale")
        assert warned(setting)[-1].stale
        assert "no such file" in warned(setting)[-1].why


def test_the_log_says_what_keeps_the_service_from_answering(setting: Setting) -> None:
    with setting.serving(ready=False):
        setting.until(lambda: any("'telco' is away" in event.get("why", "") for event in setting.said))
        with setting.joined():
            setting.until(lambda: {"event": "ready"} in setting.said)


CELLS: dict[str, tuple[Any, Any, str]] = {
    "number": (1.5, math.nan, "missing"),
    "unbounded": (2.0, math.inf, "infinite"),
    "flag": (1.0, 0.5, "boolean"),
    "city": ("Bern", "Rom", "not declared"),
    "grade": ("low", None, "missing"),
    "day": ("2026-01-02", "2026-02-30", "not a date"),
}
"""{column: a cell that its declaration allows, one that it does not, words of the reason}."""


@pytest.fixture(scope="module")
def part() -> ModelPart:
    partition = vfl.FeaturePartition({"telco": [*CELLS], "bank": []}, ("bank", "default"))
    declared: dict[str, Any] = {
        "number": vfl.Numeric(bounds=(0, 9)),
        "flag": vfl.Boolean(),
        "city": vfl.Categorical(("Bern", "Genf"), unknown="refuse"),
        "grade": vfl.columns.Ordinal(("low", "high")),
        "day": vfl.columns.DateParts(("month",)),
    }
    job = vfl.Job(
        name="credit",
        partition=partition,
        loss="logistic",
        id="customer",
        columns=declared,
        scaling="none",
        privacy=None,
    )
    names = job.schema.features(partition.canonical_columns("telco"))
    return ModelPart(job, "telco", "0" * 64, names, np.arange(1.0, len(names) + 1.0), 0.0)


@pytest.mark.parametrize("column", CELLS)
def test_each_kind_of_bad_cell_refuses_its_own_record(tmp_path: Path, part: ModelPart, column: str) -> None:
    n = 5
    frame = pd.DataFrame({name: pd.Series([good] * n) for name, (good, _, _) in CELLS.items()})
    whole = part.scores(frame)
    frame.loc[3, column] = CELLS[column][1]
    frame.insert(0, "customer", [f"secret-{k}" for k in range(n)])
    frame.to_parquet(tmp_path / "telco.parquet")
    (tmp_path / "policy.toml").write_text(POLICY + "unusable = true\n")
    told: list[str] = []
    service = ServingService("telco", tmp_path / "policy.toml", "bank", lambda why, _: told.append(why))
    service.add(part, str(tmp_path / "telco.parquet"))
    Setting.until(lambda: service.keep([part.digest])[part.digest] == "")
    _, (found,) = service.score(
        [Asked(part.digest, "branch", "", n + 1)], [[*(b"secret-%d" % k for k in range(n)), b"x"]]
    )
    assert found is not None
    assert [*found] == pytest.approx([*whole[:3], np.inf, whole[4], np.nan], abs=0.0, nan_ok=True)
    assert f"column {column!r}" in told[0]
    assert CELLS[column][2] in told[0]
    assert "record 4 is" in told[0]
    assert f"{CELLS[column][1]}" not in told[0].replace("infinite", "")


def test_a_fill_that_the_declaration_does_not_allow_is_refused(tmp_path: Path, part: ModelPart) -> None:
    (tmp_path / "policy.toml").write_text(POLICY + 'fill = { city = "Rom" }\n')
    service = ServingService("telco", tmp_path / "policy.toml", "bank")
    with pytest.raises(SpecificationError, match="'city'"):
        service.add(part, str(tmp_path / "telco.parquet"))


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the telco's margins be infinite or no number for every record."""
    real = ServingService.score

    def score(own: ServingService, *given: Any, **more: Any) -> Any:
        outcomes, margins = real(own, *given, **more)
        if own._party == "telco":
            margins = [None if each is None else np.full_like(each, -np.inf) for each in margins]
        return outcomes, margins

    monkeypatch.setattr(ServingService, "score", score)


@pytest.mark.usefixtures("lying")
def test_a_party_that_sends_infinite_margins_makes_no_score(setting: Setting) -> None:
    with setting.joined(), setting.serving():
        answer = setting.ask(ids=["secret-3"])
        assert (answer.status_code, answer.json()["predictions"]) == (404, [{"id": "secret-3", "error": "unusable"}])
