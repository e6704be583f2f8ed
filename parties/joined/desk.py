"""Answers to the calls that a joined party receives: an offer of a job, judged by the owner's policy, then the job's calls.

Guarantee. No source is opened before the policy has agreed to the offer. The policy must name the trust setting of the job as
accepted: across organisations, residuals and margins are sent to others. Every call is checked against the state of the job and
the sizes that follow from the job. An unexpected call is refused, and nothing is computed.
"""

from __future__ import annotations

import functools
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parties.alignment.index import file_of
from parties.allowed import name_of
from parties.consent import Policy, policy_of
from parties.dealing import DealerService
from parties.joined.work import AnsweredKeys, DealerWork, KeyExchange, PredictingWork, ServingWork, TrainingWork
from parties.ledger import require_room
from parties.loading import load, require_library
from parties.prediction import ModelPart, NewRows, permitted
from parties.services.aligning import AlignmentService
from parties.services.predicting import PredictionService
from parties.services.serving import ServingService
from parties.services.training import TrainingService
from parties.session import Credentials
from vfl.base.documents import parse_json
from vfl.crypto.alignment import IndexRules
from vfl.crypto.encryption import Encryptor
from vfl.errors import (
    ConsentRefused,
    FederationError,
    OutputError,
    SpecificationError,
    VersionMismatch,
    VflError,
    nearest,
)
from vfl.job.environment import path_of
from vfl.job.file import decode
from vfl.job.flags import flags_of
from vfl.network.federation import events
from vfl.network.kinds import from_plain_call
from vfl.network.messages import EVALUATE, PREDICT, PURPOSES, SERVE, TRAIN, Done, Failure, Finish, Offer, Ping, Pong
from vfl.network.shards import LocalGroup
from vfl.network.wire.frames import Limits
from vfl.secure.requests import NOISED
from vfl.secure.roles import DEALER, SEPARATE
from vfl.solvers import RELEASES, SOLVERS
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from parties.joined.work import Work
    from vfl.job import Job
    from vfl.network.federation.certificate import Read
    from vfl.network.federation.events import OnEvent
    from vfl.network.federation.file import Federation
    from vfl.network.federation.identity import Identity
    from vfl.queries.kinds import Plain

    Sent = tuple[object, Mapping[str, Any]]
    Progress = Callable[[int], None]

OFFER_BYTES = 1 << 24
"""Largest size, in bytes, of the body of an offer. The body contains the job, whose size is not limited otherwise."""
OFFER_VALUES = 1 << 12
"""Largest number of values in an offer's body. The job counts as one value, and so does each party's name."""
MOST_PINGED = 1 << 26
EVERY_SECONDS = 1.0


