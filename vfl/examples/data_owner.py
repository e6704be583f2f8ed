"""A data owner's day: one data set, one cap, several jobs, a refusal, and an audit.

Run it with: python -m vfl.examples.data_owner [FOLDER]

The script writes ledger and runs to FOLDER, which must be new, or to a temporary folder that it removes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import vfl
from vfl import examples
from vfl.errors import BudgetExceeded

if TYPE_CHECKING:
    from pathlib import Path

DELTA = 1e-6


def main(folder: Path) -> None:
    """Go through the day, and print each step."""
    job, _ = vfl.Job.from_toml(examples.job_file("breast_cancer"))
    table = examples.table("breast_cancer")

    print("Morning: the data owner gives the data set a cap that all jobs on it share.")
    ledger = vfl.Ledger(folder / "budget.db").open()
    ledger.set_cap("biopsies", epsilon=2.0, delta=DELTA)
    print(*ledger.show(), sep="\n")

    def asking(epsilon: float, name: str) -> vfl.Job:
        privacy = vfl.Privacy(epsilon=epsilon, delta=DELTA)
        return dataclasses.replace(job, dataset="biopsies", privacy=privacy, name=name, evaluation=None)

    print("\nTen o'clock: a first job asks for ε = 1. Its releases are known before it runs.")
    first = asking(1.0, "first")
    print(f"planned: {sum(count for _, count in vfl.plan(first, table.num_rows).releases)} releases")
    result = vfl.train(first, table, ledger=ledger.path, output=folder / "first")
    print(result.certificate)

    print("\nNoon: a second asks for ε = 1.5. ε does not add up, the ledger adds costs of releases: both fit under 2.")
    vfl.train(asking(1.5, "second"), table, ledger=ledger.path, output=folder / "second")
    print(*ledger.show(), sep="\n")

    print("\nThree o'clock: a third asks for ε = 1.5 as well, and is refused before any data are touched.")
    try:
        vfl.train(asking(1.5, "third"), table, ledger=ledger.path, output=folder / "third")
    except BudgetExceeded as refusal:
        print(f"refused: {refusal}")

    print("\nEvening: the auditor recomputes the chain, and ε from the certificate of the first run.")
    head = ledger.verify()
    print(f"{head.seq} entries follow from each other")
    print(vfl.Result.load(folder / "first").verify(ledger=ledger.path))


if __name__ == "__main__":
    examples.in_folder(main)
