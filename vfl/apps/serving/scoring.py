"""Scoring: add up the parts of a model's scores, from this process and from the other parties."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from parties.prediction import ModelPart, added
from parties.services.serving import LOOKED_UP, ServingService, packed
from vfl.apps.serving.file import FILL
from vfl.apps.serving.lanes import Lane
from vfl.crypto.identifiers import normal_forms
from vfl.errors import DataError, FederationError, OutputError, PartyLost, SpecificationError, VflError
from vfl.launch.run.result import Result
from vfl.network.messages import (
    ABSENT,
    ANSWERED,
    AWAY,
    EXHAUSTED,
    QUOTA,
    SERVE,
    Asked,
    Done,
    Keep,
    Kept,
    Offer,
    Outcome,
    Score,
    Scored,
)
from vfl.network.wire.frames import Limits, as_vector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coordinator.federation.gathering import Answer, ConnectedMembers, Link
    from vfl.apps.serving.callers import Callers
    from vfl.apps.serving.file import Caller, ServedModel, ServiceFile
    from vfl.base.types import Vector
    from vfl.job import Job

MOST_IN_BATCH = 1 << 15
"""Largest number of records in one call to a party."""
MOST_RECORDS = 20_000
"""Largest number of records in one request."""
LONGEST_PURPOSE = 200
"""Largest number of characters of a request's purpose."""
MOST_INLINE = 64
"""Largest number of records that are scored without a separate thread, if the caller gives the columns."""
OFFER_SECONDS, CHECK_SECONDS = 30.0, 5.0
"""Time limit of an offer, and interval at which each party is asked if it can still read its data, in seconds."""
PER_OUTCOME = 1 << 11
LOST = "is away"
log = logging.getLogger("vfl.serving")
A = TypeVar("A")


def logged(event: dict[str, Any]) -> None:
    """Write an event to the log."""
    log.warning(json.dumps(event, ensure_ascii=False))


class Refusal(Exception):
    """Raised for a request that is refused. status : HTTP status. code : reason in one word, for programs."""

    def __init__(self, status: int, code: str, why: str, *, retry: float | None = None) -> None:
        super().__init__(why)
        self.status, self.code, self.retry = status, code, retry


class ScoreRequest:
    """Request of a caller for the scores of n records. Raises Refusal.

    ids : as written; None without ids. columns : {name: list or Arrow array}. model : expected digest of the model, or None.
    """

    def __init__(self, ids: Sequence[Any] | None, columns: Mapping[str, Any], purpose: Any, model: Any) -> None:
        self.ids, self.columns, self.purpose, self.model = ids, columns, purpose, model
        lengths = {len(own) for own in ((ids,) if ids is not None else ()) + tuple(columns.values())}
        if not lengths:
            raise Refusal(422, "bad_request", "send ids, or columns, or both")
        if len(lengths) > 1:
            raise Refusal(422, "bad_request", "ids and columns have different lengths")
        (self.n,) = lengths
        if not 0 < self.n <= MOST_RECORDS:
            raise too_many() if self.n else Refusal(422, "bad_size", f"send 1 to {MOST_RECORDS:,} records")
        # Text that UTF-8 cannot encode is not printable, and would reach logs and other parties.
        if not isinstance(purpose, str) or len(purpose) > LONGEST_PURPOSE or not purpose.isprintable():
            raise Refusal(422, "bad_request", f"purpose must be printable text of at most {LONGEST_PURPOSE} characters")
        if model is not None and not isinstance(model, str):
            raise Refusal(422, "bad_request", "model must be the digest of a model, as text")


