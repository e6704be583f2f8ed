"""Scores over HTTP with two parties: equal to predictions, limited by policies and quotas, and logged without ids."""

from __future__ import annotations

import functools
import hmac
import json
import operator
import re
from typing import TYPE_CHECKING

import jsonschema
import numpy as np
import pyarrow as pa
import pytest

import vfl
from parties.prediction import ModelPart
from tests.serving.setting import OTHER, TOKEN, Setting, code, table, train
from vfl.apps.serving.scoring import LONGEST_PURPOSE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def result() -> vfl.Result:
    return train()


@pytest.fixture(scope="module")
def expected(result: vfl.Result) -> dict[str, float]:
    frame = table()
    return dict(zip(frame["customer"], result.decision_function(frame), strict=True))


@pytest.fixture
def setting(tmp_path: Path, result: vfl.Result) -> Setting:
    made = Setting(tmp_path)
    made.prepare(result)
    return made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, result: vfl.Result) -> Iterator[Setting]:
    made = Setting(tmp_path_factory.mktemp("running"))
    made.prepare(result)
    with made.joined(), made.serving():
        yield made


class TestDescription:
    def test_answers_and_refusals_are_as_the_document_says(self, running: Setting) -> None:
        described = running.client.get(f"{running.url}/openapi.json").json()

        def require(plain: object, name: str) -> None:
            jsonschema.Draft202012Validator(described | {"$ref": f"#/components/schemas/{name}"}).validate(plain)

        for reference in re.findall(r'"#/([^"]*)"', json.dumps(described)):
            functools.reduce(operator.getitem, reference.split("/"), described)
        asked = {"ids": ["secret-7", "nobody"], "purpose": "x" * LONGEST_PURPOSE}
        require(asked, "Request")
        with pytest.raises(jsonschema.ValidationError):
            require(asked | {"purpose": "x" * (LONGEST_PURPOSE + 1)}, "Request")
        require(running.ask(**asked).json(), "Answer")
        statuses = described["paths"]["/v1/models/{model}/predict"]["post"]["responses"]
        for token, given in (("none", asked), (TOKEN, {}), (TOKEN, {"ids": ["secret-7"], "model": "another"})):
            refused = running.ask(token=token, **given)
            require(refused.json(), "Error")
            assert str(refused.status_code) in statuses
        assert described["info"]["version"] == vfl.__version__


class TestScores:
    def test_are_predictions_to_the_bit_in_the_order_of_the_request(
        self, running: Setting, expected: dict[str, float]
    ) -> None:
        ids = ["secret-7", "secret-0", "secret-7", "nobody", "secret-9"]  # the telco lacks the last two
        answer = running.ask(ids=ids)
        assert answer.status_code == 200
        found = answer.json()
        assert (found["model"], found["version"]) == ("credit", "1")
        assert [one["id"] for one in found["predictions"]] == ids
        assert [one["score"] for one in found["predictions"][:3]] == [expected[own] for own in ids[:3]]
        assert [one.get("error") for one in found["predictions"]] == [None] * 3 + ["unknown"] * 2
        assert [one["label"] for one in found["predictions"][:3]] == [int(expected[own] > 0) for own in ids[:3]]
        assert running.ask(ids=["nobody"]).status_code == 404

    def test_with_columns_of_the_callers_own(self, running: Setting, expected: dict[str, float]) -> None:
        row = table().iloc[4]
        own = {"income": [row.income], "age": [row.age]}
        there = running.ask(ids=["secret-4"], columns=own).json()["predictions"][0]["score"]
        alone = running.ask(columns={**own, "calls": [row.calls]}).json()["predictions"][0]["score"]
        np.testing.assert_allclose([there, alone], expected["secret-4"], rtol=1e-12)
        other = running.ask(ids=["secret-4"], columns={"income": [0.0], "age": [90]}).json()["predictions"][0]["score"]
        assert other != there

    def test_in_arrow(self, running: Setting, expected: dict[str, float]) -> None:
        sink = pa.BufferOutputStream()
        asked = pa.table({"id": ["secret-1", "nobody"]})
        with pa.ipc.new_stream(sink, asked.schema) as writer:
            writer.write_table(asked)
        answer = running.ask(content=sink.getvalue().to_pybytes(), headers={"content-type": ARROW})
        found = pa.ipc.open_stream(answer.content).read_all()
        assert found.column("score").to_pylist() == [expected["secret-1"], None]
        assert found.column("known").to_pylist() == [True, False]

    def test_concurrent_requests_get_their_own_scores(self, running: Setting, expected: dict[str, float]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        ids = [[f"secret-{(k + j) % 9}" for j in range(1 + k % 4)] for k in range(60)]
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda own: running.ask(ids=own).json()["predictions"], ids))
        assert [[one["score"] for one in own] for own in answers] == [[expected[one] for one in own] for own in ids]


