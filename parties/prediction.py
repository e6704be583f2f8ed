"""A party's side of a prediction: its part of a model, applied to new records where they lie."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from parties.alignment.participant import Alignment
from parties.alignment.reading import holds_ids, raw_ids
from parties.loading import load_features
from parties.permission import permitted
from parties.storage.classes import ClassColumns
from vfl.errors import DataError, OutputError, SpecificationError, VersionMismatch, VflError
from vfl.job.file import decode
from vfl.job.plain import encode
from vfl.problem import coordinates_of
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from parties.alignment.index import Index
    from parties.permission import Permission
    from vfl.alignment import Keeping
    from vfl.job import Job
    from vfl.types import Vector

FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class ModelPart:
    """One party's part of a model, w_k, with what is needed to apply it. Public where the model is.

    job : the public job of the run. party : owner of this part.
    model : digest of the whole model, as its certificate states it: parts of one model belong together.
    coordinates, w : (p_k,) names and values on the scaled features; (p_k·K,) with multinomial loss.
    intercept : of the whole model; it depends on no party's columns, and every part holds it. (K,) with multinomial loss.
    """

    job: Job
    party: str
    model: str
    coordinates: tuple[str, ...]
    w: Vector
    intercept: Any

    @property
    def digest(self) -> str:
        """SHA-256 of all that is applied, hex: an owner's policy lists it (parties.consent)."""
        plain = json.loads(self.to_json()) | {"job": self.job.digest}
        return hashlib.sha256(json.dumps(plain, sort_keys=True, ensure_ascii=True).encode()).hexdigest()

    def margins(self, source: Any, index: Index | None = None, *, permission: Permission | None = None) -> Vector:
        """Return X_k w_k, (n,) float64, or (n, K), of new records; cells are filled and clamped as in training.

        source : as for `train`; the label is not needed. index : the aligned rows; None takes all as they are.
        permission : of the party's owner. None asks the policy that the owner set for this process, if there is one.

        Raises ConsentRefused before the source is opened, or when these are more records than are left of the day, and
        DataError.
        """
        permission = permission or permitted(self, source)
        columns = load_features(self.job.for_party(self.party), source, index=index)
        permission.count(columns.n_records)
        by_name = dict(zip(self.coordinates, self.w, strict=True))
        K, classes = self.job.n_margins, self.job.class_names
        w = np.array([by_name[own] for name in columns.names for own in coordinates_of(name, classes)])
        if classes:
            each = ClassColumns(columns, K)
            found = each.kernels.forward(each.block(0, len(w)), w, np.zeros(K * columns.n_records))
            return np.ascontiguousarray(found.reshape(K, -1).T)
        margins: Vector = columns.kernels.forward(columns.block(0, len(w)), w, np.zeros(columns.n_records))
        return margins

    def to_json(self) -> str:
        """Return the text of the part's file."""
        plain = {
            "format": FORMAT,
            "party": self.party,
            "model": self.model,
            "w": dict(zip(self.coordinates, map(float, self.w), strict=True)),
            "intercept": np.asarray(self.intercept).tolist(),
            "job": encode(self.job),
        }
        return json.dumps(plain, indent=2, ensure_ascii=False)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read back the text of `to_json`; answers are equal to the bit. Raises OutputError."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot read the part of a model {str(path)!r}: {error.strerror}") from error
        except ValueError as error:
            raise OutputError(f"{str(path)!r} is damaged: {error}") from error
        return cls.parse(text, repr(str(path)))

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Return the part that `to_json` wrote. where : names the text in errors. Raises OutputError."""
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise OutputError(f"{where} is damaged: {error}") from error
        if not isinstance(plain, dict) or plain.get("format") != FORMAT or "party" not in plain:
            raise OutputError(f"{where} is no part of a model of format {FORMAT}: vfl export RUN --party NAME")
        try:
            w = np.array(list(plain["w"].values()), dtype=np.float64)
            job = decode(plain["job"])
            job.partition.columns(plain["party"])
            own = plain["intercept"]
            intercept = np.array(own, dtype=np.float64) if job.multinomial else float(own)
            part = cls(job, plain["party"], plain["model"], tuple(plain["w"]), w, intercept)
        except (VflError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise OutputError(f"{where} is damaged: {error}") from error
        if np.size(part.intercept) != job.n_margins:
            raise OutputError(f"{where} is damaged: it holds another number of intercepts than of classes")
        return part


def part_of(given: ModelPart | str, party: str) -> ModelPart:
    """Return the given part, or read it from its path. Raises OutputError for the part of another party."""
    part = ModelPart.read(given) if isinstance(given, str) else given
    if part.party != party:
        raise OutputError(f"party {party!r} was given the model part of {part.party!r}")
    return part


@dataclass(frozen=True, slots=True, eq=False)
class PartGreeting:
    """Greeting of a party before a prediction.

    version : of the party's code. model : digest of the whole model. ids : True if the new records have an id column.
    """

    version: str
    model: str
    job: Job
    ids: bool


def agreed(greetings: Mapping[str, PartGreeting]) -> Job:
    """Return the job whose model all parties apply.

    Raises VersionMismatch, OutputError for parts of several models, SpecificationError when one is not given.
    """
    first, *others = greetings.items()
    for party, greeting in (first, *others):
        if greeting.version != __version__:
            raise VersionMismatch(
                f"party {party!r} runs vfl {greeting.version}, this is {__version__}: install one version everywhere"
            )
        if (greeting.model, greeting.job) != (first[1].model, first[1].job):
            raise OutputError(
                f"the parts of parties {first[0]!r} and {party!r} belong to different models: export both again"
            )
    job = first[1].job
    for party in job.partition.parties:
        if party not in greetings and job.partition.columns(party):
            raise SpecificationError(f"party {party!r} has columns in the model, and no part of it is given")
    return job


class Prediction:
    """Applies one party's part of a model to its new records, as they are or aligned with the others'.

    part : of the model, or the path of its file, read here. parties : that take part, in their order. policy : path of the
        owner's policy.

    Raises OutputError for the part, ConsentRefused before the source is opened.
    """

    def __init__(
        self, part: ModelPart | str, party: str, source: Any, *, parties: Sequence[str], policy: str | None = None
    ) -> None:
        self._part, self._source = part_of(part, party), source
        self._permission = permitted(self._part, source, policy, receiver=receiver_of(self._part.job, parties))
        self._task = self._part.job.for_party(party).features
        self._index: Index | None = None

    def greet(self) -> PartGreeting:
        """Return the greeting of this party."""
        part = self._part
        ids = bool(part.job.ids) and holds_ids(self._task, self._source)
        return PartGreeting(__version__, part.model, part.job, ids)

    def alignment(self, salt: bytes, cores: int, keeping: Keeping) -> Alignment:
        """Return the party's side of the alignment of the new records."""
        return Alignment(self._task, self._source, salt=salt, cores=cores, keeping=keeping)

    def align(self, index: Index) -> None:
        """Take the outcome of the alignment."""
        self._index = index

    def margins(self) -> Vector:
        """Return the party's part of the margins, (n,): of the aligned records in the common order, else of all."""
        return self._part.margins(self._source, self._index, permission=self._permission)

    def receive(self, parts: Sequence[Vector]) -> tuple[list[Any] | None, Vector]:
        """Return the ids (None without any) and margins (n,) of the records, in the order of this party's rows.

        parts : every party's, in the partition's order.
        """
        margins = added(dict(enumerate(parts)), self._part.intercept)
        if not self.greet().ids:
            return None, margins
        ids = raw_ids(self._task, self._source)
        if self._index is None:
            return ids, margins
        order = np.argsort(self._index.rows, kind="stable")
        return [ids[row] for row in self._index.rows[order]], margins[order]


def receiver_of(job: Job, parties: Sequence[str]) -> str:
    """Return the party that adds up: the label party, or the first one where that takes no part."""
    owner = job.partition.label_party
    return owner if owner in parties else parties[0]


def added(parts: Mapping[Any, Vector], intercept: float) -> Vector:
    """Return the margins (n,) from every party's part, in the partition's order, which fixes how sums are rounded."""
    margins: Vector | None = None
    for party, part in parts.items():
        if margins is not None and len(part) != len(margins):
            named = f"party {party!r}" if isinstance(party, str) else "a party"
            raise DataError(f"{named} holds a different number of records from the other parties")
        margins = part if margins is None else margins + part
    if margins is None:
        raise SpecificationError("no party has a column to predict from")
    return margins + intercept