def too_many() -> Refusal:
    """Return the refusal of a request with too many records."""
    return Refusal(413, "bad_size", f"send 1 to {MOST_RECORDS:,} records")


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One version of a served model.

    parts : {party: its part of the model}, for all parties with columns and for the party of this service.
    fills : {party: scores (1,) or (1, K) of a record with missing cells only}, if the fallback is "fill".
    threshold : as in `Result.threshold`. made_of : {party: columns of its data}, for all parties with columns.
    """

    model: str
    name: str
    job: Job
    digest: str
    intercept: Any
    parts: Mapping[str, ModelPart]
    fills: Mapping[str, Vector]
    threshold: float | None
    made_of: Mapping[str, tuple[str, ...]]

    @classmethod
    def load(cls, model: ServedModel, name: str, party: str) -> Version:
        """Read a run's folder. Raises SpecificationError, and OutputError for a certificate that does not fit the model."""
        folder = model.versions[name]
        result = Result.load(folder)
        where = f"version {name!r} of model {model.name!r}"
        if result.certificate.signature is None:
            raise OutputError(f"{where} is not served: its certificate is not signed, so it proves nothing")
        if why := result.altered():
            raise OutputError(f"{where} is not served: the certificate does not hold. {why}")
        job = result.applied
        if job.partition.receiver(job.partition.parties) != party:
            raise SpecificationError(
                f"{where} is not served by {party!r}: the label party {job.partition.label_party!r} adds up its scores"
            )
        columns = job.partition.columns
        parts = {own: result.part(own) for own in job.partition.parties if columns(own) or own == party}
        fills = {own: _fill(part) for own, part in parts.items() if own != party} if model.fallback == FILL else {}
        digest = parts[party].model
        made_of = {own: job.made_of(own) for own in parts if columns(own)}
        return cls(model.name, name, job, digest, result.intercept_on_scaled, parts, fills, result.threshold, made_of)

    def require(self, digest: str | None) -> None:
        """Raise Refusal unless this version has the digest that a caller expects; None expects any."""
        if digest is not None and digest != self.digest:
            raise Refusal(
                409,
                "stale_model",
                "the model in use is not the one that `model` states: see /v1/models, or leave `model` out",
            )

    def same(self, other: Version) -> bool:
        """Return True if another version of this model has the same name and model parts, so that one of them suffices."""
        own, others = ({party: part.digest for party, part in each.parts.items()} for each in (self, other))
        return (self.name, own, self.fills.keys()) == (other.name, others, other.fills.keys())


def _fill(part: ModelPart) -> Vector:
    """Return the scores, (1,) or (1, K), of a part for a record whose cells are all missing."""
    try:
        return part.absent()
    except DataError as error:
        raise SpecificationError(f'fallback = "fill" needs a fill for every column: {error}') from None


