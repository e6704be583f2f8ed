"""`vfl serve FILE`: answer scoring requests over HTTP at the party that adds up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click


@click.command("serve")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event, one per line.")
def command(path: Path, *, as_json: bool) -> None:
    """Answer scoring requests over HTTP, as the service file FILE says, until Ctrl-C or SIGTERM.

    Scores carry no noise: the party that adds up sees the other parties' parts of each margin. Policies and the callers'
    quotas limit who asks, and how much.

    SIGHUP reads models and callers from FILE again, and the data: requests in progress keep their version, and a new active
    version answers once all parties have loaded it.
    """
    from vfl.errors import SpecificationError

    try:
        from vfl.serving.run import Service
    except ImportError as error:
        raise SpecificationError(f"vfl serve needs {error.name}: pip install 'vfl[serve]'") from None

    def watch(event: dict[str, Any]) -> None:
        if as_json:
            click.echo(json.dumps({"time": round(time.time(), 3), **event}, ensure_ascii=False))
            return
        said = {"serving": f"{event.get('party')} serves at {event.get('listen')}"}.get(event["event"], event["event"])
        click.echo(f"{time.strftime('%H:%M:%S')}  {said}" + (f": {event['why']}" if "why" in event else ""))
        for which, why in event.get("refused", {}).items():
            click.echo(f"          {which}: {why}")

    Service(path).run(watch)
