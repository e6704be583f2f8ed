"""One party's part of a model, its owner's permission, and its application to new records in the party's process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from parties.alignment.reading import open_for
from parties.allowed import name_of
from parties.consent import Policy, policy_of, require_source
from parties.daily_count import DailyCount
from parties.loading import digests_of, load_absent, load_range, new_records, require_content
from parties.storage.classes import ClassColumns
from vfl.base.documents import is_format, parse_json, read_bytes
from vfl.base.persons import Persons, RowRule
from vfl.base.problem import coordinates_of
from vfl.errors import DataError, OutputError, PrivacyError, SpecificationError, VersionMismatch, VflError
from vfl.job.file import decode
from vfl.queries import HELD_OFFSETS
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from parties.alignment.reading import ChosenRows
    from parties.storage.classes import Storage
    from vfl.base.types import Integers, Vector
    from vfl.job import Job
    from vfl.job.job import PartyTask
    from vfl.network.shards import Shard
    from vfl.queries import Statistic


FORMAT = 1


@dataclass(frozen=True, eq=False)
class ModelPart:
    """One party's part of a model, w_k, with all that is needed to apply it. If the whole model is public, so is the part.

    job : the public job of the run. party : owner of this part.
    model : digest of the whole model, as in its certificate; all parts of one model share it.
    coordinates, w : (p_k,) names of the coefficients; their values for scaled features. With multinomial loss: (p_k·K,).
    intercept : intercept of the whole model, (K,) with multinomial loss. Every part contains it.
    threshold : score above which a model of two classes predicts the positive class. Every part contains it.
    """

    job: Job
    party: str
    model: str
    coordinates: tuple[str, ...]
    w: Vector
    intercept: Any
    threshold: float = 0.0

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the part in hexadecimal, as listed in an owner's policy (parties.consent)."""
        plain = json.loads(self.to_json()) | {"job": self.job.digest}
        return hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=True).encode()).hexdigest()

    def scores(
        self,
        source: Any,
        *,
        chosen: ChosenRows | None = None,
        permission: Permission | None = None,
        shards: int = 1,
    ) -> Vector:
        """Return X_k w_k for new records, (n,) float64, or (n, K). Values are filled and clamped as in training.

        source : as for `train`; the label is not needed. chosen : rows to read, in their order; None for all rows.
        permission : the owner's permission. None takes it from the policy that the owner set for this process;
            without a policy, none is needed.
        shards : number of ranges of rows that are read and applied one after another. The process holds the columns of one
            range at a time. The scores are the same to the bit for any number of ranges.

        Raises DataError for unusable records. Raises ConsentRefused before the source is opened, or if there are more records
        than remain of the daily limit.
        """
        return self._read(self.applied, source, chosen, permission, shards)

    def products(
        self,
        source: Any,
        weights: Mapping[str, Vector],
        *,
        chosen: ChosenRows | None = None,
        permission: Permission | None = None,
    ) -> Vector:
        """Return X_k W for new records, (n, r). weights : {coordinate: r weights}. Otherwise as `scores`."""

        def product(columns: Storage) -> Vector:
            W, whole = np.array([weights[name] for name in columns.names]), columns.block(0, len(columns.names))
            zeros = np.zeros(columns.n_records)
            return np.column_stack([columns.kernels.forward(whole, np.ascontiguousarray(w), zeros.copy()) for w in W.T])

        return self._read(product, source, chosen, permission, 1)

    def _read(
        self,
        apply: Callable[[Storage], Vector],
        source: Any,
        chosen: ChosenRows | None,
        permission: Permission | None,
        shards: int,
    ) -> Vector:
        task, permission = task_of(self, labelled=False), permission or permitted(self, source)
        # `map` drops the columns of a shard before it reads the next shard.
        read = new_records(task, source, chosen=chosen, shards=shards)
        scores = list(map(lambda own: apply(own[0]), read))  # noqa: C417
        permission.count(sum(map(len, scores)))
        return scores[0] if shards == 1 else np.concatenate(scores)

    def applied(self, columns: Storage) -> Vector:
        """Return X_k w_k for loaded columns, (n,) or (n, K)."""
        by_name = dict(zip(self.coordinates, self.w, strict=True))
        K, classes = self.job.n_outputs, self.job.class_names
        w = np.array([by_name[own] for name in columns.names for own in coordinates_of(name, classes)])
        if classes:
            each = ClassColumns(columns, K)
            found = each.kernels.forward(each.block(0, len(w)), w, np.zeros(K * columns.n_records))
            return np.ascontiguousarray(found.reshape(K, -1).T)
        scores: Vector = columns.kernels.forward(columns.block(0, len(w)), w, np.zeros(columns.n_records))
        return scores

    def absent(self) -> Vector:
        """Return the scores, (1,) or (1, K), of a record that the party lacks. Raises DataError if a column has no fill."""
        return self.applied(load_absent(task_of(self, labelled=False)))

    def to_json(self) -> str:
        """Return the part as JSON text, to be stored in a file."""
        plain = {
            "format": FORMAT,
            "party": self.party,
            "model": self.model,
            "w": dict(zip(self.coordinates, map(float, self.w), strict=True)),
            "intercept": np.asarray(self.intercept).tolist(),
            "threshold": self.threshold,
            "job": self.job.to_dict(),
        }
        return json.dumps(plain, indent=2, ensure_ascii=False)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a part from a file with the text of `to_json`.

        The part's predictions are equal to the bit. Raises OutputError.
        """
        try:
            text = read_bytes(path).decode()
        except OSError as error:
            raise OutputError(f"cannot read the part of a model {str(path)!r}: {error.strerror}") from error
        except ValueError as error:
            raise OutputError(f"{str(path)!r} is damaged: {error}") from error
        return cls.parse(text, repr(str(path)))

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Return the part from the text of `to_json`. where : name of the text in errors. Raises OutputError."""
        try:
            plain = parse_json(text)
        except ValueError as error:
            raise OutputError(f"{where} is damaged: {error}") from error
        if not isinstance(plain, dict) or not is_format(plain.get("format"), FORMAT) or "party" not in plain:
            raise OutputError(
                f"{where} is not a part of a model of format {FORMAT}: make one with vfl export RUN --party NAME"
            )
        try:
            w = np.array(list(plain["w"].values()), dtype=np.float64)
            job = decode(plain["job"])
            job.partition.columns(plain["party"])
            own = plain["intercept"]
            intercept = np.array(own, dtype=np.float64) if job.multinomial else float(own)
            part = cls(job, plain["party"], plain["model"], tuple(plain["w"]), w, intercept, float(plain["threshold"]))
        except (VflError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise OutputError(f"{where} is damaged: {error}") from error
        if not math.isfinite(part.threshold):
            raise OutputError(f"{where} is damaged: its threshold is not a finite number")
        if np.size(part.intercept) != job.n_outputs:
            raise OutputError(f"{where} is damaged: its numbers of intercepts and of classes differ")
        return part


def part_of(given: ModelPart | str, party: str) -> ModelPart:
    """Return the given part, or read it from the given path. Raises OutputError if it is the part of another party."""
    part = ModelPart.read(given) if isinstance(given, str) else given
    if part.party != party:
        raise OutputError(f"party {party!r} was given the model part of {part.party!r}")
    return part


@dataclass(frozen=True, slots=True, eq=False)
class PartGreeting:
    """Facts that a party sends before a prediction.

    version : version of the party's code. model : digest of the whole model. ids : True if the new records have an id column.
    threshold : score above which the model predicts the positive class.
    """

    version: str
    model: str
    job: Job
    ids: bool
    threshold: float = 0.0


def agreed(greetings: Mapping[str, PartGreeting]) -> PartGreeting:
    """Return the first greeting, after checking that all parties agree on version of vfl, job, model and threshold.

    Raises VersionMismatch for different versions, OutputError for parts of different models, and SpecificationError for a
    missing part.
    """
    first, *others = greetings.items()
    for party, greeting in (first, *others):
        if greeting.version != __version__:
            raise VersionMismatch(
                f"party {party!r} runs vfl {greeting.version}, this is {__version__}: install one version everywhere"
            )
        if any(getattr(greeting, name) != getattr(first[1], name) for name in ("model", "job", "threshold")):
            raise OutputError(
                f"the parts of parties {first[0]!r} and {party!r} belong to different models: export both again"
            )
    job = first[1].job
    for party in job.partition.parties:
        if party not in greetings and job.partition.columns(party):
            raise SpecificationError(f"party {party!r} has columns in the model, and no part of it is given")
    return first[1]


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission of one party's owner. policy : None if the owner has none; then nobody is asked and nothing is counted."""

    party: str
    policy: Policy | None

    def count(self, records: int) -> None:
        """Count records before their scores are sent. Raises ConsentRefused above the policy's daily limit."""
        allowed = None if self.policy is None else self.policy.prediction
        if self.policy is None or allowed is None or allowed.records is None:
            return
        with contextlib.closing(DailyCount.of(self.policy)) as count:
            taken = count.take(self.party, records, allowed.records)
        if not taken:
            self.policy.refuse_prediction(
                self.party, "records", f"these are more records than are left today of the {allowed.records} per day"
            )


def permitted(
    part: ModelPart,
    source: Any,
    policy: str | None = None,
    *,
    receiver: str | None = None,
    labels: bool = False,
    owners: bool = False,
) -> Permission:
    """Return the owner's permission, if the policy allows the prediction; else raise ConsentRefused, which names the rule.

    policy : path of the owner's policy; a policy that the owner set for this process (parties.consent.VARIABLE) overrides it.
    receiver : the aggregating party, which sees this party's part of each score; None for this party itself.
    labels : True if labels are read too, to measure the model without noise. owners : True if the owner named `policy`.
    """
    agreed = policy_of(policy)
    named = name_of(source)
    if agreed is not None:
        agreed.check_prediction(part.party, part.digest, named, receiver=receiver or part.party, labels=labels)
    require_source(agreed, part.party, named, "a prediction", owners=owners)
    return Permission(part.party, agreed)


def all_permitted(
    parts: Mapping[str, ModelPart],
    given: Mapping[str, Any],
    policies: Mapping[str, str] | None,
    *,
    receiver: str,
    measured: bool = False,
) -> dict[str, Permission]:
    """Return the permissions of all parties' owners, as `permitted` does for one party.

    given : {party: source as the user named it, which may be one table for all parties}. measured : True if the receiver's
        labels are read.
    """
    return {
        party: permitted(
            parts[party],
            source,
            (policies or {}).get(party),
            receiver=receiver,
            labels=measured and party == receiver,
        )
        for party, source in given.items()
    }


class NewRows:
    """New records of one shard of a party, to which the party's part of a model is applied.

    Guarantee. The owner was asked before `load`, and records are counted before their scores are passed on
    (parties.services.predicting).

    labelled : True to read the labels, too, to measure the model.
    digests : {block: digest} of the blocks that were read (parties.loading.digests_of).
    """

    def __init__(self, part: ModelPart, *, labelled: bool = False) -> None:
        self._part = part
        self._task = task_of(part, labelled=labelled)
        self._own: Vector = np.zeros(0)
        self._total: Vector = np.zeros(0)
        self._labels: Vector = np.zeros(0)
        self._offsets: Vector | None = None
        self._person: Integers | None = None
        self._persons: Persons | None = None
        self.digests: dict[int, str] = {}

    def load(
        self, source: Any, shard: Shard | None, chosen: ChosenRows | None, opened: Any = None, *, content: str = ""
    ) -> int:
        """Read the rows, apply this party's part of the model, and return the number of records. The columns are not kept.

        opened : the source, if this process has opened it already. content : as for parties.loading.require_content. Other
            arguments : as for parties.loading.load_rows.
        """
        opened = opened or open_for(self._task, source, ids=chosen is not None)
        require_content(self._task, opened, content, ids=chosen is not None)
        columns, labels = load_range(self._task, source, opened, shard, chosen)
        self.digests = digests_of(opened)
        if labels is not None:
            self._labels, self._offsets, *_ = self._part.job.targets.measured.parts(labels)
        self._own, self._person = self._part.applied(columns), None if chosen is None else chosen.person
        return len(self._own) if chosen is None else chosen.n_records

    def scores(self) -> Vector:
        """Return the party's part of the scores of these records, (n,) or (n, K)."""
        return self._own

    def total(self, *parts: Vector) -> Vector:
        """Return the scores of these rows. parts : one vector per party with columns, in the partition's order.

        If ids repeat here, this party's vector has an entry per row, and each row takes the entry of its id in other vectors.
        """
        if (person := self._person) is not None:
            parts = tuple(v if len(v) <= person[-1] or len(v) == len(person) else v[person] for v in parts)
        return added(dict(enumerate(parts)), self._part.intercept)

    def keep(self, *parts: Vector) -> int:
        """Keep the scores for `sum_of`, and return their number. Raises DataError unless every record has a label."""
        self._total = self.total(*parts)
        if len(self._labels) != len(self._total):
            raise DataError("the label party holds a different number of records from the others")
        if self._person is not None:
            most_rows = int(np.bincount(self._person).max())
            persons = Persons.of(self._person, int(self._person[-1]) + 1, RowRule(self._part.party, most_rows))
            order = persons.order
            self._persons, self._total, self._labels = persons.taken(order), self._total[order], self._labels[order]
            self._offsets = None if self._offsets is None else self._offsets[order]
        return len(self._total)

    def sum_of(self, statistic: Statistic) -> Integers | Vector:
        """Return the exact sum of a statistic of the kept scores and the labels, in multiples of the statistic's grid.

        If ids repeat, the k rows of an id weigh 1/k each, as in a run, and the sum is in multiples of grid/UNITS.
        """
        K = self._part.job.n_outputs
        scores = self._total if K == 1 else self._total.T.ravel()  # one class after the other, as in a run
        if self._offsets is not None:
            scores = scores + self._offsets
        needs = statistic.needs
        if needs not in ((), (HELD_OFFSETS,)) or (needs and self._offsets is None):
            raise PrivacyError("the statistic asks for vectors that new records do not have")
        total: Any = statistic.of if self._persons is None else partial(self._persons.total, statistic.of)
        made: Integers | Vector = total(scores, self._labels, *(self._offsets for _ in needs))
        return made


def task_of(part: ModelPart, *, labelled: bool) -> PartyTask:
    """Return the task of reading new records: the features, and the label if `labelled`."""
    task = part.job.for_party(part.party)
    return task.measured if labelled else task.features


def added(parts: Mapping[Any, Vector], intercept: Vector | float) -> Vector:
    """Return the scores (n,) as the sum of every party's part. The partition's order of parties fixes the rounding."""
    scores: Vector | None = None
    for party, part in parts.items():
        if scores is not None and len(part) != len(scores):
            named = f"party {party!r}" if isinstance(party, str) else "a party"
            raise DataError(f"{named} holds a different number of records from the other parties")
        scores = part if scores is None else scores + part
    if scores is None:
        raise SpecificationError("no party has a column to predict from")
    return scores + intercept
