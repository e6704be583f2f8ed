"""`evaluate`: exact measures of a saved model on new records, without privacy for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.reading import joined_rows
from parties.loading import load_labels
from parties.prediction import added
from vfl.errors import DataError
from vfl.evaluation import Evaluation, Findings
from vfl.evaluation.inquiries import HeldOut
from vfl.launch.sources import sources_of
from vfl.messages import Tally
from vfl.planning import problem_of

if TYPE_CHECKING:
    from vfl.launch.run.result import Result
    from vfl.solvers.protocol import Released

OWN = "un-noised and uncharged: nothing protects these records"
JOINED = "joined by their ids, without those that a party lacks"


def evaluate(result: Result, data: Any) -> Findings:
    """Return exact measures of a model on new records with their labels. Nothing protects these records.

    data : as for `train`. For private measures on records of the training data, set `holdout` in the job.
    """
    job = result.job
    owner, sources = job.partition.label_party, sources_of(job, data)
    joined = joined_rows(job, sources, first=owner, common=True)
    labels = load_labels(job.for_party(owner), sources[owner])
    parts = {party: result.part(party) for party in sources if job.partition.columns(party)}
    margins_of = {party: part.margins(sources[party]) for party, part in parts.items()}
    if joined:
        labels = labels[joined[owner]]
        margins_of = {party: margins[joined[party]] for party, margins in margins_of.items()}
    margins = added(margins_of, next((part.intercept for part in parts.values()), 0.0))
    if len(margins) != len(labels):
        raise DataError("the label party holds a different number of records from the others")
    spec = replace(job.evaluation or Evaluation(), epsilon=None)
    problem = problem_of(replace(job, holdout=None, evaluation=None), len(labels))
    schedule = HeldOut(problem, spec, len(labels), None).schedule(result.w)
    query = next(schedule)
    while True:
        sums: Released = ()
        if isinstance(query, Tally):
            sums = (np.asarray(query.statistic(margins, labels) * query.statistic.grid, dtype=np.float64),)
        try:
            query = schedule.send(sums)
        except StopIteration as end:
            found: Findings = end.value
            return replace(found, note=f"{OWN}; {JOINED}" if joined else OWN)
