"""`vfl join` and `vfl serve`: take part in a federation, or answer scoring requests over HTTP, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfl.apps.cli import INTERRUPTED, Terminated
from vfl.apps.cli.options import JSON_LINES, KEY_VARIABLE, METRICS_VARIABLE, PATH, path_option, print_json, several
from vfl.apps.cli.options.jobs import CSV, formats_of, in_format
from vfl.errors import SpecificationError
from vfl.network.federation.events import (
    Allowed,
    Connected,
    Disconnected,
    Ended,
    Refused,
    Released,
    Requested,
    Warned,
    plain_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vfl.launch.join import JoinArguments
    from vfl.launch.metrics import Metrics
    from vfl.network.federation.events import Event

DIGITS = 12
"""Number of digits of a digest or a run id to print, as in other commands."""
LONGEST_LINE = 4000
HEARTBEAT = 60.0
"""Seconds between two lines on the cost of a run while the reserved ε of the run does not change."""


@click.command("join")
@click.argument("path", metavar="FILE", type=PATH)
@click.option("--as", "name", required=True, metavar="NAME", help="Your name in FILE.")
@several(
    "--data", "sources", "[NAME=]FILE", "Your data; further files need names, from which the coordinator may choose."
)
@CSV
@path_option("--policy", "Your policy, asked before your data are opened.")
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    default=1,
    metavar="S",
    help="Read your rows for predictions in S ranges: less memory, the same results.",
)
@JSON_LINES
def join_command(
    path: Path,
    name: str,
    sources: tuple[str, ...],
    formats: tuple[str, ...],
    policy: Path | None,
    shards: int,
    *,
    as_json: bool,
) -> None:
    """Take part in the federation of FILE with your data, for any number of jobs, until Ctrl-C or SIGTERM.

    Connects to the coordinator, opens no port, and reconnects when the connection breaks. Prints each request, the
    decision of your policy, and the cost. Only the sources in --data are opened, never a path from the coordinator.

    The dealer that FILE names joins without data and policy. $VFL_IDENTITY names a key that does not lie beside FILE,
    $VFL_METRICS the HOST:PORT of Prometheus metrics, $VFL_INDEX the folder for the index of aligned records.
    """
    from vfl.launch.join import prepare, run

    identity = os.environ.get(KEY_VARIABLE)
    try:
        joining = prepare(path, name, _named(sources, formats), policy=policy, identity=identity, shards=shards)
    except Terminated:
        return
    screen = Screen(joining, as_json=as_json)
    screen.begin()
    stop = threading.Event()
    with _stopped_by_signals(stop) as signals, _served(os.environ.get(METRICS_VARIABLE), screen):
        run(joining, screen, stop)
    screen.end()
    if signal.SIGINT in signals:
        sys.exit(INTERRUPTED)


def _named(sources: Sequence[str], formats: Sequence[str]) -> dict[str, Any]:
    """Return {name: source} from --data; '' stands for a source without a name. formats : values of --csv."""
    named: dict[str, str] = {}
    for source in sources:
        name, equals, file = source.partition("=")
        name, file = (name, file) if equals and not Path(source).exists() else ("", source)
        if name in named:
            said = f"the name {name!r}" if name else "no name"
            raise SpecificationError(f"--data is given twice with {said}: name further files, NAME=FILE")
        named[name] = file
    options = formats_of(formats, tuple(named))
    return {name: in_format(file, name, options) for name, file in named.items()}


@contextlib.contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[list[int]]:
    """Set `stop` on SIGTERM and on the first Ctrl-C. A second Ctrl-C ends the process at once."""
    came: list[int] = []

    def told(number: int, frame: object) -> None:
        del frame  # the signature of handlers
        if number in came and number == signal.SIGINT:
            raise KeyboardInterrupt
        came.append(number)
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _served(address: str | None, screen: Screen) -> Iterator[None]:
    if not address:
        yield
        return
    from vfl.launch.metrics import Metrics

    labels = {"party": screen.party, "federation": screen.federation}
    with Metrics(address, COUNTERS, GAUGES, labels) as metrics:
        screen.metrics = metrics
        yield


COUNTERS = {
    "vfl_party_requests": "requests of the coordinator",
    "vfl_party_refusals": "requests refused by the policy or the party ledger",
    "vfl_party_releases": "noised sums of requests that ended",
    "vfl_party_disconnections": "times that the stream to the coordinator broke or could not be opened",
}
GAUGES = {
    "vfl_party_connected": "1 while the stream to the coordinator is open",
    "vfl_party_epsilon_left": "epsilon that the party ledger has left",
    "vfl_party_stale": "1 while a service cannot read its data, and scores records read earlier, if any",
}


class Screen:
    """Printer of one line per event to standard output. The thread of the connection calls the printer.

    The cost of a run is printed at the first release, whenever the reserved ε changes, and every HEARTBEAT seconds.
    """

    def __init__(self, joining: JoinArguments, *, as_json: bool = False) -> None:
        self._joining = joining
        self._as_json = as_json
        self._open: dict[str, Requested] = {}
        self._released: dict[str, Released] = {}
        self._shown: dict[str, tuple[float, float | None]] = {}  # {run: (time of its last line, reserved ε)}
        self._lock = threading.Lock()
        self.metrics: Metrics | None = None
        self.party, self.federation = joining.identity.name, joining.federation.name

    def begin(self) -> None:
        """Print the party, the federation and the sources."""
        from parties.consent import Policy
        from vfl.job.environment import path_of

        joining = self._joining
        federation, name = joining.federation, joining.identity.name
        if self._as_json:
            said = {"event": "joining", "party": name, "federation": federation.name, "digest": federation.digest}
            said |= {"coordinator": federation.coordinator.name, "address": federation.address}
            self._print(said | {"policy": None if joining.policy is None else str(joining.policy)})
            return
        click.echo(
            f"{name} joins federation {federation.name} (digest {federation.digest[:DIGITS]}): coordinator "
            f"{federation.coordinator.name} at {federation.address}"
        )
        if joining.policy is None:
            click.echo("dealer of training on shares: opens no data")
            return
        sources = ", ".join(f"{n}={path_of(source)}" if n else path_of(source) for n, source in joining.sources.items())
        ledger = Policy.read(joining.policy).ledger
        kept = "" if ledger.exists() else ", a new one: no earlier job counts"
        click.echo(f"data {sources}; policy {joining.policy}; ledger {ledger}{kept}")

    def __call__(self, event: Event) -> None:
        """Print one event."""
        with self._lock:
            if isinstance(event, Requested):
                self._open[event.run] = event
            elif isinstance(event, Released):
                self._released[event.run] = event
            if self.metrics is not None:
                _measure(event, self.metrics)
            if isinstance(event, Released) and not self._due(event):
                return
            if self._as_json:
                self._print(plain_of(event))
            else:
                click.echo(f"{time.strftime('%H:%M:%S')}  {_printable(self._said(event))}")
            if isinstance(event, Ended | Refused):
                for known in (self._open, self._released, self._shown):
                    known.pop(event.run, None)

    def _due(self, event: Released) -> bool:
        """Return True if it is time to print a run's cost again. If so, store the present time as the time of printing."""
        now = time.monotonic()
        at, reserved = self._shown.get(event.run, (-math.inf, None))
        if event.reserved == reserved and now - at < HEARTBEAT:
            return False
        self._shown[event.run] = now, event.reserved
        return True

    def end(self) -> None:
        """Print the requests that are in progress."""
        with self._lock:
            left = list(self._open.values())
            if self._as_json:
                self._print({"event": "left", "in_flight": [request.run for request in left]})
                return
            click.echo(f"{time.strftime('%H:%M:%S')}  stopped; {'nothing is in flight' if not left else 'in flight:'}")
            kept = "" if self._joining.policy is None else "; charges stay in your ledger"
            for request in left:
                charged = self._released.get(request.run)
                cost = f", {_cost(charged.releases, charged.epsilon)} so far" if charged is not None else ""
                click.echo(
                    f"          run {_printable(_short(request.run))} ({request.purpose} {request.job!r}){cost}: the "
                    f"coordinator waits for you, or resumes it later{kept}"
                )

    def _said(self, event: Event) -> str:
        coordinator = self._joining.federation.coordinator.name
        match event:
            case Connected():
                return f"connected to {event.coordinator} at {event.address}; waiting for requests"
            case Disconnected():
                flight = f"; in flight: run {', '.join(map(_short, event.in_flight))}" if event.in_flight else ""
                return f"not connected: {event.why}; reconnecting automatically{flight}"
            case Requested(purpose="check"):
                return f"{coordinator} checks the link; no data are touched"
            case Requested():
                return f"{coordinator} asks to {_request(event)}"
            case Allowed():
                return f"run {_short(event.run)}: {'the policy allows it' if event.policy else 'there is no policy'}"
            case Refused():
                return f"run {_short(event.run)}: refused: {event.why}"
            case Released():
                reserved = f" of the ε = {event.reserved:.4g} reserved" if event.reserved is not None else ""
                return f"run {_short(event.run)}: {_cost(event.releases, event.epsilon)}{reserved}"
            case Warned():
                return f"run {_short(event.run)}: {event.why}"
            case Ended():
                return f"run {_short(event.run)}: {_outcome(event)}"

    def _print(self, plain: dict[str, Any]) -> None:
        print_json({"time": round(time.time(), 3), **plain})


