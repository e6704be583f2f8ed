"""Measuring a saved model on records of one's own, in the clear."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.aligned import joined_rows
from parties.loading import load_labels
from vfl.errors import DataError
from vfl.evaluation import Evaluation, Findings
from vfl.evaluation.inquiries import HeldOut
from vfl.launch.sources import sources_of
from vfl.messages import Tally
from vfl.planning import problem_of

if TYPE_CHECKING:
    from vfl.launch.result import Result
    from vfl.solvers.protocol import Released

OWN = "un-noised and uncharged: nothing protects these records"


def evaluate(result: Result, data: Any) -> Findings:
    """Return exact measures of a model on new records with their labels. Nothing protects these records.

    data : as for `train`. For measures with noise on records of the training data, give the job a `holdout`.
    """
    job = result.job
    owner, sources = job.partition.label_party, sources_of(job.partition, data)
    labels = load_labels(job, sources[owner])
    joined = joined_rows(job, sources) if job.ids else {}
    labels = labels[joined[owner]] if joined else labels
    margins = result.decision_function(data)
    if len(margins) != len(labels):
        raise DataError("the label party holds another number of records than the others")
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
            return replace(found, note=OWN)
