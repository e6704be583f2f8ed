"""`vfl verify RUN`: check a certificate, and print its guarantee for readers without mathematics."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import click

from vfl.cli.options import CHARGED, JSON, RUN, SIGNER, path_option, print_json
from vfl.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from vfl.certificate import Report


@click.command("verify")
@RUN
@CHARGED
@SIGNER
@path_option("--federation", "Federation file: the run has to be made by these organisations.")
@JSON
def command(run: Path, ledger: Path | None, key: str | None, federation: Path | None, *, as_json: bool) -> None:
    """Check the certificate of RUN, a run's folder or a certificate's file, and recompute its ε.

    Prints the guarantee in two sentences, the outcome of each check, and the checks that were skipped for lack of input.
    """
    from vfl.launch.run.verification import verify_run

    report = verify_run(run, ledger=ledger, key=key, federation=federation)
    if as_json:
        print_json(_plain(report))
    elif report.ok:
        for sentence in report.guarantee:
            click.echo(sentence)
        for flag in report.certificate.flags:
            click.echo(f"flag: {flag}")
        click.echo()
    if not as_json:
        click.echo(str(report))
        if failed := ", ".join(check.name for check in report.failed):
            raise OutputError(
                f"the certificate does not hold, see FAIL above: {failed}; rely on neither it nor the model"
            )
    report.require()


def _plain(report: Report) -> dict[str, Any]:
    certificate = report.certificate
    return {
        "verified": report.ok,
        "private": report.ok and certificate.private,
        "epsilon": certificate.epsilon if math.isfinite(certificate.epsilon) else None,
        "delta": certificate.delta,
        "guarantee": list(report.guarantee) if report.ok else [],
        "flags": list(certificate.flags),
        "checks": [dataclasses.asdict(check) for check in report.checks],
    }
