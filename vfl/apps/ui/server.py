"""HTTP server of `vfl ui`: read-only, on the loopback address, protected by a token.

The server answers a request if all of these conditions hold:

* it was sent to 127.0.0.1, the only bound address;
* its Host header names this address and port, so no other site can reach the server by rebinding its own name;
* its path begins with the token, which is drawn at every start and compared in constant time;
* its method is GET or HEAD, the only ones implemented.

A path can only name an item that `vfl.apps.ui.folder.find` found.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import threading
import time
from concurrent.futures import Future, wait
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from vfl.apps.report.card import card
from vfl.apps.report.card import html as card_html
from vfl.apps.report.facts import gathered
from vfl.apps.report.run import html as report_html
from vfl.apps.ui import pages
from vfl.apps.ui.folder import LONGEST, FolderItems, WatchedRun, find, ledger_of
from vfl.base.documents import opened, parse_json
from vfl.errors import OutputError, VflError
from vfl.job import file as jobfile
from vfl.launch.align import remembered_records
from vfl.launch.run import checkpoint
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from vfl.apps.report.facts import Facts
    from vfl.apps.report.markup import Child
    from vfl.apps.ui.folder import Progress

T = TypeVar("T")
MOST = 16
"""Largest number of items that may be read at the same time."""

log = logging.getLogger(__name__)


class Work:
    """Readings in progress, by key. A second request for the same key waits for the first request's reading."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, tuple[Future[Any], float]] = {}  # {key: (outcome, time of the start)}
        self._lock = threading.Lock()

    def done(self, key: Hashable, seconds: float, work: Callable[[], T]) -> T:
        """Return work(), or raise the error of work() if that is a VflError, an OSError or Expected.

        Raises OutputError for any other error, after `seconds`, and while MOST other readings are in progress.
        """
        with self._lock:
            if key not in self._tasks:
                if len(self._tasks) >= MOST:
                    raise OutputError("too many other items are being read; try again")
                self._tasks[key] = Future(), time.monotonic()
                # The process may end before this thread does.
                threading.Thread(target=self._run, args=(key, self._tasks[key][0], work), daemon=True).start()
            task, begun = self._tasks[key]
        if not wait([task], max(0.0, begun + seconds - time.monotonic())).done:
            raise OutputError("reading it takes too long; try again")
        error = task.exception()
        if error is None:
            outcome: T = task.result()
            return outcome
        if isinstance(error, (VflError, OSError, PageError)):
            raise error
        log.debug("an item cannot be shown", exc_info=error)
        raise OutputError(f"it is damaged ({type(error).__name__})") from error

    def _run(self, key: Hashable, task: Future[Any], work: Callable[[], Any]) -> None:
        try:
            outcome, error = work(), None
        except Exception as raised:  # noqa: BLE001 - damaged files may raise any error; `done` distinguishes these
            outcome, error = None, raised
        with self._lock:
            del self._tasks[key]
        if error is None:
            task.set_result(outcome)
        else:
            task.set_exception(error)


class PageError(Exception):
    """Base class of errors that `Work.done` passes on unchanged."""


HOST = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": pages.POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
KEPT = 8
"""Number of finished runs whose verified facts are kept in memory, since verification can take seconds."""


PATIENCE = 10.0
"""Longest time in seconds that a request waits for its page, or the overview for all of its runs."""
ITEM = 2.0
"""Longest time in seconds that the overview waits for one run."""


class Refused(PageError):
    """Raised for a request that has no page, with its HTTP status and a sentence."""

    def __init__(self, status: HTTPStatus, said: str) -> None:
        super().__init__(said)
        self.status = status


