"""Versions, fallbacks and faults of a service: no wrong score, and no request that is lost in a switch."""

from __future__ import annotations

import contextlib
import json
import signal
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from parties.services import serving
from parties.services.serving import AnswerLog, ServingService
from tests.serving.setting import OTHER, N, Setting, code, table, train
from vfl.base.documents import read_json
from vfl.errors import ConsentRefused
from vfl.network.messages import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pandas as pd

    import vfl

TWO = 'active = "{}"\nversions = {{ "1" = "run-1", "2" = "run-2" }}'


@pytest.fixture(scope="module")
def results() -> tuple[vfl.Result, vfl.Result]:
    return train(1), train(2)


@pytest.fixture
def setting(tmp_path: Path, results: tuple[vfl.Result, ...]) -> Setting:
    made = Setting(tmp_path)
    made.prepare(*results)
    return made


def margins(result: vfl.Result, frame: pd.DataFrame) -> dict[str, float]:
    return dict(zip(frame["customer"], result.decision_function(frame), strict=True))


@contextlib.contextmanager
def load(setting: Setting) -> Iterator[list[httpx.Response]]:
    """Ask again and again in another thread; yield the list of all answers."""
    answers: list[httpx.Response] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            answers.append(setting.ask(ids=["secret-3", "secret-4"]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join(60.0)


def test_a_switch_and_a_rollback_lose_no_request(setting: Setting, results: tuple[vfl.Result, ...]) -> None:
    expected = {str(k + 1): margins(result, table()) for k, result in enumerate(results)}
    setting.write(model=TWO.format("1"))
    with setting.joined(), setting.serving() as service, load(setting) as answers:
        for active in ("2", "1"):
            setting.write(model=TWO.format(active))
            service.reload(setting.said.append)
            begun = len(answers)
            setting.until(lambda begun=begun: len(answers) > begun + 3)
            setting.until(lambda active=active: answers[-1].json().get("version") == active)
        setting.write()  # version 2 is no longer named
        service.reload(setting.said.append)
        begun = len(answers)
        setting.until(lambda: len(answers) > begun + 6)
        assert code(setting.ask("/v1/models/credit/versions/2/predict", ids=["a"])) == (404, "unknown_version")
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["version"] for answer in answers} == {"1", "2"}
    for found in (answer.json() for answer in answers):
        of = expected[found["version"]]
        assert [one["score"] for one in found["predictions"]] == [of["secret-3"], of["secret-4"]]


def test_an_altered_model_is_not_served_and_the_others_go_on(setting: Setting) -> None:
    path = setting.folder / "run-2" / "model.json"
    model = read_json(path)
    model["w"][0] += 1.0
    path.write_text(json.dumps(model))
    setting.write(model=TWO.format("1"))
    with setting.joined(), setting.serving() as service:
        assert "certificate" in service.scoring.failures["credit/2"]
        assert setting.ask(ids=["secret-3"]).json()["version"] == "1"
        setting.write(model=TWO.format("2"))
        service.reload(setting.said.append)
        setting.until(lambda: "reloaded" in [said["event"] for said in setting.said])
        assert setting.ask(ids=["secret-3"]).json()["version"] == "1"
        (setting.folder / "serve.toml").write_text("party = 3")
        service.reload(setting.said.append)
        assert "not reloaded" in [said["event"] for said in setting.said]
        assert setting.ask(ids=["secret-3"]).status_code == 200


def test_a_party_that_is_away_is_named_or_filled_as_declared(setting: Setting, results: tuple[vfl.Result, ...]) -> None:
    two = 'active = "1"\nversions = { "1" = "run-1" }\nfallback = "fill"'
    setting.write(model=two)
    filled = margins(results[0], table().assign(calls=float("nan")))
    with setting.serving():  # nobody has joined
        found = setting.ask(ids=["secret-3"]).json()
        assert found["fallback"] == {"telco": "fill"}
        assert found["predictions"][0]["score"] == pytest.approx(filled["secret-3"], rel=1e-12)
        with setting.joined():
            setting.until(lambda: "fallback" not in setting.ask(ids=["secret-3"]).json())
            assert (
                setting.ask(ids=["secret-3"]).json()["predictions"][0]["score"]
                == margins(results[0], table())["secret-3"]
            )
        setting.until(lambda: "fallback" in setting.ask(ids=["secret-3"]).json())
    setting.write()
    with setting.serving(ready=False):
        refused = setting.ask(ids=["secret-3"])
        assert code(refused) == (503, "party_away")
        assert "'telco'" in refused.json()["error"]["message"]
        assert httpx.get(f"{setting.url}/readyz").status_code == 503


def test_changed_data_are_read_again_and_broken_data_are_not_used(
    setting: Setting, results: tuple[vfl.Result, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.05)
    with setting.joined(), setting.serving():
        assert "error" not in setting.ask(ids=["secret-3"]).json()["predictions"][0]
        frame = table().assign(calls=1.0)
        new = margins(results[0], frame)["secret-3"]
        frame[["customer", "calls"]].to_csv(setting.folder / "new.csv", index=False)
        (setting.folder / "new.csv").replace(setting.folder / "telco.csv")
        setting.until(lambda: setting.ask(ids=["secret-3"]).json()["predictions"][0]["score"] == new)
        (setting.folder / "broken.csv").write_text("customer,calls\nsecret-3,secret\n")
        (setting.folder / "broken.csv").replace(setting.folder / "telco.csv")
        for _ in range(10):
            assert setting.ask(ids=["secret-3"]).json()["predictions"][0]["score"] == new
            threading.Event().wait(0.1)


class Logs:
    """Calls of the answers' logs. held : keeps the log of one part of a model from being written until `release`."""

    def __init__(self, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[tuple[str, int]] = []
        self.held, self.release, self.others = threading.Event(), threading.Event(), threading.Event()
        self.fails = False
        real = AnswerLog.write

        def write(log: AnswerLog, answers: Any) -> None:
            own = list(answers)
            if {one[2] for one in own} == {part}:
                self.held.set()
                assert self.release.wait(30.0)
                if self.fails:
                    raise ConsentRefused("no space")
            elif own:
                self.others.set()
            self.written += [(one[2], len(own)) for one in own]
            real(log, own)

        monkeypatch.setattr(AnswerLog, "write", write)


@pytest.mark.parametrize("party", ["bank", "telco"])
def test_no_score_leaves_before_each_log_is_written_and_requests_that_wait_share_one_write(
    setting: Setting, results: tuple[vfl.Result, ...], monkeypatch: pytest.MonkeyPatch, party: str
) -> None:
    """While the bank's log is written, the telco is asked; a refused request shares a batch and refuses itself alone."""
    part, expected = results[0].part(party).digest, margins(results[0], table())
    with setting.joined(), setting.serving(), ThreadPoolExecutor(9) as pool:
        assert setting.ask(ids=["secret-3"]).status_code == 200
        logs = Logs(part, monkeypatch)
        first = pool.submit(setting.ask, ids=["secret-3"])
        assert logs.held.wait(30.0)
        assert logs.others.wait(30.0)
        others = [pool.submit(setting.ask, ids=[f"secret-{k}"]) for k in range(6)]
        refused = pool.submit(setting.ask, ids=["secret-3"], token=OTHER)
        unknown = pool.submit(setting.ask, ids=["nobody"])
        threading.Event().wait(0.7)
        assert not any(one.done() for one in (first, *others))
        logs.release.set()
        found = [one.result() for one in (first, *others)]
        assert (refused.result().status_code, unknown.result().status_code) == (403, 404)
        asked = ["secret-3", *(f"secret-{k}" for k in range(6))]
        assert [one.json()["predictions"][0]["score"] for one in found] == [expected[own] for own in asked]
        sizes = [size for own, size in logs.written if own == part]
        assert len(sizes) == 7 + (party == "bank")  # the telco is not told an id that the bank does not know
        assert max(sizes) > 1
        logs.fails = True
        failed = setting.ask(ids=["secret-3"])
        assert (failed.status_code, "score" in failed.text) == (503, False)


@pytest.mark.parametrize("party", ["bank", "telco"])
def test_two_parties_of_one_process_both_log_before_a_score_leaves(
    setting: Setting, results: tuple[vfl.Result, ...], monkeypatch: pytest.MonkeyPatch, party: str
) -> None:
    path = setting.folder / "serve.toml"
    text = path.read_text().replace('federation = "scoring.toml"\n', "")
    for line in ('bank = "bank.csv"', 'bank = "bank.policy.toml"'):
        text = text.replace(line, f"{line}\n{line.replace('bank', 'telco')}")
    path.write_text(text)
    with setting.serving(), ThreadPoolExecutor(1) as pool:
        assert setting.ask(ids=["secret-3"]).status_code == 200
        logs = Logs(results[0].part(party).digest, monkeypatch)
        first = pool.submit(setting.ask, ids=["secret-3"])
        assert logs.held.wait(30.0)
        threading.Event().wait(0.5)
        assert not first.done()
        logs.fails = True
        logs.release.set()
        assert (first.result().status_code, "score" in first.result().text) == (503, False)


def test_the_refusal_of_another_party_waits_for_the_own_log_as_well(
    setting: Setting, results: tuple[vfl.Result, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The telco is asked about ids that the bank knows alone, so its refusal tells which ids these are."""
    with setting.serving(ready=False) as service, ThreadPoolExecutor(2) as pool:  # the telco has not joined
        setting.until(lambda: set(service.scoring.ready()) == {"credit: telco"})
        logs = Logs(results[0].part("bank").digest, monkeypatch)
        asked = [pool.submit(setting.ask, ids=[own]) for own in ("secret-3", "nobody")]
        assert logs.held.wait(30.0)
        threading.Event().wait(0.5)
        assert not any(one.done() for one in asked)
        logs.release.set()
        known, unknown = (one.result() for one in asked)
        assert (code(known), unknown.status_code) == ((503, "party_away"), 404)
        logs.fails = True
        failed = [code(setting.ask(ids=[own])) for own in ("secret-3", "nobody")]
        assert failed == [(503, "not_counted")] * 2


def test_the_refusal_of_another_party_waits_for_the_log_of_a_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.serving.setting.COLUMNS", {"bank": ["income"], "telco": ["calls"], "shop": ["age"]})
    setting, result = Setting(tmp_path), train()
    setting.prepare(result)
    setting.policy("shop")
    path = tmp_path / "serve.toml"
    text = path.read_text().replace("[data]", '[data]\nshop = "bank.csv"')
    path.write_text(text.replace("[policies]", '[policies]\nshop = "shop.policy.toml"'))
    with setting.serving(ready=False) as service, ThreadPoolExecutor(1) as pool:  # the telco has not joined
        setting.until(lambda: set(service.scoring.ready()) == {"credit: telco"})
        logs = Logs(result.part("shop").digest, monkeypatch)
        asked = pool.submit(setting.ask, ids=["secret-3"])
        assert logs.held.wait(30.0)
        threading.Event().wait(0.5)
        assert not asked.done()
        logs.release.set()
        assert code(asked.result()) == (503, "party_away")


def test_a_request_that_ends_while_its_answer_is_logged_leaves_the_others(
    setting: Setting, results: tuple[vfl.Result, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = setting.folder / "serve.toml"
    path.write_text(path.read_text().replace("answer_timeout_s = 5.0", "answer_timeout_s = 1.0"))
    with setting.joined(), setting.serving():
        logs = Logs(results[0].part("bank").digest, monkeypatch)
        assert code(setting.ask(ids=["secret-3"])) == (504, "late")
        logs.release.set()
        assert setting.ask(ids=["secret-4"]).status_code == 200


def test_a_certificate_identifies_a_caller_over_https(setting: Setting) -> None:
    from vfl.network.federation.identity import new_identity

    for name in ("desk", "other"):
        new_identity(name, setting.folder)
    top = 'certificate = "bank.pem"\nkey = "bank.key"'
    setting.write(top=top, callers='[callers.desk]\ncertificate = "desk.pem"')

    def ask(name: str | None) -> httpx.Response:
        context = ssl.create_default_context(cafile=str(setting.folder / "bank.pem"))
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if name is not None:
            context.load_cert_chain(setting.folder / f"{name}.pem", setting.folder / f"{name}.key")
        with httpx.Client(verify=context) as client:
            return client.post(f"https://{setting.listen}/v1/models/credit/predict", json={"ids": ["secret-3"]})

    with setting.joined(), setting.https():
        setting.until(lambda: ask("desk").status_code == 200)
        assert code(ask(None)) == (401, "unknown_caller")
        with pytest.raises(httpx.TransportError):
            ask("other")


def test_renewed_certificates_of_callers_and_of_the_service_hold_after_a_reload(setting: Setting) -> None:
    """A first caller's certificate, its renewal under the same name, and the service's own, without a restart."""
    from vfl.network.federation.identity import new_identity

    folders = {name: setting.folder / name for name in ("old", "new")}
    for folder in folders.values():
        folder.mkdir()
        new_identity("desk", folder)
        new_identity("web", folder)

    def use(web: str, desk: str | None) -> None:
        for ending in ("pem", "key"):
            (setting.folder / f"web.{ending}").write_bytes((folders[web] / f"web.{ending}").read_bytes())
        (setting.folder / "web.key").chmod(0o600)
        callers = "" if desk is None else f'[callers.desk]\ncertificate = "{desk}/desk.pem"'
        setting.write(top='certificate = "web.pem"\nkey = "web.key"', callers=callers)

    def ask(web: str, desk: str | None) -> int | None:
        context = ssl.create_default_context(cafile=str(folders[web] / "web.pem"))
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if desk is not None:
            context.load_cert_chain(folders[desk] / "desk.pem", folders[desk] / "desk.key")
        with contextlib.suppress(httpx.TransportError), httpx.Client(verify=context) as client:
            return client.post(
                f"https://{setting.listen}/v1/models/credit/predict", json={"ids": ["secret-3"]}
            ).status_code
        return None

    use("old", None)
    with setting.joined(), setting.https() as service:
        setting.until(lambda: ask("old", None) == 401)
        for web, desk in (("old", "old"), ("old", "new"), ("new", "new")):
            use(web, desk)
            service.reload(setting.said.append)
            setting.until(lambda web=web, desk=desk: ask(web, desk) == 200)
        assert ask("new", "old") == 401
        assert ask("old", "new") is None
        (setting.folder / "web.key").write_text("no key")
        service.reload(setting.said.append)
        assert "certificate and key" in next(said["why"] for said in setting.said if said["event"] == "not reloaded")
        assert ask("new", "new") == 200


def test_metrics_count_requests_and_hold_no_id(setting: Setting) -> None:
    from prometheus_client import generate_latest

    with setting.joined(), setting.serving() as service:
        setting.ask(ids=["secret-3", "secret-4"])
        setting.ask(ids=[1.5])
        setting.ask(path="/v1/models/secret-model/predict", ids=["a"])
        text = generate_latest(service.application.registry).decode()
    assert 'vfl_serve_records_total{model="credit",version="1"} 2.0' in text
    assert 'vfl_serve_requests_total{code="bad_ids",model="credit"} 1.0' in text
    assert "secret" not in text


def test_a_model_trained_on_shares_needs_a_policy_that_says_so(setting: Setting) -> None:
    from dataclasses import replace

    import vfl
    from parties.consent import Policy

    policy = Policy.read(setting.folder / "telco.policy.toml")
    job = replace(train().job, privacy=vfl.Privacy(epsilon=1.0, delta=1e-6), trust="secure")
    with pytest.raises(ConsentRefused, match=r"\[prediction\] secure"):
        policy.check_service("telco", job)
    setting.policy("telco", "secure = true\n")
    Policy.read(setting.folder / "telco.policy.toml").check_service("telco", job)


def test_a_database_is_read_again_and_a_source_that_was_not_there_is_found(
    setting: Setting, results: tuple[vfl.Result, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.setattr(serving, "REREAD_SECONDS", 0.1)
    monkeypatch.setattr(serving, "REREAD_SHARE", 1.0)
    monkeypatch.setattr(serving, "LOOK_SECONDS", 0.0)
    path, part = setting.folder / "telco.duckdb", results[0].part("telco")
    told: list[str] = []
    service = ServingService("telco", setting.folder / "telco.policy.toml", "bank", lambda why, _: told.append(why))
    service.add(part, f"duckdb://{path}?table=t")
    setting.until(lambda: any("no such file" in why for why in told))
    assert path.name not in service.keep([part.digest])[part.digest]
    for calls in (1.0, 2.0):
        frame = table().assign(calls=calls)[["customer", "calls"]]
        with duckdb.connect(str(path)) as connection:
            connection.register("frame", frame)
            connection.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM frame")
        expected = part.scores(frame.drop(columns="customer"))[0]

        def found(expected: float = expected) -> bool:
            _, (margins,) = service.score([Asked(part.digest, "branch", "", 1)], [[b"secret-3"]])
            return margins is not None and margins[0] == expected

        setting.until(lambda: service.keep([part.digest])[part.digest] == "")
        setting.until(found)


def test_records_are_looked_up_in_a_database_per_request(tmp_path: Path) -> None:
    """Scores are those of the index; a missing cell refuses its own record alone; a changed table holds at once."""
    duckdb = pytest.importorskip("duckdb")
    setting, result = Setting(tmp_path), train(columns={})
    setting.prepare(result)
    frames = {"bank": table()[["customer", "income", "age"]], "telco": table()[["customer", "calls"]]}
    frames["telco"].loc[5, "calls"] = frames["bank"].loc[6, "age"] = None

    def write(party: str) -> None:
        frame, path = frames[party], setting.folder / f"{party}.duckdb"
        with duckdb.connect(f"{path}.new") as connection:
            connection.register("frame", frame)
            connection.execute("CREATE TABLE t AS SELECT * FROM frame")
        (setting.folder / f"{party}.duckdb.new").replace(path)
        setting.policy(party, "lookup = true\n")

    for party in frames:
        write(party)
    path = setting.folder / "serve.toml"
    path.write_text(path.read_text().replace('"bank.csv"', f'"duckdb://{setting.folder}/bank.duckdb?table=t"'))
    setting.source = f"duckdb://{setting.folder}/telco.duckdb?table=t"
    expected = margins(result, table())
    with setting.joined(), setting.serving(), ThreadPoolExecutor(8) as pool:
        found = setting.ask(ids=["secret-3", "nobody", "secret-4", "secret-3"]).json()["predictions"]
        assert [one.get("score") for one in found] == [
            expected["secret-3"],
            None,
            expected["secret-4"],
            expected["secret-3"],
        ]
        answers = list(pool.map(lambda k: setting.ask(ids=[f"secret-{k % 8}"]), range(40)))
        for k, answer in enumerate(answers):
            if k % 8 in (5, 6):
                assert answer.status_code == 404
                assert answer.json()["predictions"][0]["error"] == "unknown"
            else:
                assert answer.json()["predictions"][0]["score"] == expected[f"secret-{k % 8}"]
        lines = (setting.folder / "bank.policy.answers").read_text().splitlines()
        assert sum(len(json.loads(line)["records"]) for line in lines) == 44
        frames["telco"] = table().assign(calls=1.0)[["customer", "calls"]]
        write("telco")
        new = margins(result, table().assign(calls=1.0))
        assert setting.ask(ids=["secret-5"]).json()["predictions"][0]["score"] == new["secret-5"]
        (setting.folder / "telco.duckdb").unlink()
        assert code(setting.ask(ids=["secret-3"])) == (503, "party_away")


def test_a_looked_up_cell_that_refuses_its_record_is_named_in_the_owners_log_alone(
    tmp_path: Path,
) -> None:
    duckdb = pytest.importorskip("duckdb")
    setting, result = Setting(tmp_path), train(columns={})
    setting.prepare(result)
    setting.policy("telco", "lookup = true\n")
    frame, path = table()[["customer", "calls"]], setting.folder / "telco.duckdb"
    frame.loc[5, "calls"] = None
    with duckdb.connect(str(path)) as connection:
        connection.register("frame", frame)
        connection.execute("CREATE TABLE t AS SELECT * FROM frame")
    part = result.part("telco")
    told: list[str] = []
    service = ServingService("telco", setting.folder / "telco.policy.toml", "bank", lambda why, _: told.append(why))
    service.add(part, f"duckdb://{path}?table=t")
    setting.until(lambda: service.keep([part.digest])[part.digest] == "")
    asked = [Asked(part.digest, "branch", "", 1)] * 2
    ids = [[b"secret-5"], [b"secret-3"]]
    outcomes, own = service.score(asked, ids)
    service.log(asked, ids, outcomes)
    service.close()
    lines = (setting.folder / "telco.policy.answers").read_text().splitlines()
    assert [json.loads(line)["answered"] for line in lines] == [True, True]
    assert [(outcome.code, outcome.why) for outcome in outcomes] == [("", "")] * 2
    assert own[0] is not None
    assert own[1] is not None
    assert np.isnan(own[0]).all()
    assert np.isfinite(own[1]).all()
    assert "'calls'" in told[0]
    assert "secret-5" not in told[0]


def test_a_repeated_id_of_a_database_refuses_its_own_record(tmp_path: Path) -> None:
    """One repeated id made the party refuse all records of a request, as if the party were away."""
    duckdb = pytest.importorskip("duckdb")
    setting, result = Setting(tmp_path), train()
    setting.prepare(result)
    setting.policy("telco", "lookup = true\nunusable = true\n")
    frame, path = table()[["customer", "calls"]], setting.folder / "telco.duckdb"
    frame.loc[N] = ["secret-5", 1.0]
    with duckdb.connect(str(path)) as connection:
        connection.register("frame", frame)
        connection.execute("CREATE TABLE t AS SELECT * FROM frame")
    part, told = result.part("telco"), list[str]()
    service = ServingService("telco", setting.folder / "telco.policy.toml", "bank", lambda why, _: told.append(why))
    service.add(part, f"duckdb://{path}?table=t")
    setting.until(lambda: service.keep([part.digest])[part.digest] == "")
    (outcome,), (own,) = service.score([Asked(part.digest, "branch", "", 2)], [[b"secret-5", b"secret-3"]])
    service.close()
    assert outcome.code == ""
    assert own is not None
    assert np.isinf(own[0])
    assert own[1] == part.scores(table()[["customer", "calls"]][3:4])[0]
    assert "'customer' occur more than once" in told[0]
    assert "secret" not in told[0]


def test_a_reload_names_kept_and_refused_versions_and_sigterm_ends_the_command_well(setting: Setting) -> None:
    path = setting.folder / "run-2" / "model.json"
    model = read_json(path)
    model["w"][0] += 1.0
    path.write_text(json.dumps(model))
    command = [sys.executable, "-m", "vfl", "serve", "serve.toml"]
    with subprocess.Popen(command, cwd=setting.folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            setting.until(lambda: httpx.get(f"{setting.url}/healthz").status_code == 200)
            setting.write(model=TWO.format("2"))
            process.send_signal(signal.SIGHUP)
            said: list[str] = []
            while not said or "credit/2 refused" not in said[-1]:
                said.append(process.stdout.readline())
            assert "version 1 answers; kept: 1\n" in said[-2]
            assert "except" in said[-3]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
