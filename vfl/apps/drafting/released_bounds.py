"""Private release of the bounds that a draft of a job file leaves open."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from parties.sources.opening import read_table
from vfl.apps.drafting.recognition import recognise
from vfl.base.arguments import require_number
from vfl.base.partition import FeaturePartition
from vfl.errors import SpecificationError
from vfl.job import Job
from vfl.job.drafted import left_in
from vfl.launch.paid_releases.paid_release import private_bounds
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.apps.drafting.draft import Ask, Question
    from vfl.base.csv import Csv

LABEL = "no label"
LARGEST = 1e300
"""Largest absolute value of a cell; infinite cells get this absolute value."""


@dataclass(frozen=True, slots=True)
class ReleasedBounds:
    """Bounds that were released to complete a draft of a job file.

    bounds : {column in the draft: (low, high)}, public from now on. unknown : columns for which no bounds were found.
    epsilon, delta : an upper bound on the cost of all parties' releases together.
    charged : the ledger and the data set that are charged, in words; '' if no ledger counts the cost.
    """

    bounds: Mapping[str, tuple[float, float]]
    unknown: tuple[str, ...]
    epsilon: float
    delta: float
    charged: str

    @property
    def lines(self) -> tuple[str, ...]:
        """Description of the release, in words."""
        cost = f"ε = {self.epsilon:.4g} at δ = {self.delta:.3g}"
        counted = f"charged to {self.charged}" if self.charged else "NO LEDGER counts it: add it to the ε of every run"
        said = [
            f"bounds of {len(self.bounds)} columns released for {cost}, {counted}",
            "NOT PRIVATE unless publicly known: which columns are numeric was read from the records, not released",
        ]
        if self.unknown:
            said.append(f"no bounds were found for {', '.join(self.unknown)}: too few records share a magnitude")
        return tuple(said)

    def asking(self, ask: Ask | None) -> Ask:
        """Return a function that answers questions about released bounds, and passes all other questions to `ask`."""

        def answer(question: Question) -> str | None:
            found = self.bounds.get(question.column) if question.about == "bounds" else None
            if found is not None:
                return f"{json.dumps(list(found))}  # released by vfl init --private-bounds"
            return None if ask is None else ask(question)

        return answer


def release_bounds(
    text: str,
    sources: Mapping[str, str | Path | Csv],
    *,
    epsilon: float,
    ledger: str | Path | None = None,
    dataset: str | None = None,
) -> ReleasedBounds:
    """Release the open bounds of a draft's numeric columns, (ε, δ)-DP for every record of every party under replace-one.

    Each of k parties with open bounds makes its own release (`private_bounds`) at ε/k and δ/k, with δ = 1/n². The costs
    add up to at most ε even for a record that all parties hold. Missing cells count as 0. The number of rows of each file
    becomes public. The guarantee assumes that the draft is public, although cells decided which columns are numeric; the
    outcome's `lines` state this assumption.

    text : the draft. sources : {party: path, or a text file with its format}, as for `draft`.
    ledger, dataset : ledger, and the capped data set in it that is charged. If both are None, nothing counts the cost.

    Raises SpecificationError if no bounds are open, or if only one of ledger and dataset is given. Also raises the errors of
    `private_bounds`.
    """
    require_number("--private-bounds", epsilon)
    require_ledger(ledger, dataset)
    opened = {party: recognise(source).source for party, source in sources.items()}
    named = open_bounds(text)
    if not named:
        raise SpecificationError(
            "no numeric column lacks bounds, so there is nothing to release: leave out --private-bounds"
        )
    bounds: dict[str, tuple[float, float]] = {}
    unknown: list[str] = []
    failed = 0.0
    for party, columns in named.items():
        table = _table(opened[party], tuple(columns))
        job = Job(
            name=f"init-{party}",
            partition=FeaturePartition({party: list(columns)}, label=(party, LABEL)),
            privacy=None,
            scaling="none",
            dataset=dataset,
        )
        delta = 1.0 / (max(table.num_rows, 2) ** 2 * len(named))
        released = private_bounds(job, table, epsilon=epsilon / len(named), delta=delta, ledger=ledger, at="inprocess")
        bounds |= {columns[column]: found for column, found in released.bounds.items()}
        unknown += [columns[column] for column in released.unknown]
        failed += delta  # a ledger's cap may have a different δ, and then a different ε for the same release
    charged = f"data set {dataset!r} of {str(ledger)!r}" if ledger is not None else ""
    return ReleasedBounds(bounds, tuple(unknown), epsilon, failed, charged)


def require_ledger(ledger: str | Path | None, dataset: str | None) -> None:
    """Refuse a ledger without a data set, a data set without a ledger, and a ledger that does not exist. Reads no data."""
    if (ledger is None) != (dataset is None):
        raise SpecificationError(
            "released bounds are charged to a data set of a ledger: give both --ledger and --dataset"
        )
    if ledger is not None and not Path(ledger).exists():
        SqliteLedger(ledger).show()  # raises LedgerError with the command that creates it


def open_bounds(text: str) -> dict[str, dict[str, str]]:
    """Return {party: {column in its source: column in the draft}} for columns whose bounds the draft leaves open."""
    open_ = {key.strip() for key in left_in(text).get("[bounds]", [])}
    wanted = {json.loads(key) if key.startswith('"') else key for key in open_}
    parties: Mapping[str, Sequence[str]] = tomllib.loads(text)["partition"]["parties"]
    found = {
        party: {c: name for c in columns for name in (c, f"{party}.{c}") if name in wanted}
        for party, columns in parties.items()
    }
    return {party: columns for party, columns in found.items() if columns}


def _table(source: Any, columns: Sequence[str]) -> pa.Table:
    """Return the columns as float64, with a label column of zeros, which a release of bounds does not read."""
    read = read_table(source, dict.fromkeys(columns, "number"))
    cells = {
        column: np.nan_to_num(
            read[column].cast(pa.float64(), safe=False).to_numpy(), nan=0.0, posinf=LARGEST, neginf=-LARGEST
        )
        for column in columns
    }
    return pa.table(cells | {LABEL: np.zeros(read.num_rows)})
