"""Connections, metrics and logs of commands that run the coordinator of a federation."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

import click

from vfl.cli.options import path_option
from vfl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

ROUNDS, LINKS = "vfl.run", "vfl.federation"
"""Loggers of runs and of connections. Each line is one JSON object, without data of records (coordinator.telemetry)."""


def watching_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --metrics and --log to a command that takes --federation."""
    metrics = click.option(
        "--metrics", metavar="HOST:PORT", help="With --federation: serve Prometheus metrics at this address."
    )
    log = path_option("--log", "With --federation: append the log to this file, one JSON object per line.")
    return metrics(log(command))


class Connections(logging.Handler):
    """Log handler that prints to standard error when parties connect, disconnect or are refused."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log line about the connections."""
        from coordinator.federation.gathering import ENDED

        line = json.loads(record.getMessage())
        who = line.get("party") or f"a peer with the certificate {line.get('peer') or 'unknown'}"
        match line["event"]:
            case "connected":
                click.echo(f"{who} is connected", err=True)
            case "disconnected" if line["why"] != ENDED:  # a regular end is not a fault
                click.echo(f"{who} disconnected: {line['why']}", err=True)
            case "refused":
                click.echo(f"{who} is refused: {line['why']}", err=True)


class Timed(logging.Formatter):
    """Log formatter that adds the time, in seconds since 1970, to every JSON line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps({"time": round(record.created, 3), **json.loads(record.getMessage())}, ensure_ascii=False)


@contextlib.contextmanager
def watched(
    metrics: str | None = None,
    log: Path | None = None,
    *,
    federation: Path | None,
    parties: Iterable[str] = (),
    job: str = "",
    quiet: bool = False,
) -> Iterator[None]:
    """Print connections while a command runs. If requested, serve metrics and append log lines to a file.

    parties : parties for which the command waits. quiet : True prints nothing.
    """
    with contextlib.ExitStack() as stack:
        if federation is not None and not quiet:
            stack.enter_context(_handling(Connections(), LINKS))
            click.echo(f"waiting for {', '.join(parties)}: each runs vfl join {federation.name}", err=True)
        if log is not None:
            stack.enter_context(_logged(log))
        if metrics is not None:
            from coordinator.telemetry import COUNTERS, GAUGES
            from vfl.launch.metrics import Metrics

            stack.enter_context(Metrics(metrics, COUNTERS, GAUGES, {"job": job}))
        yield


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the log {str(path)!r}: {error.strerror}") from error
    handler.setFormatter(Timed())
    with _handling(handler, LINKS), _handling(handler, ROUNDS):
        yield
    handler.close()


@contextlib.contextmanager
def _handling(handler: logging.Handler, name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
