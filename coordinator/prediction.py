"""Prediction and evaluation at the coordinator. Parties send their parts of margins to one party, which adds them up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.alignment import align
from coordinator.transport import MOST_RECORDS, expected, given
from vfl.base.documents import parse_json
from vfl.errors import DataError, FederationError
from vfl.measures import Evaluation
from vfl.measures.classes import HeldOutClasses
from vfl.measures.evaluations import HeldOut
from vfl.network.messages import AddUp, Applied, Apply, Done, Measure, SendLinearPredictors, TakeLinearPredictors
from vfl.planning import problem_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from coordinator.transport import MessageTransport
    from vfl.base.types import Vector
    from vfl.crypto.alignment import Aligned, AlignmentProgress
    from vfl.job import Job
    from vfl.measures import Findings
    from vfl.queries.protocol import Released

LOAD_SECONDS = 3600.0
ID_BYTES = 1 << 10
"""Largest number of bytes of one id in JSON."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PredictionOutcome:
    """Outcome of a prediction, in the order of the rows of the aggregating party.

    ids : ids of the records; None if the data have no ids. scores : (n,) float64, or (n, K) with multinomial loss.
    threshold : score above which the model predicts the positive class.
    """

    job: Job
    ids: list[Any] | None
    scores: Vector
    threshold: float


def apply(
    transport: MessageTransport, job: Job, *, aligns: bool, ids: bool, threshold: float, w: Vector | None = None
) -> Generator[AlignmentProgress | Aligned, None, PredictionOutcome | Findings]:
    """Make the parties apply their parts of a job's model. Yield the alignment; return the added margins or exact measures.

    aligns : True to align the new records by their ids, by private set intersection. ids : True if the new records have ids.
    threshold : score above which the model predicts the positive class.
    w : the whole model, to measure it; None to predict. To measure it, the label party returns exact sums without noise, and
        nobody else sees a label or a margin.
    """
    receiver, n_records, n = yield from _applied(transport, job, aligns=aligns)
    if w is not None:
        return _measured(transport, job, receiver, n_records, threshold, w)
    size = 8 * n * job.n_outputs
    due = {"margins": size} | ({"ids": ID_BYTES * n} if ids else {})
    vectors = _asked(transport, receiver, AddUp(), due)
    margins = transport.whole(given(vectors, "margins", receiver), receiver)
    if margins.nbytes != size:
        raise FederationError(f"party {receiver!r} sent linear predictors of an unexpected size")
    shaped: Vector = margins.view(np.float64).reshape(job.shape_of_margins(n))
    return PredictionOutcome(job, _ids_of(vectors["ids"], receiver, n) if "ids" in vectors else None, shaped, threshold)


def _measured(
    transport: MessageTransport, job: Job, receiver: str, n_records: int, threshold: float, w: Vector
) -> Findings:
    spec = replace(job.evaluation or Evaluation(), epsilon=None)
    kind = HeldOutClasses if job.multinomial else HeldOut
    schedule = kind(problem_of(job.on_all_records(), n_records), spec, n_records, None, threshold).schedule(w)
    query = next(schedule)
    while True:
        sums: Released = ()
        if (statistic := query.tallied) is not None:
            size = 8 * statistic.dimension
            vectors = _asked(transport, receiver, Measure(statistic), {"sum": size})
            sums = (np.asarray(given(vectors, "sum", receiver, size)).view(np.float64),)
        try:
            query = schedule.send(sums)
        except StopIteration as end:
            found: Findings = end.value
            return found


def _asked(transport: MessageTransport, to: str, message: object, due: Mapping[str, int]) -> Mapping[str, Any]:
    ((reply, vectors),) = transport.collect([transport.post(to, message, due=due, seconds=LOAD_SECONDS)])
    expected(reply, Done, to)
    return vectors


def _applied(
    transport: MessageTransport, job: Job, *, aligns: bool
) -> Generator[AlignmentProgress | Aligned, None, tuple[str, int, int]]:
    """Make all parties apply their parts and send them to the aggregating party.

    Return this party, the number of records, and the number of this party's rows.
    """
    parties, receiver = transport.parties, job.partition.receiver(transport.parties)
    if len(parties) > 1:
        transport.exchange_keys(salted=aligns)
    if len(parties) > 1 and aligns:
        yield (yield from align(transport, base=job.base(parties)))
    applied = transport.call(dict.fromkeys(parties, Apply()), Applied, LOAD_SECONDS)
    n = applied[receiver].n_records
    for party, said in applied.items():
        if said.n_records != n:
            raise DataError(
                f"party {party!r} holds a different number of records from the other parties: give the same records for "
                "all, or their ids"
            )
        if said.n_rows is not None and (party != receiver or job.row_rule is None):
            raise FederationError(
                f"party {party!r} reported several rows of a record, and its records have one row each"
            )
    n_rows = applied[receiver].n_rows
    n_rows = n if n_rows is None else n_rows
    if not 0 <= n <= n_rows <= MOST_RECORDS:
        raise FederationError("a party reported an impossible number of records")
    size, posted = 8 * n * job.n_outputs, []
    for party in parties:
        if party != receiver and job.partition.columns(party):
            sent = transport.post(party, SendLinearPredictors(receiver), due={"margins": size}, passed=True)
            posted += [sent, transport.post(receiver, TakeLinearPredictors(party), sent.vectors)]
    for own, (reply, _) in zip(posted, transport.collect(posted), strict=True):
        expected(reply, Done, own.to)
    return receiver, n, n_rows


def _ids_of(found: Any, party: str, n_records: int) -> list[Any]:
    """Return the ids in an answer, which come as a list, or as JSON from another organisation."""
    if not isinstance(found, list):
        try:
            found = parse_json(found.tobytes())
        except ValueError:
            found = None
    if not isinstance(found, list) or any(isinstance(one, list | dict) for one in found):
        raise FederationError(f"party {party!r} sent ids that are not a list of ids")
    if len(found) != n_records:
        raise FederationError(f"party {party!r} sent a different number of ids from records")
    return found
