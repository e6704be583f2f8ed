"""`vfl ui`: every page from a real server, refusals, and a run followed while it trains."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest

import vfl
from coordinator.rounds import Round
from vfl.apps.report.markup import text
from vfl.apps.ui import Server, pages
from vfl.apps.ui.folder import WatchedRun, find
from vfl.errors import OutputError
from vfl.job import file as jobfile

if TYPE_CHECKING:
    from collections.abc import Iterator

EVIL = "<script>alert(1)</script>"
N = 200


def job(name: str = "credit", **options: Any) -> vfl.Job:
    options = {"privacy": vfl.Privacy(epsilon=2.0, delta=1e-6), "solver": vfl.SkGD(passes=4)} | options
    return vfl.Job(
        name=name,
        partition=vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c"]}, label=("bank", "y")),
        bounds={"*": (-1.0, 1.0)},
        **options,
    )


def data() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    table: dict[str, Any] = {name: rng.uniform(-1, 1, N) for name in "abc"}
    return table | {"y": (table["a"] > table["c"]).astype(int)}


@contextmanager
def served(root: Path, *ledgers: Path) -> Iterator[Server]:
    with Server(root, 0, ledgers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Answer:
    """Status, headers and text of an answer."""

    def __init__(self, server: Server, path: str, *, method: str = "GET", host: str | None = None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.putrequest(method, path, skip_host=host is not None)
        if host:
            connection.putheader("Host", host)
        connection.endheaders()
        response = connection.getresponse()
        self.status, self.headers = response.status, response.headers
        self.text = response.read().decode()
        connection.close()


def page(server: Server, path: str = "") -> Answer:
    return Answer(server, server.site.base + path)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run on a ledger, an interrupted run, a job with an evil name, and files that are not ours."""
    root: Path = tmp_path_factory.mktemp("work")
    (root / "runs").mkdir()
    ledger = vfl.Ledger(root / "owner.db").open()
    ledger.set_cap("credit-2026", epsilon=4.0, delta=1e-6)
    vfl.train(
        job(dataset="credit-2026", evaluation=vfl.Evaluation(holdout=0.3)),
        data(),
        at="inprocess",
        output=root / "runs/one",
        ledger=root / "owner.db",
    )

    class Stop(Exception):
        pass

    def stop(event: object) -> None:
        if isinstance(event, Round) and event.number == 3:
            raise Stop

    with pytest.raises(Stop):
        vfl.train(job("half"), data(), at="inprocess", output=root / "runs/half", watch=stop)
    jobfile.write(job(EVIL), root / "job.toml")
    (root / EVIL.replace("/", "")).with_suffix(".toml").write_text("[partition]\nwrong = 1\n")
    (root / "other.toml").write_text("[tool]\nname = 'x'\n")
    (root / "other.db").write_bytes(b"no ledger")
    (root / "secret.csv").write_text("id,income\n1,2\n")
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with served(root) as server:
        yield server


def test_the_overview_lists_runs_jobs_and_ledgers(server: Server, root: Path) -> None:
    said = page(server).text
    for link in ("run/runs/one", "run/runs/half", "job/job.toml", "ledger/owner.db"):
        assert f'href="{server.site.base}{link}"' in said
    assert "interrupted: round 4 of at most" in said
    for name in ("runs/one/model.json", "runs/half/rounds.log", "job.toml", "owner.db"):
        os.utime(root / name, (0, 86400 * 365 * (20 + len(name))))
    said = page(server).text
    for name in ("runs/one/model.json", "runs/half/rounds.log", "job.toml", "owner.db"):
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(86400 * 365 * (20 + len(name))))
        assert f"<td>{day}</td>" in said, name
    assert re.search(r"accuracy 0\.\d+ \[", said)
    for name in ("other.toml", "other.db", "secret.csv"):
        assert name not in said


def test_the_overview_shows_the_score_of_a_tune(tmp_path: Path) -> None:
    measures = {"loss": {"value": 0.32912, "error": 0.0131}}
    (tmp_path / "findings.json").write_text(json.dumps({"score": {"measures": measures}}), encoding="utf-8")
    assert pages._measures(tmp_path) == "loss 0.329 [0.303, 0.355]"


def test_the_page_of_a_run_verifies_it(server: Server, root: Path) -> None:
    said = page(server, "run/runs/one").text
    certificate = json.loads((root / "runs/one/certificate.json").read_text())
    for shown in (
        f"ε = {certificate['epsilon']:.4g}",
        "differentially private for every record",
        "held out",
        "too noisy",
    ):
        assert shown in said
    assert "reserved" in said
    assert re.search(r"ledger.*holds", said)  # the data owner's ledger was found and compared
    for kind, heading in (("report", "Who saw what"), ("card", "Intended use")):
        assert heading in page(server, f"{kind}/runs/one").text