class Site:
    """Pages about one folder. base : URL path of the overview."""

    def __init__(self, root: Path, base: str, ledgers: Sequence[Path] = ()) -> None:
        self.root = root
        self.base = base
        self._ledgers = tuple(ledgers)
        self._watched: dict[Path, WatchedRun] = {}
        self._facts: dict[Path, tuple[object, Facts]] = {}
        self._found = FolderItems()
        self._lock = threading.Lock()  # held to read or write one of the three fields above, never while reading files
        self._work = Work()
        self._routes: Mapping[str, Callable[[FolderItems, str, Mapping[str, str]], str]] = {
            "run": self._run,
            "live": lambda found, name, _: json.dumps(self._progress(found, _named(found.runs, name)).to_dict()),
            "report": lambda found, name, _: report_html(self._gathered(found, _named(found.runs, name))),
            "card": self._card,
            "job": self._job,
            "ledger": self._ledger,
        }

    def answer(self, path: str, query: Mapping[str, str]) -> tuple[str, str]:
        """Return (content type, text) for a URL path below the base. Raises Refused if no page has this path."""
        kind, _, name = path.partition("/")
        if path and kind not in self._routes:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        try:
            if kind != "live":  # an open page requests 'live' every second, for a run already found
                found = self._work.done(("find", ""), PATIENCE, lambda: find(self.root, self._ledgers))
                with self._lock:
                    self._found = found
            with self._lock:
                found = self._found
            if not path:
                return "text/html", pages.overview(self.base, self.root, found, self._states(found))
            asked = (kind, f"{name}?{sorted(query.items())}")
            text = self._work.done(asked, PATIENCE, lambda: self._routes[kind](found, name, query))
        except (VflError, OSError) as error:
            return "text/html", pages.problem(self.base, name, str(error))
        return ("application/json" if kind == "live" else "text/html"), text

    def _states(self, found: FolderItems) -> dict[str, tuple[Child, ...]]:
        """Return the cells of all runs, in PATIENCE seconds at most. Damaged files of a run do not affect other runs."""
        states: dict[str, tuple[Child, ...]] = {}
        until = time.monotonic() + PATIENCE
        for name, folder in found.runs.items():

            def work(name: str = name, folder: Path = folder) -> tuple[Child, ...]:
                return pages.state_of(self.base, name, folder, self._progress(found, folder))

            try:
                states[name] = self._work.done(("state", name), min(ITEM, until - time.monotonic()), work)
            except (VflError, OSError, Refused) as error:
                states[name] = (f"unreadable: {error}", "", "")
        return states

    def _progress(self, found: FolderItems, folder: Path) -> Progress:
        with self._lock:
            watched = self._watched.setdefault(folder, WatchedRun(folder))
        with watched.lock:
            return watched.progress(tuple(found.ledgers.values()))

    def _run(self, found: FolderItems, name: str, query: Mapping[str, str]) -> str:
        folder = _named(found.runs, name)
        progress = self._progress(found, folder)
        facts = self._gathered(found, folder) if progress.state == "finished" else None
        own = folder / checkpoint.LEDGER
        section = None
        if own.is_file() and not own.is_symlink():
            section = pages.accounts(SqliteLedger(own, readonly=True).show())
        return pages.run(self.base, name, progress, facts, section)

    def _card(self, found: FolderItems, name: str, query: Mapping[str, str]) -> str:
        facts = self._gathered(found, _named(found.runs, name))
        return card_html(f"Model card: {facts.certificate.job}", card(facts))

    def _job(self, found: FolderItems, name: str, query: Mapping[str, str]) -> str:
        path = _named(found.jobs, name)
        job, environment = jobfile.read(path, follow=False)
        given = [field for field in ("n", "positives") if query.get(field, "").strip()]
        refused = [field for field in given if _number(query, field) is None]
        if refused:
            said = " and ".join(f"{field} = {query[field]!r}" for field in refused)
            return pages.job(self.base, name, job, None, None, refused=f"{said}: give a number above 0")
        n_records = _number(query, "n")
        if n_records is None:
            n_records = remembered_records(job, environment.data)
        whole = None if n_records is None else max(1, round(n_records))
        return pages.job(self.base, name, job, whole, _number(query, "positives"))

    def _ledger(self, found: FolderItems, name: str, query: Mapping[str, str]) -> str:
        return pages.ledger(self.base, name, SqliteLedger(_named(found.ledgers, name), readonly=True).show())

    def _gathered(self, found: FolderItems, folder: Path) -> Facts:
        """Return the verified facts of a finished run. The facts are cached until the run's files or its ledger change."""
        ledger = ledger_of(folder, _ledger_named(folder), tuple(found.ledgers.values()))
        files = sorted(path for path in folder.iterdir() if path.is_file())
        state = [(path, stat.st_mtime_ns, stat.st_size) for path in (*files, ledger) if path for stat in [path.stat()]]
        with self._lock:
            kept = self._facts.get(folder)
        if kept is not None and kept[0] == state:
            return kept[1]
        facts = gathered(folder, ledger=ledger, key=None, with_timing=False)
        with self._lock:
            self._facts.pop(folder, None)
            while len(self._facts) >= KEPT:
                del self._facts[next(iter(self._facts))]
            self._facts[folder] = (state, facts)
        return facts