def _request(event: Requested) -> str:
    """Return a request in words, with everything that the policy checks."""
    said = [f"{event.purpose} {event.job!r} (digest {_short(event.digest)}), run {_short(event.run)}"]
    if event.columns:
        said.append(f"columns {' '.join(event.columns)}")
    if event.source:
        said.append(f"source {event.source!r}")
    if event.trust:
        said.append(f"trust {event.trust!r}" + (f" ({event.threats})" if event.threats else ""))
    if event.epsilon is not None:
        said.append(f"ε = {event.epsilon:g}" + (f" at δ = {event.delta:.3g}" if event.delta is not None else ""))
    elif event.purpose == "train":
        said.append("WITHOUT PRIVACY")
    return ", ".join([*said, *(f"flag: {flag}" for flag in event.flags if event.epsilon is not None)])


def _outcome(event: Ended) -> str:
    said = [f"{'ended' if event.why else 'done'} after {event.seconds:.1f} s"]
    if event.records is not None:
        said.append(f"{event.records} records")
    if event.releases:
        said.append(_cost(event.releases, event.epsilon))
    if event.left is not None:
        said.append(f"your ledger still admits ε = {event.left:.4g}")
    return ", ".join(said) + (f": {event.why}" if event.why else "")


def _measure(event: Event, meters: Metrics) -> None:
    match event:
        case Connected():
            meters.set("vfl_party_connected", 1.0)
        case Disconnected():
            meters.set("vfl_party_connected", 0.0)
            meters.add("vfl_party_disconnections", 1.0)
        case Requested():
            meters.add("vfl_party_requests", 1.0)
        case Refused():
            meters.add("vfl_party_refusals", 1.0)
        case Warned():
            meters.set("vfl_party_stale", float(event.stale))
        case Ended():
            meters.add("vfl_party_releases", float(event.releases))
            if event.left is not None:
                meters.set("vfl_party_epsilon_left", event.left)


