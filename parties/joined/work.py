"""Work that an owner has agreed to: a service whose calls are checked for size, keys and number, as a federation needs."""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.services.training import RECORDS
from vfl.base.store import Store
from vfl.crypto.encryption import EncryptionKey, encrypted_size
from vfl.crypto.psi import SIZE, new_salt
from vfl.errors import ConsentRefused, FederationError, PrivacyError
from vfl.network import messages
from vfl.network.messages import TRAIN, About, Conclude, Done, Load, Multiply, Notice, Score, TakeLinearPredictors
from vfl.network.wire.frames import Limits, as_vector
from vfl.planning import layout_of
from vfl.queries import Need, held_at_once
from vfl.secure import requests
from vfl.secure.cost import largest_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from parties.dealing import DealerService
    from parties.party import Party
    from parties.services.aligning import AlignmentService
    from parties.services.predicting import PredictionService
    from parties.services.service import Sent, Service
    from parties.services.serving import ServingService
    from parties.services.training import TrainingService
    from vfl.crypto.encryption import Encryptor
    from vfl.job import Job
    from vfl.job.job import PartyTask
    from vfl.network.messages import Offer
    from vfl.privacy.events import ReleaseKey
    from vfl.queries import Query

BODY_BYTES, PER_COORDINATE = 1 << 20, 1 << 12
"""Largest size of a call's body in bytes: a base, plus an addition per coordinate of the party."""
MOST_CIPHERTEXTS = 16
"""Largest number of encrypted messages in a request."""
OF_MARGINS = ("weights", "margins")
"""Names of the vectors in `Records` that have K entries per record under multinomial loss: residuals and margins."""
MOST_NOTICES = 1000
"""Largest number of notices per offer, since the party ledger may record each one. A notice reports the start or end of
a run: two per start of a party, three per start of the coordinator."""

MOST_SCORED, MOST_ID_BYTES = 1 << 17, 1 << 24
"""Limits of one call of a service: records, and bytes of their ids."""

_TABLES = {
    "answered": "CREATE TABLE answered (run TEXT, round INTEGER, attempt INTEGER, part INTEGER, "
    "PRIMARY KEY (run, round, attempt, part)) WITHOUT ROWID"
}
_TAKE = (
    "WITH RECURSIVE parts (part) AS (SELECT ? UNION ALL SELECT part + 1 FROM parts WHERE part < ?) "
    "INSERT INTO answered SELECT ?, ?, ?, part FROM parts"
)