class TestControl:
    def test_strangers_and_callers_that_a_policy_does_not_list(self, running: Setting) -> None:
        assert code(running.ask(ids=["secret-1"], token=TOKEN[1:])) == (401, "unknown_caller")
        assert code(running.ask(ids=["secret-1"], token=f"{TOKEN} {TOKEN}")) == (401, "unknown_caller")
        assert code(running.ask(ids=["secret-1"], token=OTHER)) == (403, "refused")

    def test_every_answer_is_logged_at_each_owner_without_ids(self, running: Setting) -> None:
        assert running.ask(ids=["secret-2", "secret-3"], purpose="renewal").status_code == 200
        for party in ("bank", "telco"):
            text = (running.folder / f"{party}.policy.answers").read_text()
            assert "secret" not in text
            line = next(one for one in map(json.loads, text.splitlines()) if one["purpose"] == "renewal")
            key = (running.folder / f"{party}.policy.answers.key").read_bytes()
            digests = [hmac.digest(key, own, "sha256").hex()[:32] for own in (b"secret-2", b"secret-3")]
            assert (line["caller"], line["records"]) == ("branch", digests)

    def test_quotas_hold_over_a_restart(self, setting: Setting) -> None:
        setting.write(callers="records = 3")
        setting.policy("telco", "records = 4\n")
        with setting.joined():
            with setting.serving():
                assert setting.ask(ids=["secret-1", "secret-2"]).status_code == 200
                assert code(setting.ask(ids=["secret-1", "secret-2"])) == (429, "quota")
            setting.write(callers="records = 9")
            with setting.serving():
                assert code(setting.ask(ids=[f"secret-{k}" for k in range(8)])) == (429, "quota")
                assert code(setting.ask(ids=["secret-1", "secret-2", "secret-3"])) == (429, "exhausted")
                assert setting.ask(ids=["secret-1", "secret-2"]).status_code == 200
                assert code(setting.ask(ids=["secret-1"])) == (429, "exhausted")

    def test_an_owner_revokes_a_service_while_it_runs(self, setting: Setting) -> None:
        with setting.joined(), setting.serving():
            assert setting.ask(ids=["secret-1"], purpose="renewal").status_code == 200
            setting.policy("telco", 'purposes = ["audit"]\n')
            assert code(setting.ask(ids=["secret-1"], purpose="renewal")) == (403, "refused")
            assert setting.ask(ids=["secret-1"], purpose="audit").status_code == 200
            (setting.folder / "telco.policy.toml").write_text("")
            assert setting.ask(ids=["secret-1"], purpose="audit").status_code in (403, 503)

    def test_rates(self, setting: Setting) -> None:
        setting.policy("telco", "rate = 2.0\n")
        with setting.joined(), setting.serving():
            assert code(setting.ask(ids=["secret-1", "secret-2", "secret-3"])) == (429, "exhausted")
            assert setting.ask(ids=["secret-1"]).status_code == 200


def test_no_request_encodes_a_model_again(running: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(_: ModelPart) -> str:
        raise AssertionError("a request wrote a part of a model as text")

    running.ask(ids=["secret-1"])
    monkeypatch.setattr(ModelPart, "to_json", encoded)
    assert running.ask(ids=["secret-1"]).status_code == 200


BAD = [
    ({"content": b"{"}, (400, "bad_json")),
    ({"content": b"[]"}, (422, "bad_request")),
    ({"content": b'{"ids": ["secret-1"], "ids": []}'}, (400, "bad_json")),
    ({}, (422, "bad_request")),
    ({"ids": []}, (422, "bad_size")),
    ({"ids": [1.5]}, (422, "bad_ids")),
    ({"ids": [True]}, (422, "bad_ids")),
    ({"ids": ["secret-1", 2]}, (422, "bad_ids")),
    ({"ids": [""]}, (422, "bad_ids")),
    ({"ids": ["a"] * 20_001}, (413, "bad_size")),
    ({"ids": ["a" * 9_000_000]}, (413, "too_large")),
    ({"ids": ["a"], "model": "0" * 64}, (409, "stale_model")),
    ({"ids": ["a"], "purpose": 3}, (422, "bad_request")),
    ({"ids": ["a"], "columns": {"income": [3]}}, (422, "bad_columns")),
    ({"ids": ["a"], "columns": {"secret": [3]}}, (422, "bad_columns")),
    ({"ids": ["a"], "columns": {"income": ["secret"], "age": [1]}}, (422, "bad_columns")),
    ({"ids": ["a", "b"], "columns": {"income": [1, "secret"], "age": [1, 2]}}, (422, "bad_columns")),
    ({"columns": {"income": [3], "age": [2]}}, (422, "no_ids")),
    ({"path": "/v1/models/other/predict", "ids": ["a"]}, (404, "unknown_model")),
    ({"path": "/v1/models/credit/versions/7/predict", "ids": ["a"]}, (404, "unknown_version")),
    ({"content": b"x", "headers": {"content-type": "text/plain"}}, (415, "bad_type")),
    ({"content": b"x", "headers": {"content-type": ARROW}}, (400, "bad_arrow")),
]


@pytest.mark.parametrize(("asked", "refused"), BAD, ids=lambda value: "" if isinstance(value, dict) else value[1])
def test_bad_requests_have_a_clear_code_and_leave_no_trace(
    running: Setting, asked: dict, refused: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    answer = running.ask(**dict(asked))
    assert code(answer) == refused
    assert "secret" not in answer.text
    assert "secret" not in caplog.text
    assert not [log for log in running.folder.glob("*.policy.answers") if "secret" in log.read_text()]
