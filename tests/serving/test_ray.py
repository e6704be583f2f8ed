"""The service behind Ray Serve, as deploy/organisations/ray_serve.py runs it; skipped without ray[serve]."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import ray

from tests.ports import free_port
from tests.serving.setting import OTHER, Setting, code, table, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    import vfl

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "organisations"


@pytest.fixture(scope="module")
def results() -> tuple[vfl.Result, vfl.Result]:
    return train(1), train(2)


@pytest.fixture
def setting(tmp_path: Path, results: tuple[vfl.Result, ...], monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    pytest.importorskip("fastapi", reason="Ray Serve: pip install 'ray[serve]'")
    from ray import serve

    made, port = Setting(tmp_path), free_port()
    made.prepare(*results)
    monkeypatch.setenv("VFL_SERVICE", str(tmp_path / "serve.toml"))
    monkeypatch.syspath_prepend(str(FOLDER))
    environment = {"env_vars": {"PYTHONPATH": f"{ROOT}:{FOLDER}"}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        made.listen = f"127.0.0.1:{port}"
        yield made
    finally:
        serve.shutdown()
        ray.shutdown()
        sys.modules.pop("ray_serve", None)


def test_scores_and_reloads(setting: Setting, results: tuple[vfl.Result, ...]) -> None:
    from ray import serve

    expected = dict(zip(table()["customer"], results[0].decision_function(table()), strict=True))
    deployed = importlib.import_module("ray_serve")
    with setting.joined():
        serve.run(deployed.app)
        setting.until(lambda: httpx.get(f"{setting.url}/readyz").status_code == 200)
        found = setting.ask(ids=["secret-3", "nobody"]).json()
        assert [one.get("score") for one in found["predictions"]] == [expected["secret-3"], None]
        assert code(setting.ask(ids=["secret-3"], token=OTHER)) == (403, "refused")
        setting.write(model='active = "2"\nversions = { "1" = "run-1", "2" = "run-2" }')
        serve.run(deployed.Scoring.options(user_config={"version": 2}).bind())
        setting.until(lambda: setting.ask(ids=["secret-3"]).json().get("version") == "2")