class Desk:
    """Party service that answers the coordinator's calls one at a time. The desk keeps the job in progress if a stream breaks.

    Arguments as for `parties.joined.serve`. Raises SpecificationError without a policy.
    """

    def __init__(
        self,
        federation: Federation,
        identity: Identity,
        sources: Mapping[str, Any],
        policy: str | Path | None,
        *,
        cores: int = 1,
        indexes: str | None = None,
        shards: int = 1,
        on_event: OnEvent,
    ) -> None:
        self.party = identity.name
        self._federation, self._identity = federation, identity
        self._sources, self._policy, self._cores, self._indexes = sources, policy, cores, indexes
        self._shards = shards
        self._on_event = on_event
        self._work: Work | None = None
        self._coordinator = b""
        self._last: tuple[Plain, object] | None = None
        self.held: dict[str, Any] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Read the policy, so that an unreadable policy is found when the party starts."""
        self._owners()

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Return the names of runs that have begun and not ended: of one run, or none."""
        return () if self._work is None else (self._work.offer.run,)

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call."""
        if self._work is None:
            return Limits(OFFER_BYTES, {"payload": MOST_PINGED}, OFFER_VALUES)
        work = self._work.limits
        values = max(OFFER_VALUES, work.most_values)
        return Limits(max(OFFER_BYTES, work.body), {"payload": MOST_PINGED, **work.vectors}, values)

    def due(self, plain: Plain) -> dict[str, int]:
        """Return the size limit of each vector of a call, in bytes; {} for a call that `answer` will refuse."""
        try:
            message = self._read_call(plain)
        except Exception:  # noqa: BLE001 - as in `answer`, which states the reason
            return {}
        if isinstance(message, Ping):
            return {"payload": MOST_PINGED}
        if self._work is None:
            return {}
        most = self._work.limits.vectors
        return {name: most[name] for name in self._work.takes(message) if name in most}

    def _read_call(self, plain: Plain) -> object:
        """Return the message of a call: for a query, the tuple (query, key of its release)."""
        if self._last is None or self._last[0] is not plain:
            self._last = (plain, from_plain_call(plain))
        return self._last[1]

    def connected(self, process: bytes) -> None:
        """Record which coordinator process has opened the current stream."""
        self._coordinator = process
        self.held.clear()

    def answer(self, plain: Plain, vectors: Mapping[str, Any], progress: Progress) -> Sent:
        """Return the answer to a call, with vectors. If the call is refused or fails, the answer is a `Failure`."""
        try:
            return self._answer(plain, vectors, progress)
        except VflError as error:
            return self._failed(type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - nothing of the party's data may leave in a message
            why = f"party {self.party!r} could not answer a call ({type(error).__name__})"
            # A candidate that fails on its data gets the worst score in tuning. To repeat the candidate until it succeeds would
            # be a choice that depends on the data and is not charged.
            in_data = isinstance(error, ArithmeticError | ValueError)
            return self._failed("DataError" if in_data else "FederationError", why)
        finally:
            self._last = None

    def end(self, why: str) -> None:
        """Close the job in progress."""
        work, self._work = self._work, None
        if work is not None:
            work.close()
            self._on_event(events.Ended(run=work.offer.run, why=why, **work.summary()))

    def _failed(self, kind: str, why: str) -> Sent:
        if self._work is not None:
            self._on_event(events.Refused(run=self._work.offer.run, why=why))
        return Failure(kind, self._without_folders(why)), {}

    def _without_folders(self, why: str) -> str:
        """Return a reason for the coordinator: the given reason without the folders of the owner's files."""
        for source in self._sources.values():
            if path := file_of(source):
                for form in (path, str(path_of(source))):
                    why = why.replace(repr(form), repr(Path(path).name))
        return why

    def _answer(self, plain: Plain, vectors: Mapping[str, Any], progress: Progress) -> Sent:
        message = self._read_call(plain)
        match message:
            case Offer():
                return self._offered(message)
            case Ping():
                if not 0 <= message.size <= MOST_PINGED:
                    raise FederationError(f"a ping asks for at most {MOST_PINGED} bytes")
                back = {"payload": bytes(message.size)} if message.size else {}
                return Pong(time.time(), __version__), back
            case Finish():
                self.end(message.why)
                return Done(), {}
        work = self._working()
        answer = work.answer(message, vectors, progress)
        if isinstance(message, tuple | NOISED):
            self._released(work)
        return answer

    def _working(self) -> Work:
        if self._work is None:
            raise FederationError(f"party {self.party!r} has not agreed to any work")
        return self._work

    def _offered(self, offer: Offer) -> Sent:
        work = self._work
        if self._serves(offer) is not None:
            return self._begun(offer)  # the policy judges each model part that a service adds
        if work is not None and (work.offer.run, work.offer.digest) == (offer.run, offer.digest):
            if work.coordinator == self._coordinator:
                return work.accepted()
            if not offer.resumed:
                raise FederationError(
                    f"run {offer.run!r} was started by another process of the coordinator: continue it with vfl resume"
                )
        if work is not None:
            self.end("the coordinator started other work")
        if not self._due(offer):
            raise FederationError("the offer is not for this party, or has an unknown purpose")
        return self._begun(offer)

    def _serves(self, offer: Offer) -> ServingWork | None:
        """Return the service in progress if the offer adds a part of a model to it; None for any other offer."""
        work = self._work
        same = isinstance(work, ServingWork) and (offer.purpose, offer.run) == (SERVE, work.offer.run)
        return work if same and isinstance(work, ServingWork) and work.coordinator == self._coordinator else None

    def _due(self, offer: Offer) -> bool:
        """Return True if the purpose of the offer is known and this party takes part in it."""
        return offer.purpose in PURPOSES and self.party in offer.parties

    def _begun(self, offer: Offer) -> Sent:
        requested, allowed = self._read(offer)
        self._on_event(requested)
        try:
            work = allowed()
        except VflError as error:
            self._on_event(events.Refused(run=offer.run, why=str(error)))
            return Failure(type(error).__name__, self._without_folders(str(error))), {}
        self._on_event(events.Allowed(run=offer.run, policy=self._policy is not None))
        work.coordinator = self._coordinator
        self._work = work
        return work.accepted()

    def _read(self, offer: Offer) -> tuple[events.Requested, Callable[[], Work]]:
        """Return the event to report for an offer, and a function that returns the accepted work or raises the refusal."""
        part = _part_of(offer, self.party) if offer.purpose in (PREDICT, EVALUATE, SERVE) else None
        job = _job_of(offer, self.party) if part is None else part.job
        if part is None and self.party not in job.partition.parties:
            raise FederationError(f"party {self.party!r} is not a party of the job {job.name!r}")
        columns = job.wanted(self.party) if part is None else job.made_of(self.party)
        return _requested(offer, job, columns), partial(self._allowed, offer, job, part)

    def _allowed(self, offer: Offer, job: Job, part: ModelPart | None) -> Work:
        """Return the accepted work if the owner's policy agrees to the offer; else raise the refusal."""
        policy = self._owners()
        if part is None:
            policy.check(job, self.party)
        self._require_trust(policy, job)
        if offer.purpose == TRAIN:
            require_library(job, self.party)
        source = self._source(offer.source)
        if part is not None and offer.purpose == SERVE:
            return self._serving(offer, part, source)
        if part is None:
            policy.check_source(self.party, name_of(source), f"job {job.name!r}", owners=True)
            if not offer.resumed:
                require_room(policy, self.party, job)
        keeping = IndexRules(self._indexes, offer.keeps or None, offer.resumed, offer.later, offer.last, offer.again)
        task = job.for_party(self.party)
        aligning = AlignmentService(
            task if part is None else task.features, source, keeping, parties=offer.parties, cores=self._cores
        )
        certificates = self._certificates()
        encryptor = Encryptor(self.party, self._identity.key_pem, (self._federation.digest, offer.run, offer.purpose))
        encryption = KeyExchange(self.party, encryptor, offer.parties, certificates, aligning)
        if part is not None:
            return PredictingWork(offer, self._predicting(offer, part, source, aligning), encryption)
        dealer = self._dealer(job)
        dealt = certificates if dealer is None else certificates | {DEALER: dealer.certificate_pem}
        own = self._credentials(offer, dealt)
        loaded = functools.cache(
            lambda settled: load(task, source, policy, index=settled(), threads=self._cores, own=own)
        )
        training = TrainingService(self.party, aligning, loaded)
        answered = functools.partial(
            AnsweredKeys,
            policy.ledger.with_suffix(".answered"),
            self.party,
            offer.run,
            policy.allow_network_file_system,
        )
        return TrainingWork(offer, task, training, encryption, answered)

    def _certificates(self) -> dict[str, bytes]:
        return {name: member.certificate_pem for name, member in self._federation.parties.items()}

    def _credentials(self, offer: Offer, certificates: Mapping[str, bytes]) -> Credentials:
        return Credentials((self._federation.digest, offer.run), self._identity.key_pem, certificates)

    def _predicting(self, offer: Offer, part: ModelPart, source: Any, aligning: AlignmentService) -> PredictionService:
        """Return the service of a prediction, after asking the owner's policy. The source is not opened yet."""
        receiver = part.job.partition.receiver(offer.parties)
        measured = offer.purpose == EVALUATE
        labelled = measured and receiver == self.party
        policy = None if self._policy is None else str(self._policy)
        permission = permitted(part, source, policy, receiver=receiver, labels=labelled, owners=True)
        return PredictionService(
            part,
            source,
            parties=offer.parties,
            permission=permission,
            measured=measured,
            aligning=aligning,
            rows=LocalGroup([NewRows(part, labelled=labelled) for _ in range(self._shards)]),
        )

    def _serving(self, offer: Offer, part: ModelPart, source: Any) -> ServingWork:
        """Start a service for the aggregating party, or add a part to it. The source is read in the background."""
        receiver = part.job.partition.receiver(offer.parties)
        if self._policy is None:
            raise FederationError(
                "a service reads its owner's policy again and again: name the policy file (--policy FILE)"
            )
        if receiver != self._federation.coordinator.name:
            raise FederationError(
                f"party {receiver!r} adds up the linear predictors of this model, so only {receiver!r} can offer the service: "
                f"make {receiver!r} the coordinator of the federation"
            )

        def tell(why: str, stale: bool) -> None:
            self._on_event(events.Warned(run=offer.run, why=why, stale=stale))

        work = self._serves(offer) or ServingWork(offer, ServingService(self.party, self._policy, receiver, tell))
        work.service.add(part, source)
        return work

    def _dealer(self, job: Job) -> Read | None:
        """Return the member whose identity signs the dealer's keys, as stated in the job to which the owner has agreed."""
        if job.dealer != SEPARATE:
            return None if job.dealer is None else self._federation.coordinator
        if self._federation.dealer is None:
            raise SpecificationError(
                f"the job asks for a separate dealer, and the federation {self._federation.name!r} names none"
            )
        return self._federation.dealer

    def _owners(self) -> Policy:
        agreed = policy_of(self._policy)
        if agreed is None:
            raise SpecificationError(
                f"party {self.party!r} joins a federation only under its owner's policy: name the policy file (--policy FILE)"
            )
        return agreed

    def _require_trust(self, policy: Policy, job: Job) -> None:
        if policy.trust is None or job.trust_name not in policy.trust:
            travels = "encrypted shares" if job.secure is not None else "residuals, scores or labels of single records"
            raise ConsentRefused(
                f"party {self.party!r} refuses job {job.name!r} by its policy's trust: this job would send {travels} to other "
                f'organisations. To allow that, write trust = ["{job.trust_name}"] in the policy of party {self.party!r}'
            )

    def _source(self, name: str) -> Any:
        if name not in self._sources:
            called = f"named {name!r}{nearest(name, self._sources)}" if name else "for it"
            given = "NAME=FILE" if name else "FILE"
            why = f"party {self.party!r} was started without a source {called}: add it with vfl join --data {given}"
            raise SpecificationError(why)
        return self._sources[name]

    def _released(self, work: Work) -> None:
        """Report the cost of the run so far, at most once per second."""
        if time.monotonic() - work.reported > EVERY_SECONDS:
            work.reported = time.monotonic()
            summary = work.summary()
            self._on_event(
                events.Released(
                    run=work.offer.run,
                    releases=summary["releases"],
                    epsilon=summary["epsilon"],
                    reserved=work.reserved(),
                )
            )