def _columns(task: Any, table: Mapping[str, Any]) -> Any:
    from parties.loading import load_features

    return load_features(task, pa.table(table))


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One request to one party for the scores of records.

    ids : in normal form; None only counts the records towards the caller's limit. width : scores per record.
    """

    asked: Asked
    ids: Sequence[bytes] | None
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """A party's reply: an outcome and, if the party answered, the scores (n,) or (n, K).

    logged : done once a party of this process has the request in its log. Until then neither score nor refusal may leave.
    """

    outcome: Outcome
    scores: Vector | None = None
    logged: asyncio.Future[None] | None = None


class PartyLane(Lane[Question, Reply]):
    """Connection to one party. states : {digest of a model part: '' if the party serves the part, else the reason why not}.

    stale : True if the party says that it cannot read its changed data, so that it scores earlier records.
    """

    def __init__(self, party: str) -> None:
        super().__init__(MOST_IN_BATCH)
        self.party, self.stale = party, False
        self.states: Mapping[str, str] = {}
        self.wanted: Mapping[str, tuple[ModelPart, str]] = {}
        """{digest: part, name of its source at the party}, replaced as a whole by the service."""

    @property
    def connected(self) -> bool:
        """True if the party can be reached."""
        return True

    @abstractmethod
    def end(self) -> None:
        """Close streams and connections, after the last request."""


Answered = tuple["list[Asked]", "list[Sequence[bytes]]", "list[Outcome]"]


class _Log(Lane[Answered, None]):
    """Log of a party in this process. Lines that wait for the disk are written and synced together."""

    def __init__(self, service: ServingService) -> None:
        super().__init__(MOST_IN_BATCH)
        self._service = service

    async def answer(self, questions: Sequence[Answered]) -> list[None]:
        await asyncio.sleep(0)  # first let the requests of this loop iteration ask the other parties
        asked, ids, outcomes = (list(chain.from_iterable(own)) for own in zip(*questions, strict=True))
        await asyncio.to_thread(self._service.log, asked, ids, outcomes)
        return [None] * len(questions)


class LocalParty(PartyLane):
    """Party whose data this process opens. callers : callers whose quotas this party counts; None for other parties' data."""

    def __init__(self, party: str, service: ServingService, source: Any, callers: Callers | None) -> None:
        super().__init__(party)
        self._service, self._source, self._callers = service, source, callers
        self._log = _Log(service)

    @property
    def _quotas(self) -> Mapping[str, int]:
        return {} if self._callers is None else self._callers.quotas

    async def tend(self) -> None:
        """Load parts that are wanted, and drop the others."""
        await asyncio.to_thread(self._tend)

    def end(self) -> None:
        """Close connections to databases."""
        self._service.close()

    def _tend(self) -> None:
        refused = {}
        for digest, (part, _) in self.wanted.items():
            if digest not in self._service.parts:
                try:
                    self._service.add(part, self._source)
                except VflError as error:
                    refused[digest] = str(error)
        self.states, self.stale = self._service.keep(tuple(self.wanted)) | refused, bool(self._service.stale)

    def refresh(self) -> str:
        """Read the data again. Return the reason why they could not be read, or ''."""
        return self._service.refresh()

    def ask(self, question: Question, size: int) -> asyncio.Future[Reply]:
        """Return a future with the party's reply, which is done at once unless the reply waits for a disk or a database."""
        own = question.ids is not None
        if self.busy or not self._service.answers_at_once(question.asked, self._quotas, own=own):
            return super().ask(question, size)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        try:
            answer.set_result(self._logged([question], self._scored([question]))[0])
        except VflError as error:
            answer.set_exception(error)
        return answer

    async def answer(self, questions: Sequence[Question]) -> list[Reply]:
        """Look up records by id. A request without ids looks up nothing: this party only counts its records for the caller."""
        return self._logged(questions, await asyncio.to_thread(self._scored, questions))

    def _scored(self, questions: Sequence[Question]) -> list[Reply]:
        looked, counted = ([one for one in questions if (one.ids is not None) is own] for own in (True, False))
        found: dict[Question, Reply] = {}
        if looked:
            asked, ids = [one.asked for one in looked], [one.ids or () for one in looked]
            found |= zip(looked, map(Reply, *self._service.score(asked, ids, self._quotas)), strict=True)
        if counted:
            outcomes = [Outcome() for _ in counted]
            self._service.count([one.asked for one in counted], outcomes, self._quotas, own=False)
            found |= zip(counted, map(Reply, outcomes), strict=True)
        return [found[one] for one in questions]

    def _logged(self, questions: Sequence[Question], replies: list[Reply]) -> list[Reply]:
        """Start to log the answers. Return the replies, each with a future that waits for its log entry."""
        both = list(zip(questions, replies, strict=True))
        looked = {one: reply for one, reply in both if one.ids is not None and reply.outcome.code in LOOKED_UP}
        if not looked:
            return replies
        lines = [one.asked for one in looked], [one.ids or () for one in looked]
        logged = self._log.ask((*lines, [reply.outcome for reply in looked.values()]), len(looked))
        return [replace(reply, logged=logged) if one in looked else reply for one, reply in both]