def _printable(text: str) -> str:
    """Return a line without control characters, by which a coordinator could forge or hide lines on the owner's screen."""
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST_LINE])


def _short(text: str) -> str:
    return text[:DIGITS]


def _cost(releases: int, epsilon: float | None) -> str:
    said = f"{releases} noised sum{'s' * (releases != 1)}"
    return said if epsilon is None else f"{said}, ε = {epsilon:.4g}"


@click.command("serve")
@click.argument("path", metavar="FILE", type=PATH)
@JSON_LINES
def serve_command(path: Path, *, as_json: bool) -> None:
    """Answer scoring requests over HTTP, as the service file FILE says, until Ctrl-C or SIGTERM.

    Scores carry no noise: the aggregating party sees the other parties' parts of each score. Policies and the callers'
    quotas limit who asks, and how much.

    SIGHUP reads models and callers from FILE again, and the data: requests in progress keep their version, and a new active
    version answers once all parties have loaded it. The versions kept and refused are printed.
    """
    try:
        from vfl.apps.serving.run import Service
    except ImportError as error:
        raise SpecificationError(f"vfl serve needs {error.name}: pip install 'vfl[serve]'") from None

    def watch(event: dict[str, Any]) -> None:
        if as_json:
            print_json({"time": round(time.time(), 3), **event})
            return
        name, refused = event["event"], event.get("refused", {})
        said = {
            "serving": f"{event.get('party')} serves at {event.get('listen')}",
            "reloaded": "reloaded, except what is refused" if refused else "reloaded",
            "data": f"data of {event.get('party')}",
        }.get(name, name)
        why = f": {_printable(event['why'])}" if "why" in event else ""
        click.echo(f"{time.strftime('%H:%M:%S')}  {said}{why}")
        for model, kept in event.get("models", {}).items():
            active = "no version answers" if kept["active"] is None else f"version {kept['active']} answers"
            click.echo(f"          {model}: {active}; kept: {', '.join(kept['versions']) or 'none'}")
        for which, why in refused.items():
            click.echo(f"          {which} refused: {why}")

    with contextlib.suppress(Terminated):
        Service(path).run(watch)
