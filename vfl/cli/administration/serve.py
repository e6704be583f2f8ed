"""`vfl serve FILE`: answer scoring requests over HTTP, at the party that adds up the parts of the margins."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from vfl.cli.options import JSON_LINES, PATH, print_json
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from pathlib import Path


@click.command("serve")
@click.argument("path", metavar="FILE", type=PATH)
@JSON_LINES
def command(path: Path, *, as_json: bool) -> None:
    """Answer scoring requests over HTTP, as the service file FILE says, until Ctrl-C or SIGTERM.

    Scores carry no noise: the party that adds up sees the other parties' parts of each margin. Policies and the callers'
    quotas limit who asks, and how much.

    SIGHUP reads models and callers from FILE again, and the data: requests in progress keep their version, and a new active
    version answers once all parties have loaded it. The versions kept and refused are printed.
    """
    from vfl.cli.terminal.signals import Terminated

    try:
        from vfl.serving.run import Service
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
        }.get(name, name)
        click.echo(f"{time.strftime('%H:%M:%S')}  {said}" + (f": {event['why']}" if "why" in event else ""))
        for model, kept in event.get("models", {}).items():
            active = "no version answers" if kept["active"] is None else f"version {kept['active']} answers"
            click.echo(f"          {model}: {active}; kept: {', '.join(kept['versions']) or 'none'}")
        for which, why in refused.items():
            click.echo(f"          {which} refused: {why}")

    with contextlib.suppress(Terminated):
        Service(path).run(watch)
