"""`predict` and `evaluate`: every party applies its part of a model to new records, and the label party adds the parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from coordinator.prediction import PredictionOutcome
from parties.alignment.reading import holds_ids, raw_ids
from parties.prediction import all_permitted
from vfl.base.arguments import package, require
from vfl.base.losses import loss_of
from vfl.base.problem import coordinates_of
from vfl.crypto.alignment import Aligned, AlignmentProgress
from vfl.crypto.identifiers import key_name
from vfl.errors import SpecificationError
from vfl.job.site import InProcess
from vfl.launch.run.model import labels_of, probabilities_of
from vfl.launch.run.result import Result, require_result, scores_of
from vfl.launch.run.warnings import warn
from vfl.launch.sites.open_site import Application, Organisations, module_of, site_and_data
from vfl.launch.sources import in_memory, is_by_party, named_by_owners, named_for, sources_of
from vfl.measures import Findings
from vfl.measures.estimates import score_of, threshold_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from parties.prediction import ModelPart
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.launch.sites.open_site import At


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Predictions:
    """Predictions of a model for new records.

    scores : (n,) float64, linear predictors: log-odds with logistic loss. labels : (n,) classes; for regression the predicted
        values (the loss's response to the scores).
    probabilities : (n,) probabilities of the positive class; None unless the loss is logistic or multinomial.
    classes : names of the K classes of multinomial loss, whose scores and probabilities are (n, K); () for other losses.
    ids : (n,) ids in the order of the adding party's rows; None if rows were not joined. id_column : name of the id column.
    rows : {party: number of ids in its data}; None if rows were not joined, {} for a left join. Only the participants of an
        alignment learn these numbers: do not publish them.
    n_joined : number of different ids of the records; None if rows were not joined.
    threshold : threshold by which labels were decided, on the scale of `Result.threshold`; None without two classes.
    """

    scores: Vector
    labels: Any
    ids: tuple[Any, ...] | None = None
    id_column: str | None = None
    probabilities: Vector | None = None
    rows: Mapping[str, int] | None = None
    classes: tuple[str, ...] = ()
    threshold: float | None = None
    n_joined: int | None = None

    @property
    def margins(self) -> NoReturn:
        """Raise AttributeError: former name of `scores`."""
        raise AttributeError("Predictions.margins is now Predictions.scores")

    @property
    def unmatched(self) -> dict[str, int]:
        """{party: number of its ids that another party lacks}; {} if rows were not joined, and for a left join."""
        joined = len(self) if self.n_joined is None else self.n_joined
        return {party: n - joined for party, n in (self.rows or {}).items()}

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        """Return the number of records. Ids, labels and scores of single records stay out of notebooks and logs."""
        joined = "rows in the order of the data" if self.id_column is None else f"joined by {self.id_column!r}"
        left = "".join(f", {n:,} ids of {party} unmatched" for party, n in self.unmatched.items() if n)
        return f"Predictions for {len(self):,} records, {joined}{left} (to_pandas() has them)"

    def to_pandas(self) -> Any:
        """Return a pandas frame of label, probability (logistic loss) and score. The index is the ids, if there are any.

        With multinomial loss every class has two columns, 'probability[class]' and 'score[class]'.
        """
        pd = package("pandas", "frames", "to_pandas")
        columns: dict[str, Any] = {"label": self.labels} | self.numbers("probability") | self.numbers("score")
        index = None if self.ids is None else pd.Index(self.ids, name=self.id_column)
        return pd.DataFrame(columns, index=index)

    def numbers(self, name: str) -> dict[str, Vector]:
        """Return {column: (n,) values} of 'score' or 'probability', with one column per class of multinomial loss."""
        values = self.scores if name == "score" else self.probabilities
        if values is None:
            return {}
        names = coordinates_of(name, self.classes)
        return dict(zip(names, values.T if self.classes else (values,), strict=True))


def predict(
    model: Result | Mapping[str, str | Path],
    data: Any = None,
    *,
    at: At = None,
    threshold: float | None = None,
    watch: Callable[[AlignmentProgress], None] | None = None,
) -> Predictions:
    """Predict new records: each party computes its part of Xw from its own data, and the label party adds up the parts.

    If the job aligns records and the data hold the id columns, the records that all parties have are predicted, in the order
    of the adding party's rows; for a left join, all records of the adding party. Otherwise row i of every party must belong to
    the same record. The adding party sees every party's part of each score: prediction, like training, is for participants
    who trust one another.

    model : a result, or {party: path of its part}. Each party reads its own part; Result.save_parts writes the parts.
    data : {party: source} as for `train`, or one table of all columns; labels are not needed.
        Each party checks [prediction] of its owner's policy before it opens any data (parties.consent).
    at : as for `train`; all sites give the same predictions to the bit. None predicts in this process, which reads all data
        and compares ids in the clear. On Ray the actors align records by private set intersection. With `shards`, the rows of
        every party are read in ranges: by one actor per range, or in this process one range after another. Across organisations
        `model` is a result, whose parts are sent to their parties. Each party encrypts its part of the scores for the adding
        party; this process receives the sums, and the ids if there are any.
    threshold : threshold for the positive class: a probability with logistic loss, a score with other losses of two classes.
        None takes the model's threshold (Result.threshold).
    watch : function that is called with the progress of the alignment.

    Raises ConsentRefused, SpecificationError, DataError, OutputError or FederationError (vfl.errors).
    """
    wanted = "a vfl.Result (Result.load(FOLDER) returns that of a run), or {party: path of its part}"
    require("model", model, wanted, fits=isinstance(model, Result | Mapping))
    if isinstance(model, Result):
        if why := model.altered():
            warn(f"do not rely on these predictions: the certificate of the model does not hold. {why}")
        model.score_at(threshold)  # refused before any data are read
    parties = model.job.partition.parties if isinstance(model, Result) else tuple(model)
    site, data, arrangement = site_and_data(parties, data, at, InProcess())
    across = isinstance(site, Organisations)
    parts: dict[str, ModelPart | str]
    if not isinstance(model, Result):
        if across:
            raise SpecificationError(
                "across organisations a prediction needs the result, whose parts are sent to the parties"
            )
        if not isinstance(data, Mapping) or set(data) != set(model) or not model:
            raise SpecificationError(
                "a model that is split by party needs {party: source} of the same parties as its parts"
            )
        parts, given = {party: str(Path(path).expanduser().absolute()) for party, path in model.items()}, dict(data)
    elif isinstance(site, Organisations) or is_by_party(model.job.partition, data):
        partition = model.job.partition
        given = named_by_owners(partition, data) if across else sources_of(model.job, data, label=False)
        parts = {party: model.part(party) for party in parties if partition.columns(party)}
        given = {party: source for party, source in given.items() if party in parts}
    else:
        return _of_table(model, data, arrangement.policies, site.shards, threshold)
    asked = Application(parts=parts, given=given, policies=arrangement.policies)
    joined: Aligned | None = None
    for event in module_of(site).apply(asked, site=site):
        if isinstance(event, Aligned):
            joined = event
        elif isinstance(event, PredictionOutcome):
            found = event
        elif isinstance(event, AlignmentProgress) and watch is not None:
            watch(event)
    cut = found.threshold if threshold is None else score_of(threshold, loss_of(found.job.loss))
    made = _labelled(found.job, tuple(parts), found.scores, found.ids, cut)
    return made if joined is None else replace(made, rows=joined.sizes, n_joined=joined.n_records)


def _of_table(
    result: Result, table: Any, policies: Mapping[str, str], shards: int, threshold: float | None
) -> Predictions:
    job = result.job
    scores, owner = scores_of(result, table, policies, shards), job.partition.label_party
    task = job.for_party(owner)
    ids = raw_ids(task, table) if job.ids and holds_ids(task, table) else None
    return _labelled(job, (owner,), scores, ids, result.score_at(threshold))


def _labelled(
    job: Job,
    parties: tuple[str, ...],
    scores: Vector,
    ids: list[Any] | None,
    cut: float,
) -> Predictions:
    loss, column = loss_of(job.loss), None if ids is None else key_name(job.ids[job.partition.receiver(parties)])
    probabilities = probabilities_of(job, scores) if loss.log_odds or loss.multinomial else None
    listed = None if ids is None else tuple(ids)
    threshold = threshold_of(cut, log_odds=loss.log_odds) if job.classification and not job.multinomial else None
    labels = labels_of(job, scores, cut)
    return Predictions(scores, labels, listed, column, probabilities, None, job.class_names, threshold)


OWN = "exact and uncharged: nothing protects these records"
JOINED = "joined by their ids, without those that a party lacks"
LEFT = "joined by their ids, with those that another party lacks"


def evaluate(result: Result, data: Any = None, *, at: At = None, threshold: float | None = None) -> Findings:
    """Return exact measures of a model on new records with their labels. Nothing protects the privacy of these records.

    data : as for `train`. For private measures on records of the training data, set `holdout` in the job.
    at : as for `predict`. The measures are the same to the bit at every site. On Ray and across organisations each party
        applies its part of the model to the party's own source. The label party adds up the parts of the scores and returns
        sums.
    threshold : threshold at which decisions are measured; None takes the model's threshold (Result.threshold).

    Every owner's policy is checked before any data are opened. The label party's policy must allow `labels`.

    Raises ConsentRefused, which names the refusing rule, and the errors of `train`.
    """
    require_result(result)
    if why := result.altered():
        warn(f"do not rely on these measures: the certificate of the model does not hold. {why}")
    job, cut = result.job, result.score_at(threshold)
    partition = job.partition
    site, data, arrangement = site_and_data(partition.parties, data, at, InProcess())
    parts = {party: result.part(party) for party in partition.parties if partition.wanted(party, groups=False)}
    across = isinstance(site, Organisations)
    named = named_by_owners(partition, data) if across else named_for(partition, data)
    if not across:
        named = {party: source for party, source in named.items() if party in parts}
        parts = {party: parts[party] for party in named}

    def sources() -> dict[str, Any]:
        # On Ray the parties check their policies where they open their sources; this process opens a file of all parties.
        if not (isinstance(data, Mapping) or in_memory(data)):
            receiver = partition.receiver(tuple(parts))
            all_permitted(parts, named, arrangement.policies, receiver=receiver, measured=True)
        return {party: source for party, source in sources_of(job, data, groups=False).items() if party in parts}

    joined, policies = False, arrangement.policies
    asked = Application(parts=parts, given=named, policies=policies, sources=sources, w=result.w, threshold=cut)
    for event in module_of(site).apply(asked, site=site):
        if isinstance(event, Findings):
            found = event
        joined = joined or isinstance(event, Aligned)
    return replace(found, note=f"{OWN}; {LEFT if job.base(parts) else JOINED}" if joined else OWN)
