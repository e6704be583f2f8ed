"""A service of a model that was trained on a left join: ids that another party lacks are scored."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vfl
from parties.services.serving import ServingService
from tests.serving.setting import POLICY, Setting, table, train
from vfl.network.messages import Asked

if TYPE_CHECKING:
    from pathlib import Path

LEFT: Any = vfl.columns.Id("customer", join="left")


@pytest.fixture(scope="module")
def result() -> vfl.Result:
    return train(id=LEFT)


def expected(result: vfl.Result) -> dict[str, float]:
    """Return the margins of all customers. The telco lacks secret-9."""
    frame = table()
    data = {"bank": frame[["customer", "income", "age"]], "telco": frame[["customer", "calls"]].drop(index=9)}
    found = vfl.predict(result, data)
    return dict(zip(found.ids or (), found.scores.tolist(), strict=True))


def test_an_id_that_a_party_lacks_takes_the_declared_fallback(result: vfl.Result, tmp_path: Path) -> None:
    """An id that the label party lacks has no score, and the telco is not asked for it."""
    setting = Setting(tmp_path)
    setting.prepare(result)
    margins = expected(result)
    with setting.joined(), setting.serving():
        found = setting.ask(ids=["secret-3", "secret-9", "nobody"]).json()
        assert [one.get("score") for one in found["predictions"]] == [margins["secret-3"], margins["secret-9"], None]
        assert "fallback" not in found
        of_bank = {"income": [float(table()["income"][9])], "age": [float(table()["age"][9])]}
        for asked in ("secret-9", "new customer"):
            (one,) = setting.ask(ids=[asked], columns=of_bank).json()["predictions"]
            assert one["score"] == margins["secret-9"]
        mine = {"income": [1.0], "age": [30.0], "calls": [3.0]}
        (one,) = setting.ask(columns=mine).json()["predictions"]  # a record with calls is one that the telco has
        part = result.part("telco").scores({"calls": [3.0]}) + result.part("bank").scores(
            {"income": [1.0], "age": [30.0]}
        )
        assert one["score"] == pytest.approx(float(part[0]) + result.intercept_on_scaled, rel=1e-12)


def test_an_inner_join_has_no_score_for_an_id_that_a_party_lacks(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.prepare(train())
    with setting.joined(), setting.serving():
        assert "score" not in setting.ask(ids=["secret-9"]).json()["predictions"][0]


def test_a_party_that_is_away_lacks_all_records(result: vfl.Result, tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.prepare(result)
    setting.write(model='active = "1"\nversions = { "1" = "run-1" }\nfallback = "fill"')
    with setting.serving():
        found = setting.ask(ids=["secret-9"]).json()
        assert found["fallback"] == {"telco": "fill"}
        assert found["predictions"][0]["score"] == expected(result)["secret-9"]


def test_several_requests_and_unusable_records_keep_their_margins(result: vfl.Result, tmp_path: Path) -> None:
    """A record of the party with a cell that it cannot use is not one that the party lacks."""
    (tmp_path / "policy.toml").write_text(POLICY + "unusable = true\n")
    frame = table()[["customer", "calls"]].drop(index=9)
    frame = frame.assign(calls=frame["calls"].where(frame["customer"] != "secret-3", np.inf))
    service = ServingService("telco", tmp_path / "policy.toml", "bank")
    strict = replace(result.part("telco"))
    service.add(strict, frame)
    service.refresh()
    asked = [Asked(strict.digest, "branch", "", n) for n in (2, 1, 1)]
    outcomes, margins = service.score(asked, [[b"secret-9", b"secret-4"], [b"nobody"], [b"secret-5"]])
    (absent,) = strict.absent()
    assert [outcome.why for outcome in outcomes] == ["", "", ""]
    assert [own.tolist() for own in margins if own is not None][1] == [absent]
    assert margins[0] is not None
    assert margins[0][0] == absent != margins[0][1]
    service.close()