class DealerDesk(Desk):
    """Answers the calls of the coordinator to the federation's dealer, an organisation without data.

    Guarantee. The dealer opens no source and has no policy to ask, since it releases only its noise and uniform words. The
    dealer deals only for jobs that name a separate dealer, under keys that its own identity signs, and accepts no other call.
    The parties send it nothing but their numbers of records.
    """

    def __init__(self, federation: Federation, identity: Identity, *, on_event: OnEvent) -> None:
        super().__init__(federation, identity, {}, None, on_event=on_event)

    def _prepare(self) -> None:
        """Do nothing, since a dealer has no policy."""

    def _due(self, offer: Offer) -> bool:
        return offer.purpose == TRAIN

    def _read(self, offer: Offer) -> tuple[events.Requested, Callable[[], DealerWork]]:
        job = _job_of(offer, self.party)
        return _requested(offer, job, ()), partial(self._dealing, offer, job)

    def _dealing(self, offer: Offer, job: Job) -> DealerWork:
        if job.dealer != SEPARATE:
            raise FederationError(f"{self.party!r} deals only for jobs on shares that name a separate dealer")
        return DealerWork(offer, job, DealerService(job, self._credentials(offer, self._certificates())))


def _part_of(offer: Offer, party: str) -> ModelPart:
    """Parse the model part in an offer. Raises FederationError unless the part belongs to `party` and to this offer."""
    try:
        part = ModelPart.parse(offer.job, "the part of a model in an offer")
    except OutputError as error:
        raise FederationError(str(error)) from None
    if part.party != party or part.digest != offer.digest:
        raise FederationError(f"the offer contains a model part that does not belong to party {party!r}")
    return part