class KeyExchange:
    """One party's side of the key exchange with the other parties, for one offer of a job.

    The party also makes the salt of the alignment or receives it from another party. The coordinator never learns the salt.

    encryptor : the party's encryptor. parties : all participating parties. certificates : {party: certificate}, to check keys.
    aligning : alignment service that uses the salt.
    """

    def __init__(
        self,
        party: str,
        encryptor: Encryptor,
        parties: tuple[str, ...],
        certificates: Mapping[str, bytes],
        aligning: AlignmentService,
    ) -> None:
        self._party, self._encryptor, self._parties = party, encryptor, parties
        self._certificates, self._aligning = certificates, aligning

    def exchanged(self, message: object) -> object | None:
        """Return the answer to a message about keys or the salt; None for all other messages."""
        others = [name for name in self._parties if name != self._party]
        match message:
            case messages.Introduce():
                return EncryptionKey(self._encryptor.key, self._encryptor.signature)
            case messages.Introduced():
                if message.keys.keys() != set(self._parties):
                    raise FederationError(f"party {self._party!r} was not given the keys of all parties")
                for name in others:
                    if name not in self._certificates:
                        raise FederationError(f"{name!r} is not a party of this federation")
                    given = message.keys[name]
                    self._encryptor.meet(name, given.key, given.signature, self._certificates[name])
                return messages.Done()
            case messages.MakeSalt():
                self._aligning.salt = new_salt()
                return messages.Encrypted(
                    {name: self._encryptor.encrypt(name, "salt", self._aligning.salt) for name in others}
                )
            case messages.TakeSalt():
                self._aligning.salt = bytes(self._encryptor.open(message.maker, "salt", message.text))
                return messages.Done()
        return None

    def opened(self, message: object, vectors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the vectors of a message. A vector that another party encrypted for this party is decrypted."""
        match message:
            case messages.Multiply() if message.owner != self._party:
                name, sender, label = "points", message.holder, f"set of {message.owner}"
            case messages.TakeLinearPredictors():
                name, sender, label = "margins", message.sender, "margins"
            case _:
                return vectors
        if name not in vectors:
            return vectors
        return {name: np.frombuffer(self._encryptor.open(sender, label, vectors[name]), np.uint8)}

    def encrypted(self, message: object, vectors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the vectors of an answer. A vector for another party is encrypted."""
        match message:
            case messages.SendSet() if message.to:
                name, label = "points", f"set of {message.owner}"
            case messages.SendLinearPredictors():
                name, label = "margins", "margins"
            case _:
                return vectors
        plain = np.ascontiguousarray(vectors[name]).reshape(-1).view(np.uint8)
        return {name: self._encryptor.encrypt(message.to, label, plain.data)}


class Work:
    """An accepted offer in progress. The work survives a broken stream. An unexpected call is refused, and nothing is computed.

    offer : the accepted offer. service : service that answers the calls. encryption : None for the dealer, which encrypts
        by itself. coordinator : the process that made the offer. reported : time of the last report of the cost.
    """

    def __init__(self, offer: Offer, service: Service, encryption: KeyExchange | None) -> None:
        self.offer, self.coordinator = offer, b""
        self.reported = 0.0
        self.releases = 0
        self._service, self._encryption = service, encryption
        self._began = time.monotonic()

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call."""
        return Limits(BODY_BYTES)

    def takes(self, message: Any) -> Iterable[str]:
        """Return the names of the vectors that must come with a call."""
        del message
        return ()

    def accepted(self) -> Sent:
        """Return the answer to the offer. If a stream broke and the offer is repeated, the answer is the same."""
        return Done(), {}

    def answer(self, message: Any, vectors: Mapping[str, Any], progress: Callable[[int], None]) -> Sent:
        """Return the answer to a call. Raises an error with the reason if the call is refused."""
        exchanged = None if self._encryption is None else self._encryption.exchanged(message)
        if exchanged is not None:
            return exchanged, {}
        vectors = self._admitted(message, vectors)
        if self._encryption is None:
            return self._service.answer(message, vectors)
        working = self._service.stream(message, self._encryption.opened(message, vectors))
        while True:
            try:
                progress(next(working))
            except StopIteration as end:
                reply, sent = end.value
                return reply, self._encryption.encrypted(message, sent)

    def _admitted(self, message: Any, vectors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check a call and return its vectors. Raises an error with the reason if the call is refused."""
        del message
        return vectors

    def summary(self) -> dict[str, Any]:
        """Return facts for the owner: seconds, number of releases, their ε, number of records, and the ε left."""
        seconds = time.monotonic() - self._began
        return {"seconds": seconds, "releases": self.releases, "epsilon": None, "records": None, "left": None}

    def reserved(self) -> float | None:
        """Return the ε that the owner's party ledger has reserved for this work; None without a log."""
        return None

    def close(self) -> None:
        """End processes and close files."""
        self._service.close()


def _limits_of_alignment(aligning: AlignmentService) -> dict[str, int]:
    sizes = aligning.sizes
    most = max(sizes.values(), default=0)
    return {"positions": 8 * most, "points": encrypted_size(SIZE * most)} if sizes else {}


def _taken_by_alignment(message: Any, own: str) -> tuple[str, ...]:
    match message:
        case Multiply() if message.owner != own:
            return ("points",)
        case Conclude():
            return ("positions",)
    return ()


class AnsweredKeys:
    """Keys of answered releases, in a file next to the party's party ledger.

    Guarantee. `take` returns only once for a key of a run, across all processes, and the key is then on disk. Noise is
    therefore drawn at most once under a key. To ask again, a coordinator needs a new attempt, which its ledger and the party's
    party ledger charge.

    path : path of the file. run : id of the run. allow_network_file_system : as in the owner's policy.
    """

    def __init__(self, path: Path, party: str, run: str, allow_network_file_system: bool = False) -> None:
        self._party, self._run = party, run

        def refusal(cause: str) -> ConsentRefused:
            return ConsentRefused(
                f"party {party!r} cannot record which releases it has made, in {path.name!r}: {cause}. The party's "
                "process must be able to write to the policy's folder"
            )

        self._store = Store(path, _TABLES, refusal, allow_network_file_system=allow_network_file_system)
        self._store.create()
        self.close = self._store.close

    def take(self, key: ReleaseKey, part: int, parts: int = 1) -> None:
        """Record the keys of `parts` releases from number `part` on: all of these keys, or none of them.

        Raises ConsentRefused if a key was taken before or the keys cannot be recorded, PrivacyError if no file could hold them.
        """
        last = replace(key, part=part + parts - 1).part
        with self._store.transaction() as file:
            try:
                file.execute(_TAKE, (part, last, self._run, key.round, key.attempt))
            except sqlite3.IntegrityError:
                numbers = f"part {part}" if parts == 1 else f"parts {part} to {part + parts - 1}"
                raise ConsentRefused(
                    f"party {self._party!r} has answered round {key.round}, attempt {key.attempt}, {numbers} of this run "
                    "before: asking again is another release, under a new attempt"
                ) from None


class TrainingWork(Work):
    """Work on one run: a training, or only an alignment.

    Guarantee. Each vector has one entry per record of this party. A query is answered only once per key (round, part and
    attempt), also after a restart, unless its noise is seeded and therefore identical.

    answered : function that opens the file of keys already answered, next to the owner's party ledger.
    """

    _service: TrainingService

    def __init__(
        self,
        offer: Offer,
        task: PartyTask,
        training: TrainingService,
        encryption: KeyExchange,
        answered: Callable[[], AnsweredKeys],
    ) -> None:
        super().__init__(offer, training, encryption)
        self._task, self._open = task, answered
        self._answered: AnsweredKeys | None = None
        self._notices = 0

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call."""
        body, party = BODY_BYTES + PER_COORDINATE * (len(self._task.canonical) + 1), self._party
        if party is None:
            return Limits(body, _limits_of_alignment(self._service.aligning))
        if (secure := (job := self._task.job).secure) is not None:
            widths = {name: len(columns) + 1 for name, columns in layout_of(job).columns.items()}
            roles = secure.roles(job.partition.parties, job.partition.label_party)
            largest = largest_message(roles, (party.n_trained, party.n_records - party.n_trained), widths)
            return Limits(body, dict.fromkeys(requests.ciphertext_names(MOST_CIPHERTEXTS), largest))
        limits = {name: np.dtype(self._kind(name)).itemsize * self._length(name, party) for name in RECORDS}
        if self._task.job.shows_columns:  # weights hold t (one per record), the label, and another party's columns
            limits["weights"] *= 2 + held_at_once(party.n_trained)
        return Limits(body, limits)

    def takes(self, message: Any) -> Iterable[str]:
        """Return the names of the vectors that must come with a call."""
        if self._party is None:
            return _taken_by_alignment(message, self._task.party)
        if isinstance(message, requests.Request):
            return requests.ciphertext_names(self._party.takes(message))
        return vectors_with(message[0]) if isinstance(message, tuple) else ()

    @property
    def _party(self) -> Party | None:
        return self._service.party

    def _admitted(self, message: Any, vectors: Mapping[str, Any]) -> Mapping[str, Any]:
        own = self._task.party
        if isinstance(message, Notice):
            self._hears(message)
        if isinstance(message, Load) and self.offer.purpose != TRAIN:
            raise FederationError(f"party {own!r} was asked to load for {self.offer.purpose!r}")
        if isinstance(message, tuple | requests.Request) and self._party is None:
            raise FederationError(f"party {own!r} was asked for an answer before it loaded its columns")
        if isinstance(message, tuple) and self._party is not None:
            query, key = message
            vectors = {
                name: self._of_records(name, vectors[name], self._length(name, self._party) * query.width)
                for name in RECORDS
                if name in vectors
            }
            if _noised(query):
                self._take(key, query.first_part(own), len(query.events()))
        if isinstance(message, requests.Contribute):
            self._take(message.key, message.query.part, len(message.query.blocks))
        if isinstance(message, requests.ContributeMoments):
            self._take(message.key, 0, 1)
        if isinstance(message, requests.ContributeProducts):
            self._take(message.key, 0, len(self._task.job.partition.parties))
        return vectors

    def answer(self, message: Any, vectors: Mapping[str, Any], progress: Callable[[int], None]) -> Sent:
        """Return the answer to a call, and count its releases."""
        sent = super().answer(message, vectors, progress)
        if isinstance(message, tuple):
            self.releases += _noised(message[0])
        self.releases += isinstance(message, requests.NOISED)
        return sent

    def _hears(self, notice: Notice) -> None:
        if notice.run != self.offer.run:
            raise FederationError(f"party {self._task.party!r} was sent a report of another run")
        self._notices += 1
        if self._notices > MOST_NOTICES:
            raise FederationError(f"party {self._task.party!r} was sent more than {MOST_NOTICES} reports on one run")

    def _take(self, key: ReleaseKey, part: int, parts: int) -> None:
        """Record the keys of releases before their noise is drawn. A key can be recorded only once."""
        if self._task.job.privacy is None or not self._task.job.noise_source().private:
            return
        if self._answered is None:
            self._answered = self._open()
        self._answered.take(key, part, parts)

    def summary(self) -> dict[str, Any]:
        """Return the facts of `Work.summary`, with those of the party."""
        party = self._party
        costs = None if party is None else party.costs()
        return super().summary() | {
            "epsilon": None if costs is None else costs.epsilon,
            "records": None if party is None else party.n_records,
            "left": None if costs is None else costs.left,
        }

    def reserved(self) -> float | None:
        """Return the ε that the owner's party ledger has reserved for the run; None without a log."""
        costs = None if self._party is None else self._party.costs()
        return None if costs is None else costs.reserved

    def close(self) -> None:
        """End processes and close files."""
        super().close()
        if self._answered is not None:
            self._answered.close()

    def _length(self, name: str, party: Party) -> int:
        """Return the length of a vector of `Records`: one entry per margin, or per record.

        Labels may be followed by record weights.
        """
        job = self._task.job
        entries = party.n_trained * job.targets.rows_at(party.name)
        if name in OF_MARGINS:
            return entries * job.n_outputs
        return entries * (1 + (name == "labels" and job.targets.weights))

    def _kind(self, name: str) -> str:
        return self._task.job.targets.kind if name == "margins" else "float64"

    def _of_records(self, name: str, raw: Any, length: int) -> Any:
        vector = as_vector(raw, self._kind(name))
        if len(vector) != length:
            raise PrivacyError(
                f"party {self._task.party!r} was sent a vector whose length differs from its number of records"
            )
        return vector


def vectors_with(query: Query) -> tuple[str, ...]:
    """Return the names of the vectors of `Records` that come with a query."""
    if query.need is Need.MARGINS:
        return ("margins", "labels", "limits")
    return ("weights",) if query.need is Need.WEIGHTS else ()


def _noised(query: Query) -> int:
    return sum(event is not None for event in query.events())


class PredictingWork(Work):
    """Work on a prediction or an evaluation. Parts of margins are encrypted for the party that adds them up."""

    _service: PredictionService

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call."""
        n, part = self._service.n_records, self._service.part
        if n is None:
            return Limits(BODY_BYTES, _limits_of_alignment(self._service.aligning))
        return Limits(BODY_BYTES, {"margins": encrypted_size(8 * n * part.job.n_outputs)})

    def takes(self, message: Any) -> Iterable[str]:
        """Return the names of the vectors that must come with a call.

        The aggregating party takes margins once per other party.
        """
        if isinstance(message, TakeLinearPredictors):
            return ("margins",) * self._service.awaits(message.sender)
        return () if self._service.n_records is not None else _taken_by_alignment(message, self._service.part.party)

    def accepted(self) -> Sent:
        """Return the answer to the offer. The answer states whether the new records have ids."""
        return About(self._service.ids), {}

    def answer(self, message: Any, vectors: Mapping[str, Any], progress: Callable[[int], None]) -> Sent:
        """Return the answer to a call. Ids in the answer are encoded as JSON."""
        reply, sent = super().answer(message, vectors, progress)
        if "ids" in sent:
            text = json.dumps(sent["ids"], ensure_ascii=False, default=str).encode()
            sent = {**sent, "ids": text}
        return reply, sent

    def summary(self) -> dict[str, Any]:
        """Return facts for the owner."""
        return super().summary() | {"records": self._service.n_records}


class ServingWork(Work):
    """Work for a resident service. The aggregating party runs the service, as coordinator of the federation.

    The stream ends in a process that may see the parts of the margins. TLS is therefore enough, and nothing is encrypted.
    """

    service: ServingService

    def __init__(self, offer: Offer, service: ServingService) -> None:
        super().__init__(offer, service, None)
        self.service = service

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call."""
        return Limits(BODY_BYTES, {"ids": MOST_ID_BYTES, "ends": 8 * MOST_SCORED})

    def takes(self, message: Any) -> Iterable[str]:
        """Return the names of the vectors that must come with a call: ids of records, and the end position of each id."""
        return ("ids", "ends") if isinstance(message, Score) else ()

    def summary(self) -> dict[str, Any]:
        """Return facts for the owner."""
        return super().summary() | {"records": self.service.answered}


class DealerWork(Work):
    """The dealer's work on one run. The number of records is known from the first session on."""

    def __init__(self, offer: Offer, job: Job, dealing: DealerService) -> None:
        super().__init__(offer, dealing, None)
        self._coordinates = sum(map(len, layout_of(job).columns.values()))
        self._counts = dict.fromkeys(requests.ciphertext_names(len(job.partition.parties)), encrypted_size(8))
        self._n_records: int | None = None

    @property
    def limits(self) -> Limits:
        """Return the size limits of the next call.

        A gradient query names coordinates of all parties; an encrypted message contains one number.
        """
        return Limits(BODY_BYTES + PER_COORDINATE * (self._coordinates + 1), self._counts)

    def takes(self, message: Any) -> Iterable[str]:
        """Return the names of the encrypted messages that must come with a call: the parties' numbers of records."""
        return self._counts if isinstance(message, requests.CheckRecords) else ()

    def answer(self, message: Any, vectors: Mapping[str, Any], progress: Callable[[int], None]) -> Sent:
        """Return the answer to a request, and count the sums to which the dealer added noise."""
        sent = super().answer(message, vectors, progress)
        match message:
            case requests.Begin():
                self._n_records = message.n_records
            case requests.DealSum():
                self.releases += len(message.query.blocks)
            case requests.DealProducts() | requests.ContributeMoments():
                self.releases += 1
        return sent

    def summary(self) -> dict[str, Any]:
        """Return facts for the dealer: seconds, number of records, and the number of sums to which the dealer added noise."""
        return super().summary() | {"records": self._n_records}