def _ledger_named(folder: Path) -> str | None:
    try:
        with opened(folder / checkpoint.NAME, follow=False) as file:
            start = parse_json(file.readline(LONGEST).partition(b" ")[2])["start"]
        return None if start.get("ledger") is None else str(start["ledger"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _named(found: Mapping[str, Path], name: str) -> Path:
    if name not in found:
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing of this name in the folder")
    return found[name]


def _number(query: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(query.get(name, ""))
    except ValueError:
        return None
    return value if 0 < value < 1e12 else None


class Handler(BaseHTTPRequestHandler):
    """Handler of one HTTP request."""

    server: Server
    server_version, sys_version = "vfl", ""
    timeout = 10.0

    def do_GET(self) -> None:  # http.server requires these method names
        """Answer the request, or refuse it with one sentence."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer the request without the body."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        try:
            status, (kind, text) = HTTPStatus.OK, self._page()
        except Refused as refused:
            status, (kind, text) = refused.status, ("text/plain", f"{refused}\n")
        body = text.encode("utf-8", errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        with contextlib.suppress(ConnectionError):  # the browser has closed the connection
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    def _page(self) -> tuple[str, str]:
        if self.headers.get_all("Host") not in self.server.hosts:
            raise Refused(HTTPStatus.FORBIDDEN, "this address is not served: use the one that vfl ui printed")
        try:
            split = urlsplit(self.path)
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "this is not an address") from None
        _, _, rest = split.path.partition("/")
        token, _, path = rest.partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            raise Refused(HTTPStatus.FORBIDDEN, "the token is missing or wrong: use the address that vfl ui printed")
        query = {name: values[-1] for name, values in parse_qs(split.query).items()}
        return self.server.site.answer(unquote(path, errors="surrogateescape"), query)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of http.server
        """Log nothing, since the requested address holds the token."""


class Server(ThreadingHTTPServer):
    """HTTP server for one folder; `serve_forever` answers until `shutdown`.

    root : the folder. port : 0 chooses a free port. ledgers : files outside the folder in which its runs were charged.

    Raises OutputError for a missing folder or ledger, and for a port that cannot be bound.
    """

    daemon_threads: ClassVar[bool] = True  # type: ignore[misc]

    def __init__(self, root: str | Path, port: int = 0, ledgers: Sequence[str | Path] = ()) -> None:
        root, paths = Path(root).resolve(), [Path(path).resolve() for path in ledgers]
        if not root.is_dir():
            raise OutputError(f"there is no folder {str(root)!r}")
        for path in paths:
            if not path.is_file():
                raise OutputError(f"there is no ledger {str(path)!r}")
        self.token = secrets.token_urlsafe(32)
        self.site = Site(root, f"/{self.token}/", paths)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise OutputError(f"cannot listen on {HOST}:{port}: {error.strerror}; give another --port") from error
        self.hosts = [[f"{name}:{self.server_port}"] for name in (HOST, "localhost")]

    @property
    def url(self) -> str:
        """Address of the overview. Anyone on this machine who has the address can read all pages."""
        return f"http://{HOST}:{self.server_port}{self.site.base}"