def test_a_run_that_does_not_verify_is_shown_as_such(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "runs/one", tmp_path / "copy")
    with served(tmp_path, root / "owner.db") as server:
        assert "The certificate does not hold" not in page(server, "run/copy").text
        model = tmp_path / "copy/model.json"
        plain = json.loads(model.read_text())
        model.write_text(json.dumps(plain | {"w": [w + 1.0 for w in plain["w"]]}))
        assert "The certificate does not hold" in page(server, "run/copy").text


def test_the_page_of_a_job_shows_its_plan_and_no_place_of_data(root: Path, tmp_path: Path) -> None:
    spec = job("plain")
    (tmp_path / "job.toml").write_text(
        (root / "job.toml").read_text() + '\n[data]\nbank = "postgresql://me:secret@host/db"\n'
    )
    jobfile.write(spec, tmp_path / "plain.toml")
    jobfile.write(job("split", evaluation=vfl.Evaluation(holdout=0.5)), tmp_path / "split.toml")
    with served(tmp_path) as server:
        assert "Give the number of records" in page(server, "job/plain.toml").text
        said = page(server, "job/plain.toml?n=5000&positives=0.1").text
        assert unescape(said).count(f"plan of job {spec.name!r}") == 2
        assert "expect" in said
        assert str(text(vfl.plan(spec, 5000).explain())) in said
        assert "cannot be planned" in page(server, "job/split.toml?n=1").text
        unread = unescape(page(server, "job/plain.toml?n=abc&positives=-1").text)
        assert re.search("n = 'abc' and positives = '-1'.*above 0", unread)
        assert "plan of job" not in unread
        hidden = page(server, "job/job.toml?n=5000").text
        assert "epsilon = 2.0" in hidden
        assert "secret" not in hidden


def test_bounds_stand_on_one_line_of_the_declarations(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(job().to_toml() + '\n[data]\nbank = "a.csv"\ntelco = "b.csv"\n')
    with served(tmp_path) as server:
        page = unescape(server.site.answer("job/job.toml", {})[1])
    assert '"*" = [-1.0, 1.0]' in page
    assert 'bank = ["a", "b"]' in page


def test_a_ledger_is_drawn_as_a_bar(server: Server) -> None:
    said = page(server, "ledger/owner.db").text
    balance = vfl.Ledger(server.site.root / "owner.db").open().show()[0]
    assert "credit-2026" in said
    assert f"width:{100 * balance.spent / 4.0:.2f}%" in said
    assert str(text(balance.sums)) in said


def test_names_are_escaped_everywhere(server: Server) -> None:
    name = quote(f"{EVIL.replace('/', '')}.toml")
    for path in ("", "job/job.toml?n=500", f"job/{name}", f"run/{quote(EVIL)}"):
        said = page(server, path).text
        assert "<script>alert" not in said
        assert said.count("<script>") == (0 if path.startswith("run/") else 1)


@pytest.mark.parametrize("path", ["", "/", "/wrong/", "/wrong/run/runs/one", "//", "/%2e%2e/", "/favicon.ico"])
def test_a_wrong_token_is_refused(server: Server, path: str) -> None:
    answer = Answer(server, path or "*")
    assert answer.status == 403
    assert server.token not in answer.text
    assert "run" not in answer.text.replace("vfl ui printed", "")


def test_another_host_is_refused(server: Server) -> None:
    """A site whose name is rebound to 127.0.0.1 sends its own name."""
    for host in (
        "evil.example",
        f"evil.example:{server.server_port}",
        "127.0.0.1",
        "",
        f"127.0.0.1:{server.server_port}@x",
    ):
        assert Answer(server, server.site.base, host=host).status == 403
    assert Answer(server, server.site.base, host=f"localhost:{server.server_port}").status == 200


def test_two_host_headers_are_refused(server: Server) -> None:
    own = f"Host: 127.0.0.1:{server.server_port}\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), 5) as client:
        client.sendall(f"GET {server.site.base} HTTP/1.1\r\n{own}Host: evil.example\r\n\r\n".encode())
        assert b" 403 " in client.recv(1000).splitlines()[0]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_there_are_no_other_methods(server: Server, method: str) -> None:
    assert Answer(server, server.site.base, method=method).status == 501


@pytest.mark.parametrize(
    "path",
    [
        "run/../secret.csv",
        "run/..%2f..%2fetc%2fpasswd",
        "run//etc/passwd",
        "job/secret.csv",
        "job/other.toml",
        "job/runs/one/job.toml",
        "ledger/runs/half/ledger.db",
        "ledger/..%2fowner.db",
        "report/runs/one/../../..",
        "run/runs/one%00",
        "secret.csv",
        "static/../secret.csv",
    ],
)
def test_nothing_else_can_be_asked_for(server: Server, path: str) -> None:
    answer = page(server, path)
    assert answer.status == 404
    assert "income" not in answer.text


def test_links_out_of_the_folder_are_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "inside").symlink_to(root)
    (tmp_path / "job.toml").symlink_to(root / "job.toml")
    (tmp_path / "run").mkdir()
    for name in ("model.json", "rounds.log"):
        (tmp_path / "run" / name).symlink_to(root / "runs/one" / name)
    found = find(tmp_path)
    assert (found.jobs, found.runs, found.ledgers) == ({}, {}, {})


