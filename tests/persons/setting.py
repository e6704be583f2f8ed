"""Runs in this process of jobs whose label party has several rows per person, on indexes made by hand."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import parties.loading
import vfl
from parties.alignment.index import Index
from parties.alignment.reading import ChosenRows, persons_of
from vfl.launch.run import execution
from vfl.launch.sites import inprocess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PARTITION = vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c", "d"]}, label=("telco", "y"))
BOUNDS: Any = dict.fromkeys("abcd", (-1.0, 1.0))


@contextlib.contextmanager
def aligned_by_hand(person: Any, n_persons: int) -> Iterator[None]:
    """Align without ids: row r of the label party's table belongs to person[r], and row i of others' tables to person i."""

    def aligned(tasks: Mapping[str, Any], *rest: Any) -> Any:
        yield from ()
        own = np.asarray(person, np.int64)
        of_rows = Index(bytes(32), "h", "", np.arange(own.size), own)
        plain = Index(bytes(32), "h", "", np.arange(n_persons))
        return {name: of_rows if task.label is not None else plain for name, task in tasks.items()}

    def check(task: Any, spec: Any, opened: Any, index: Index, read: Any = None) -> ChosenRows:
        return ChosenRows(index.rows, len(index.rows), None, persons_of(task, index))

    with (
        mock.patch.object(inprocess, "_aligned", aligned),
        mock.patch.object(parties.loading, "check_aligned", check),
        mock.patch.object(execution, "check"),  # which tries many more records, slowly for sampled batches of few
    ):
        yield


def tables(k: Any, seed: int = 0, loss: str = "logistic") -> tuple[dict[str, dict[str, Any]], Any]:
    """Return tables with k[i] rows of person i at the label party, and the rows' persons."""
    rng, k = np.random.default_rng(seed), np.asarray(k)
    N, person = len(k), np.repeat(np.arange(len(k)), k)
    bank = {"id": np.arange(N), "a": rng.uniform(-1, 1, N), "b": rng.uniform(-1, 1, N)}
    telco = {"id": person, "c": rng.uniform(-1, 1, person.size), "d": rng.uniform(-1, 1, person.size)}
    v = 2 * bank["a"][person] - telco["c"] + 1.5 * telco["d"] - 0.5
    noisy = v + rng.logistic(size=person.size)
    y = {"logistic": (noisy > 0).astype(int), "squared": v + 0.3 * rng.normal(size=person.size)}[loss]
    return {"bank": bank, "telco": telco | {"y": y}}, person


def job(solver: Any = None, *, most_rows: int = 6, **options: Any) -> vfl.Job:
    """Return a job on these tables."""
    given: dict[str, Any] = {
        "partition": PARTITION,
        "bounds": BOUNDS,
        "privacy": None,
        "penalty": vfl.L2(0.05),
        "id": vfl.columns.Id("id", most_rows=most_rows),
        "solver": solver or vfl.SkGD(),
    }
    return vfl.Job(**given | options)