class RemoteParty(PartyLane):
    """Party in another organisation that has joined the federation whose coordinator is this process.

    gathering : the streams to the parties. parties : all parties of the service. seconds : time limit for one answer.
    """

    def __init__(self, party: str, gathering: ConnectedMembers, run: str, seconds: float) -> None:
        super().__init__(party)
        self._gathering, self._run, self._seconds = gathering, run, seconds
        self._link: Link | None = None
        self._offered: dict[str, str] = {}
        self._checked = 0.0

    @property
    def connected(self) -> bool:
        """True if the party can be reached."""
        return self.party in self._gathering.connected()

    def end(self) -> None:
        """End the stream, so that no call waits for the party any longer."""
        if self._link is not None:
            self._link.end("the service has ended")

    async def tend(self) -> None:
        """Offer the wanted parts to a party that has connected, and ask which of them are loaded."""
        link = self._gathering.connected().get(self.party)
        settled = link is self._link and self.wanted.keys() == self._offered.keys() == self.states.keys()
        if link is None or not settled or any(self.states.values()) or time.monotonic() > self._checked + CHECK_SECONDS:
            await asyncio.to_thread(self._tend, link)

    def _tend(self, link: Link | None) -> None:
        if link is not self._link:
            self._link, self._offered = link, {}
        if link is None:
            self.states, self.stale = dict.fromkeys(self.wanted, f"party {self.party!r} {LOST}"), False
            return
        wanted = self.wanted
        try:
            for digest, (part, source) in wanted.items():
                if digest not in self._offered:
                    self._offered[digest] = self._offer(link, part, source)
            accepted = tuple(digest for digest in wanted if not self._offered[digest])
            states: Mapping[str, str] = {}
            if accepted:
                limits = Limits(PER_OUTCOME * (len(accepted) + 1))
                kept, _ = link.call(Keep(accepted), limits=limits).wait(OFFER_SECONDS)
                states, self.stale = (kept.states, kept.stale) if isinstance(kept, Kept) else ({}, False)
                self._checked = time.monotonic()
            self._offered = {digest: why for digest, why in self._offered.items() if digest in wanted}
            dropped = {d for d in accepted if d not in states}  # the owner's policy has changed
            for digest in dropped:
                del self._offered[digest]
            self.states = {d: self._offered.get(d) or states.get(d, "it is not served") for d in wanted}
        except (PartyLost, FederationError) as error:
            self.states = dict.fromkeys(wanted, str(error))

    def _offer(self, link: Link, part: ModelPart, source: str) -> str:
        """Offer a model part to the party; return '' if the party accepts, else the party's reason."""
        offer = Offer(SERVE, self._run, part.to_json(), part.digest, tuple(part.job.partition.parties), source)
        try:
            reply, _ = link.call(offer).wait(OFFER_SECONDS)
        except PartyLost:
            raise
        except VflError as error:
            return str(error)
        return "" if isinstance(reply, Done) else f"party {self.party!r} answered with a {type(reply).__name__}"

    async def answer(self, questions: Sequence[Question]) -> list[Reply]:
        """Send the requests in one call."""
        link = self._link
        if link is None or link.ended:
            await self.tend()
            link = self._link
        if link is None:
            return [Reply(Outcome(AWAY, f"party {self.party!r} {LOST}")) for _ in questions]
        states = [self.states.get(one.asked.part, "it is not offered yet") for one in questions]
        found = {one: Reply(Outcome(ABSENT, why)) for one, why in zip(questions, states, strict=True)}
        asked = [one for one, why in zip(questions, states, strict=True) if not why]
        if asked:
            found |= zip(asked, await self._asked(link, asked), strict=True)
        return [found[one] for one in questions]

    async def _asked(self, link: Link, asked: Sequence[Question]) -> list[Reply]:
        most = 8 * sum(one.asked.records * one.width for one in asked)
        limits = Limits(PER_OUTCOME * (len(asked) + 8), {"margins": most})
        score = Score(tuple(one.asked for one in asked))
        try:
            call = link.call(score, vectors=packed([one.ids or () for one in asked]), limits=limits)
            await self._there(call)
            reply, vectors = call.wait(self._seconds)
        except PartyLost as lost:
            self.states = dict.fromkeys(self.wanted, f"party {self.party!r} {LOST}")
            return [Reply(Outcome(AWAY, str(lost))) for _ in asked]
        except VflError as error:
            return [Reply(Outcome(ABSENT, str(error))) for _ in asked]
        replies = self._replies(reply, vectors, asked)
        absent = {
            one.asked.part: own.outcome.why
            for one, own in zip(asked, replies, strict=True)
            if own.outcome.code == ABSENT
        }
        self.states = {**self.states, **absent}
        return replies

    async def _there(self, call: Answer) -> None:
        loop = asyncio.get_running_loop()
        there: asyncio.Future[None] = loop.create_future()

        def arrived() -> None:
            if not there.done():
                there.set_result(None)

        def arriving() -> None:
            with contextlib.suppress(RuntimeError):  # raised if the event loop is closed, so nobody waits
                loop.call_soon_threadsafe(arrived)

        call.then(arriving)
        while not there.done() and (left := call.until(self._seconds) - time.monotonic()) > 0.0:
            await asyncio.wait((there,), timeout=left)

    def _replies(self, reply: Any, vectors: Mapping[str, Any], asked: Sequence[Question]) -> list[Reply]:
        """Return the replies in an answer. Raises FederationError for a malformed answer."""
        if not isinstance(reply, Scored) or len(reply.outcomes) != len(asked) or "margins" not in vectors:
            raise FederationError(f"party {self.party!r} sent a malformed answer")
        scores, at, found = as_vector(vectors["margins"], "float64"), 0, []
        for one, outcome in zip(asked, reply.outcomes, strict=True):
            if outcome.code != ANSWERED:
                found.append(Reply(outcome))
                continue
            n = one.asked.records
            own = scores[at : at + n * one.width]
            at += len(own)
            if len(own) != n * one.width:
                raise FederationError(f"party {self.party!r} sent linear predictors of an unexpected size")
            found.append(Reply(outcome, own.reshape(n, one.width) if one.width > 1 else own))
        if at != len(scores):
            raise FederationError(f"party {self.party!r} sent linear predictors of an unexpected size")
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores of one request.

    values : (n,) or (n, K); NaN for a record that some party does not know, infinite for a record whose cells some party
        cannot use and whose owner lets callers know. filled : parties whose part is the fill.
    """

    version: Version
    values: Vector
    filled: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class _Model:
    """Versions of a model. active : version that answers requests. wanted : next active version, once loaded by all parties.

    retired : replaced versions, kept for requests in progress, with the times at which they were replaced.
    """

    active: Version | None
    wanted: Version | None
    versions: dict[str, Version]
    retired: list[tuple[float, Version]]
    sources: Mapping[str, str]

    def retire(self, old: Version | None) -> None:
        """Keep a replaced version for a while, for requests in progress."""
        if old is not None and old is not self.active and old not in self.versions.values():
            self.retired.append((time.monotonic(), old))

    def all(self) -> list[Version]:
        """Return all versions that a request may use."""
        own = [*self.versions.values(), *(old for _, old in self.retired)]
        return own if self.active is None or self.active in own else [*own, self.active]


class ServedModels:
    """Models of a service, the models' versions, and the parties that score records together.

    Guarantee. A score is the sum of the parts of one version, for one id. If a party is away, the request fails, or the
    party's part is the declared fill and the answer names the party. A request keeps the version with which it began. A new
    active version answers once all parties have loaded it; until then the earlier version answers.

    lanes : {party: connection}. failures : {model/version: reason} of refused versions. watch : called when the service gets
        ready, and when another cause keeps the service from answering.
    """

    def __init__(self, file: ServiceFile, callers: Callers, gathering: ConnectedMembers | None) -> None:
        self.party, self._seconds, self._callers = file.party, file.answer_timeout_s, callers
        self._gathering, self._run = gathering, uuid.uuid4().hex
        self.lanes: dict[str, PartyLane] = {}
        for party, source in file.data.items():
            service = ServingService(party, file.policies[party], self.party, partial(self._tell, party))
            self.lanes[party] = LocalParty(party, service, source, callers if party == self.party else None)
        self._models: dict[str, _Model] = {}
        self.watch: Callable[[dict[str, Any]], None] = logged
        self._why: str | None = None
        self.failures: dict[str, str] = {}
        self.take(file, *self.loaded(file))

    def _tell(self, party: str, why: str, stale: bool) -> None:
        self.watch({"event": "data", "party": party, "why": why, "stale": stale})

    def loaded(self, file: ServiceFile) -> tuple[dict[str, dict[str, Version]], dict[str, str]]:
        """Read the versions of a service file. Return {model: {name: version}} and {model/version: reason for refusal}."""
        found: dict[str, dict[str, Version]] = {}
        failures: dict[str, str] = {}
        for name, given in file.models.items():
            found[name] = {}
            for version in given.versions:
                try:
                    found[name][version] = Version.load(given, version, self.party)
                except VflError as error:
                    failures[f"{name}/{version}"] = str(error)
        return found, failures

    def take(self, file: ServiceFile, found: Mapping[str, Mapping[str, Version]], failures: Mapping[str, str]) -> None:
        """Adopt the models of a service file, in the thread that answers requests. found, failures : results of `loaded`."""
        failed, models = dict(failures), {}
        for name, given in file.models.items():
            known = self._models.get(name) or _Model(None, None, {}, [], {})
            versions = {}
            for version, own in found[name].items():
                try:
                    self._check_parties(own)
                    versions[version] = next((old for old in known.all() if old.same(own)), own)
                except VflError as error:
                    failed[f"{name}/{version}"] = str(error)
            wanted = versions.get(given.active)
            model = models[name] = _Model(known.active or wanted, wanted, versions, known.retired, given.sources)
            for old in known.versions.values():
                model.retire(old)
        self._models, self.failures = models, failed
        self._want()

    def _check_parties(self, version: Version) -> None:
        for party in version.parts:
            if party in self.lanes:
                continue
            if self._gathering is None or party not in self._gathering.parties:
                raise SpecificationError(
                    f"model {version.model!r} needs party {party!r}: give its data in [data], or a federation that it joins"
                )
            self.lanes[party] = RemoteParty(party, self._gathering, self._run, self._seconds)

    def _want(self) -> None:
        for party, lane in self.lanes.items():
            lane.wanted = {
                version.parts[party].digest: (version.parts[party], model.sources.get(party, ""))
                for model in self._models.values()
                for version in model.all()
                if party in version.parts
            }

    def end(self) -> None:
        """Close the parties' streams and connections, after the last request."""
        for lane in self.lanes.values():
            lane.end()

    def refresh(self) -> dict[str, str]:
        """Read the data that this process opens again. Return {party: reason} for data that cannot be read."""
        own = {party: lane.refresh() for party, lane in self.lanes.items() if isinstance(lane, LocalParty)}
        return {party: why for party, why in own.items() if why}

    def tend(self) -> None:
        """Check the parties, switch models whose wanted version is loaded everywhere, and drop versions without requests."""
        for lane in self.lanes.values():
            lane.tend_soon()
        changed = False
        for model in self._models.values():
            old, wanted = model.active, model.wanted
            if wanted is not None and wanted is not old and not self._lacking(wanted):
                model.active = wanted
                model.retire(old)
            kept = [(at, own) for at, own in model.retired if time.monotonic() - at < 2 * self._seconds]
            changed, model.retired = changed or len(kept) < len(model.retired), kept
        if changed:
            self._want()
        obstacles = self.ready()
        said = "cannot read its data, so earlier records are scored"
        stale = {party: said for party, lane in self.lanes.items() if lane.stale}
        why = "; ".join(f"{name}: {why}" for name, why in (obstacles | stale).items())
        if why != self._why:
            self._why = why
            self.watch({"event": "not ready" if obstacles else "ready", **({"why": why} if why else {})})

    def _lacking(self, version: Version) -> dict[str, str]:
        """Return {party: reason} for the parties that cannot answer for a version now."""
        states = {
            party: self.lanes[party].states.get(part.digest, "it is not offered yet")
            for party, part in version.parts.items()
        }
        return {party: why for party, why in states.items() if why}

    def ready(self) -> dict[str, str]:
        """Return {obstacle: reason} for everything that keeps the service from answering; {} if the service is ready."""
        found = {}
        for name, model in self._models.items():
            version = model.active
            if version is None:
                found[name] = "its active version is not served"
                continue
            for party, why in self._lacking(version).items():
                if party not in version.fills:
                    found[f"{name}: {party}"] = why
        return found

    def known(self, model: str) -> bool:
        """Return True if the service has a model of this name."""
        return model in self._models

    def described(self) -> dict[str, Any]:
        """Return the description of models and versions that callers can read."""
        return {
            name: {
                "active": None if model.active is None else model.active.name,
                "versions": {
                    own.name: {"digest": own.digest, "ready": not self._lacking(own)} for own in model.versions.values()
                },
            }
            for name, model in self._models.items()
        }

    def version(self, model: str, name: str | None) -> Version:
        """Return the version that answers a request. Raises Refusal. name : of the version; None takes the active version."""
        known = self._models.get(model)
        if known is None:
            raise Refusal(404, "unknown_model", "this service has no model of this name")
        found = known.active if name is None else known.versions.get(name)
        if found is None and name is not None:
            raise Refusal(404, "unknown_version", "this model has no version of this name: see /v1/models")
        if found is None:
            raise Refusal(503, "not_served", "the active version of this model cannot be served: see the service's log")
        return found

    @staticmethod
    def _ids(version: Version, given: Sequence[Any]) -> list[bytes]:
        """Return the ids of a request in normal form. Raises Refusal for an id that no data can hold."""
        try:
            return normal_forms(list(given), key=version.job.key)
        except DataError:
            raise Refusal(
                422, "bad_ids", "an id is empty or not valid Unicode, or ids are not all text, or all whole numbers"
            ) from None

    async def score(self, version: Version, caller: Caller, request: ScoreRequest) -> Scores:
        """Return the scores of a request. Raises Refusal, and counts the records durably before any party is asked.

        Names, counts and the caller's rate are checked before any cell is converted. This process writes its log while the
        other parties are asked; scores and refusals wait for it.
        """
        until, n = time.monotonic() + self._seconds, request.n
        given = self._given(version, request.columns)
        missing = [party for party in version.made_of if party not in given]
        if missing and request.ids is None:
            raise Refusal(422, "no_ids", "send the ids of the records, or all columns of all parties")
        if request.ids is not None and not version.job.ids:
            raise Refusal(422, "no_ids", "the model's job names no id column: send all columns of the records")
        if not self._callers.in_time(caller, n):
            raise Refusal(429, "rate", "this caller exceeds its limit of records per second", retry=1.0)
        ids = None if request.ids is None else await _apart(n, self._ids, version, request.ids)
        scores = {party: await _apart(n, self._applied, version.parts[party], own) for party, own in given.items()}

        def ask(party: str, ids: Sequence[bytes] | None, n: int) -> asyncio.Future[Reply]:
            asked = Asked(version.parts[party].digest, caller.name, request.purpose, n)
            return self.lanes[party].ask(Question(asked, ids, version.job.n_outputs), n)

        logs: list[asyncio.Future[None]] = []
        try:
            return await self._summed(version, ask, ids, n, missing, scores, until, logs)
        finally:
            # If another party refuses, this party is known to know a record, so such a refusal waits for the logs like a score.
            for log in logs:
                await self._waited(log, until)

    async def _summed(
        self,
        version: Version,
        ask: Callable[[str, Sequence[bytes] | None, int], asyncio.Future[Reply]],
        ids: Sequence[bytes] | None,
        n: int,
        missing: Sequence[str],
        scores: dict[str, Vector],
        until: float,
        logs: list[asyncio.Future[None]],
    ) -> Scores:
        """Ask the missing parties and add their scores to the given ones. Raises Refusal.

        ask : function that sends ids, or only their number, to a party. ids : of the n records, in normal form.
        logs : receives the log lines of all replies. Only after these lines are written may a score or a refusal be sent.
        """
        # Ask this party first: it counts the caller's records, and the other parties must not learn ids that are unknown here.
        own, known = ids if self.party in missing else None, np.ones(n, dtype=np.bool_)
        filled: list[str] = []
        mine = await self._waited(ask(self.party, own, n), until)
        logs += [mine.logged] if mine.logged is not None else []
        accepted = self._accepted(version, self.party, mine, filled, n)
        if own is not None:
            scores[self.party] = accepted
            known = np.asarray(np.isfinite(accepted.reshape(n, -1)).all(axis=1))
        sent = [one for one, there in zip(ids or (), known, strict=False) if there]
        others = [party for party in missing if party != self.party]
        asking = {party: ask(party, sent, len(sent)) for party in others} if sent else {}
        if asking:
            await asyncio.wait(asking.values(), timeout=max(until - time.monotonic(), 0.0))
        late = [party for party, answer in asking.items() if not answer.done()]
        for party in late:
            asking[party].cancel()
        replies = [own for party, own in asking.items() if party not in late and own.exception() is None]
        logs += [log for own in replies if (log := own.result().logged) is not None]
        for party in others:
            scores[party] = np.zeros((n, version.job.n_outputs) if version.job.class_names else n)
            if party in asking:
                away = Reply(Outcome(AWAY, f"party {party!r} did not answer in time"))
                reply = away if party in late else asking[party].result()
                scores[party][known] = self._accepted(version, party, reply, filled, len(sent))
        parties = [party for party in version.job.partition.parties if party in scores]
        return Scores(version, added({party: scores[party] for party in parties}, version.intercept), tuple(filled))

    @staticmethod
    async def _waited(answer: asyncio.Future[A], until: float) -> A:
        if not answer.done():
            await asyncio.wait((answer,), timeout=max(until - time.monotonic(), 0.001))
        if not answer.done():
            raise Refusal(504, "late", "no answer within the time limit; try again", retry=1.0)
        return answer.result()

    @staticmethod
    def _accepted(version: Version, party: str, reply: Reply, filled: list[str], n: int) -> Vector:
        """Return the scores in a reply, or those of the fallback. Raises Refusal."""
        outcome = reply.outcome
        if outcome.code == ANSWERED:
            return np.zeros(0) if reply.scores is None else reply.scores
        if outcome.code == QUOTA:
            raise Refusal(429, "quota", outcome.why)
        if outcome.code == EXHAUSTED:
            raise Refusal(429, "exhausted", outcome.why, retry=1.0)
        if outcome.code in (AWAY, ABSENT):
            if party in version.fills:
                filled.append(party)
                return np.repeat(version.fills[party], n, axis=0)
            raise Refusal(
                503,
                "party_away",
                f"party {party!r} cannot answer now; the fallback of this model is to refuse",
                retry=1.0,
            )
        raise Refusal(403, "refused", outcome.why)

    def _given(self, version: Version, columns: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return {party: its columns} for the parties whose columns the caller gives, all or none of each. Raises Refusal."""
        found: dict[str, dict[str, Any]] = {}
        left = set(columns)
        for party, made_of in version.made_of.items() if columns else ():
            own = {name: columns[name] for name in made_of if name in columns}
            left -= set(own)
            if own and len(own) < len(made_of):
                lacking = next(name for name in made_of if name not in own)
                raise Refusal(
                    422, "bad_columns", f"column {lacking!r} is missing: give all columns of a party, or none"
                )
            if own:
                found[party] = own
        if left:
            raise Refusal(422, "bad_columns", "a given column is not in the model: see the model's job for the names")
        return found

    @staticmethod
    def _applied(part: ModelPart, table: Mapping[str, Any]) -> Vector:
        try:
            arrays = {name: _array(own) if isinstance(own, list) else own for name, own in table.items()}
            return part.applied(_columns(part.job.for_party(part.party).features, arrays))
        except DataError as error:
            raise Refusal(422, "bad_columns", str(error)) from None


async def _apart(n: int, work: Callable[..., A], *arguments: Any) -> A:
    """Do work on n records: in this thread for up to MOST_INLINE records, else in another."""
    return work(*arguments) if n <= MOST_INLINE else await asyncio.to_thread(work, *arguments)


def _array(cells: list[Any]) -> Any:
    """Return the cells of a column in JSON as an Arrow array. Raises Refusal."""
    kinds = {type(cell) for cell in cells} - {type(None)}
    kind = None
    if kinds <= {int, float}:  # the caller may mix 1 and 1.5 in a column
        kind = pa.int64() if kinds == {int} else pa.float64()
    try:
        return pa.array(cells, kind)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        raise Refusal(422, "bad_columns", "the cells of a column are of different types") from None