def test_a_ledger_that_a_log_names_is_not_opened_elsewhere(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "runs/half", tmp_path / "half")
    (tmp_path / "half/ledger.db").unlink()
    progress = WatchedRun(tmp_path / "half").progress()
    assert progress.epsilon is None
    assert "--ledger" in progress.why


def test_headers_shut_the_page_in(server: Server) -> None:
    answer = Answer(server, server.site.base, method="HEAD")
    assert answer.text == ""
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert "script-src 'sha256-" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in answer.headers
    said = page(server).text
    assert not re.search(r'(src|href)="(https?:)?//', said)


def test_only_the_loopback_address_is_bound(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32
    with served(server.site.root) as other:
        assert other.token != server.token


def test_a_run_is_followed_while_it_trains(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    with served(tmp_path) as server:

        def watch(event: object) -> None:
            if isinstance(event, Round):
                if not seen:
                    page(server)  # finds the run
                seen.append(json.loads(page(server, "live/now").text))

        vfl.train(job(), data(), at="inprocess", output=tmp_path / "now", watch=watch)
        assert {now["state"] for now in seen} == {"running"}
        assert [now["rounds"] for now in seen] == list(range(1, len(seen) + 1))
        spent = [now["epsilon"] for now in seen if now["epsilon"] is not None]
        assert sorted(spent) == spent
        assert 0.0 < spent[0] < seen[0]["cap"] <= 2.0
        assert {now["of"] for now in seen} == {vfl.plan(job(), N).messages}
        assert json.loads(page(server, "live/now").text)["state"] == "finished"


def test_an_interrupted_run_says_how_to_go_on(server: Server) -> None:
    said = page(server, "run/runs/half").text
    assert "vfl resume" in said
    assert "<progress" in said
    assert re.search(r"ε spent: <span[^>]*>[\d.]+ of 2", said)


def test_a_damaged_log_is_shown_as_such(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "runs/half", tmp_path / "half")
    (tmp_path / "half/rounds.log").write_bytes(b"0 {}\n0 [1]\n0 nonsense\n")
    with served(tmp_path) as server:
        assert "unreadable" in page(server).text
        assert page(server, "run/half").status == 200


def test_wrong_folders_ledgers_and_ports_are_refused(tmp_path: Path, server: Server) -> None:
    with pytest.raises(OutputError, match="there is no folder"):
        Server(tmp_path / "none")
    with pytest.raises(OutputError, match="there is no ledger"):
        Server(tmp_path, 0, [tmp_path / "none.db"])
    with pytest.raises(OutputError, match=r"127\.0\.0\.1:\d+.*another --port"):
        Server(tmp_path, server.server_port)


LINE = "password = hunter2 = 3"


def _edited(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2, ensure_ascii=False) + "\n")


def _hostile(root: Path, tmp_path: Path) -> dict[str, Path]:
    """Make a folder of things that froze the page or took it down; return its runs by the name of what is wrong."""
    (tmp_path / "secret").write_text(f"a = 1\n{LINE}\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    runs = {name: folder / name for name in ("deep", "findings", "linked", "many", "log", "huge", "fifo")}
    for name, path in runs.items():
        shutil.copytree(root / ("runs/half" if name in ("log", "huge") else "runs/one"), path)
    (runs["deep"] / "certificate.json").write_text("[" * 10**5)
    (runs["findings"] / "findings.json").write_text('{"held out": ' + "[" * 10**5)
    (runs["fifo"] / "findings.json").unlink()
    os.mkfifo(runs["fifo"] / "findings.json")
    (runs["linked"] / "job.toml").unlink()
    (runs["linked"] / "job.toml").symlink_to(tmp_path / "secret")
    _edited(runs["many"] / "certificate.json", n_records=10**11)
    (runs["log"] / "rounds.log").write_text("0 " + "[" * 10**5 + "\n")
    log = (runs["huge"] / "rounds.log").read_text()
    (runs["huge"] / "rounds.log").write_text(log.replace(f'"n_records":{N}', f'"n_records":{10**11}'))
    os.mkfifo(folder / "x.toml")
    os.mkfifo(folder / "x.db")
    (folder / "deep.toml").write_text("[partition]\na = " + "[" * 10**4)
    jobfile.write(job("split", evaluation=vfl.Evaluation(holdout=0.5)), folder / "split.toml")
    (folder / "evil.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(folder / "evil.db")) as ledger:
        for name in ("format", "entries"):
            ledger.execute(
                f"CREATE VIEW {name} AS WITH RECURSIVE c(version, ledger) AS (SELECT 1, '' UNION ALL SELECT version + 1, '' "
                "FROM c) SELECT * FROM c WHERE version < 0"
            )
    jobfile.write(job("latin"), Path(os.fsdecode(os.fsencode(folder) + b"/\xe9.toml")))
    shutil.copytree(root / "runs/one", os.fsdecode(os.fsencode(folder) + b"/\xe9"))
    shutil.copytree(root / "runs/one", folder / "sound")
    return runs


def test_a_hostile_item_takes_no_other_down(root: Path, tmp_path: Path) -> None:
    runs = _hostile(root, tmp_path)
    with served(tmp_path / "folder", root / "owner.db") as server:
        said = page(server).text
        assert re.search(r">sound</a></td><td[^>]*>finished<", said)
        for path in (*(f"run/{name}" for name in runs), "run/%E9", "job/%E9.toml", "run/sound"):
            assert f'href="{server.site.base}{path}"' in said
            assert page(server, path).status == 200
        for path in (f"{kind}/{name}" for name in runs for kind in ("report", "live", "card")):
            assert page(server, path).status == 200
        for path in ("job/deep.toml", "ledger/evil.db", "job/split.toml?n=1e11"):
            assert page(server, path).status == 200
        assert "plan of job" in page(server, "job/split.toml?n=1e11").text
        assert "its tables are not those" in page(server, "ledger/evil.db").text
        for path in ("run/linked", "report/linked", ""):
            assert "hunter2" not in page(server, path).text
        for path in ("job/x.toml", "ledger/x.db"):
            assert page(server, path).status == 404


def test_an_item_that_never_ends_holds_up_no_other(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "stuck", "z"):
        shutil.copytree(root / "runs/half", tmp_path / name)
    ends, progress = threading.Event(), WatchedRun.progress

    def stuck(self: WatchedRun, *arguments: Any) -> Any:
        if self.folder.name == "stuck":
            ends.wait()
        return progress(self, *arguments)

    monkeypatch.setattr(WatchedRun, "progress", stuck)
    monkeypatch.setattr("vfl.apps.ui.server.PATIENCE", 5.0)
    with served(tmp_path) as server:
        try:
            asked = threading.Thread(target=page, args=(server, "run/stuck"))
            asked.start()
            said = page(server).text
            assert said.count("interrupted: round 4") == 2
            assert "takes too long" in said
            assert "interrupted: round 4" in page(server, "run/z").text
            assert "takes too long" in page(server, "run/stuck").text
            asked.join()
        finally:
            ends.set()


BROWSER = next((name for name in ("chromium", "google-chrome", "chrome") if shutil.which(name)), None)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_a_real_browser_runs_the_script_and_no_other(root: Path, tmp_path: Path) -> None:
    """The page's own script may run: it reloads a page whose run has ended. Its policy is tried with a script of another."""
    shutil.copytree(root / "runs/half", tmp_path / "half")
    with served(tmp_path) as server:
        shown = WatchedRun(tmp_path / "half").progress()

        def dumped(path: str) -> str:
            words = [
                str(BROWSER),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--virtual-time-budget=4000",
                "--dump-dom",
            ]
            folder = [f"--user-data-dir={tmp_path / 'profile'}"]
            done = subprocess.run(
                [*words, *folder, server.url + path], capture_output=True, text=True, timeout=120, check=True
            )
            return done.stdout

        assert f"{shown.said}</span>" in dumped("run/half")
        log = tmp_path / "half/rounds.log"
        lines = log.read_bytes().splitlines(keepends=True)
        asked: list[int] = []
        find_again = server.site.answer

        def answer(path: str, query: Any) -> tuple[str, str]:
            if path.startswith("live/"):
                asked.append(1)
            kind, said = find_again(path, query)
            if path == "run/half" and not asked:  # the log is longer once the page has been drawn
                log.write_bytes(b"".join([*lines, lines[-1].replace(b'"round":3', b'"round":4')]))
                said = said.replace("</main>", "<script>document.title = 'evil'</script></main>")
            return kind, said

        server.site.answer = answer  # type: ignore[method-assign]
        said = dumped("run/half")
        assert asked
        assert "round 5 of at most" in said
        assert "<title>half: vfl</title>" in said