def _requested(offer: Offer, job: Job, columns: tuple[str, ...]) -> events.Requested:
    """Return the event that shows the offer of a job on the owner's screen."""
    privacy = job.privacy if offer.purpose == TRAIN else None
    return events.Requested(
        purpose=offer.purpose,
        run=offer.run,
        job=job.name,
        digest=offer.digest,
        columns=columns,
        trust=job.trust_name,
        epsilon=None if privacy is None else privacy.epsilon,
        delta=None if privacy is None else privacy.delta,
        source=offer.source,
        threats="" if job.secure is None else job.secure.describe(),
        flags=flags_of(job) if offer.purpose == TRAIN else (),
    )


def _job_of(offer: Offer, member: str) -> Job:
    """Parse the job in an offer. Raises VersionMismatch if its digest differs from the coordinator's."""
    try:
        plain = parse_json(offer.job)
    except ValueError:
        raise FederationError("the offer contains a job that cannot be read") from None
    if not isinstance(plain, dict):
        raise FederationError("the offer contains a job that cannot be read")
    job = decode(plain, SOLVERS | RELEASES)
    if job.digest != offer.digest:
        raise VersionMismatch(
            f"party {member!r} reads the job as {job.digest[:12]}, the coordinator as {offer.digest[:12]}: install one version "
            "everywhere"
        )
    return job
