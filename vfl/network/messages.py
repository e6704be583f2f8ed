"""Calls and notices between the coordinator and the parties: greetings, alignment, prediction and measures.

Every call of a run follows an `Offer` to which the party's owner has agreed. No call names a path or an address.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.crypto.encryption import EncryptionKey
    from vfl.privacy.ledger import Head
    from vfl.queries.parts import Statistic


@dataclass(frozen=True, slots=True)
class Greeting:
    """Facts about a party, which the party sends before training.

    version : version of the vfl code at the party.
    n_records : number of the party's records. The privacy guarantee is among data sets with this number of records.
    keeps_ledger : True if the party's owner keeps a party ledger, which the coordinator informs of the run's phases.
    alignment : hash of the records' ids in their order, equal for all parties; '' without an alignment.
    library : name and version of the library with which the party encrypts in a run on shares without a dealer; else ''.
    """

    version: str
    n_records: int
    keeps_ledger: bool = False
    alignment: str = ""
    library: str = ""


class Phase(enum.Enum):
    """Phase of a run that the coordinator reports to the party ledgers."""

    COMPARE = "before anything is reserved: is a party ledger, or the ledger, older than what the other has noted"
    OPEN = "the ledger has set the plan aside"
    CLOSE = "the run has ended and its ledger is settled"
    ABANDON = "the run does not begin after all"


@dataclass(frozen=True, slots=True)
class Notice:
    """Report of a run's phase to a party that keeps a party ledger. The report is public.

    run : id of the run. account : name of the account in the coordinator's ledger.
    ledger : head (last hash) of the ledger's chain; None for a budget in memory.
    noted : last hash of the party ledger that the ledger recorded; None if it recorded none.
    """

    phase: Phase
    run: str
    account: str
    ledger: Head | None = None
    noted: Head | None = None


@dataclass(frozen=True, slots=True)
class LedgerHeads:
    """Answer of a party's party ledger: the last hashes, called heads, of two hash chains.

    own : last hash of the party ledger; None before the first run in the log.
    noted : last hash of the coordinator's ledger that the party ledger recorded; None if it recorded none.
    """

    own: Head | None
    noted: Head | None


TRAIN, ALIGN, PREDICT, EVALUATE, SERVE = PURPOSES = ("train", "align", "predict", "evaluate", "serve")


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer of a training, a prediction or other work to a party. The owner's policy judges it before any data are opened.

    purpose : one of PURPOSES. run : id of the run. job : the public job as JSON, which the party parses itself; for a
        prediction or a service, the party's part of the model instead (parties.prediction.ModelPart).
    digest : digest of the job or of the part, which the party recomputes. parties : names of all participating parties.
    source : name that the owner gave the source; '' for the source without a name.
    keeps : name under which the party keeps the aligned rows, for a run that may be resumed; '' to keep no rows.
    resumed, later, last, again : as in vfl.crypto.alignment.IndexRules.
    """

    purpose: str
    run: str
    job: str
    digest: str
    parties: tuple[str, ...]
    source: str = ""
    keeps: str = ""
    resumed: bool = False
    later: bool = False
    last: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Answer to a call without a result."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Answer to a call that failed. kind : name of an error in vfl.errors. reason : the error's message."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Load:
    """Call to read the party's columns; answered by `Greeting`."""


@dataclass(frozen=True, slots=True)
class SendLabels:
    """Call for the labels y, to the label party only; answered by `Done` and a vector."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Call to close the party's work. why : '' if the work is complete, else the reason, a sentence."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """Call that is answered at once, with the requested number of bytes. It reads no data.

    seconds : time on the caller's clock. size : size of the returned vector in bytes.
    """

    seconds: float
    size: int = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to `Ping`. seconds : time on the party's clock. version : version of the vfl code at the party."""

    seconds: float
    version: str


@dataclass(frozen=True, slots=True)
class Introduce:
    """Call for the party's `EncryptionKey`."""


@dataclass(frozen=True, slots=True)
class Introduced:
    """Call that hands a party the `EncryptionKey` of every party."""

    keys: Mapping[str, EncryptionKey] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MakeSalt:
    """Call to one party to choose the salt of an alignment; answered by `Encrypted`, with a text for every other party."""


@dataclass(frozen=True, slots=True)
class Encrypted:
    """Short texts, each encrypted by one party so that only one other party can read it."""

    texts: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TakeSalt:
    """Call that hands a party the encrypted salt. maker : the party that has encrypted the salt."""

    maker: str
    text: bytes


@dataclass(frozen=True, slots=True)
class ReadIds:
    """Call to read the ids; answered by `IdsGreeting`."""


@dataclass(frozen=True, slots=True)
class BeginAligning:
    """Call to start an alignment. pending : name of an interrupted alignment to continue; None for a new alignment.

    sizes : {party: number of its ids}.
    """

    pending: str | None
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Multiply:
    """Call to blind the id set of `owner`, encrypted by the party `holder`; or the receiver's own set, made from its ids."""

    owner: str
    holder: str


@dataclass(frozen=True, slots=True)
class SendSet:
    """Call for the set of `owner`: encrypted for party `to`; or decrypted for the coordinator if `to` is ''."""

    owner: str
    to: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """Call that hands a party the positions of its common records; answered by `Indexed`."""


@dataclass(frozen=True, slots=True)
class About:
    """Answer to the offer of a prediction. ids : True if the new records have an id column."""

    ids: bool


@dataclass(frozen=True, slots=True)
class Apply:
    """Call to compute the party's part of the margins, which stays at the party; answered by `Applied`."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Answer to `Apply`. n_records : number of predicted records.

    n_rows : number of rows to predict, at the party that adds up if its ids may repeat; None if rows are records, and for
        measures.
    """

    n_records: int
    n_rows: int | None = None


@dataclass(frozen=True, slots=True)
class SendLinearPredictors:
    """Call for the party's part of the margins, encrypted for the party `to`, which adds up."""

    to: str


@dataclass(frozen=True, slots=True)
class TakeLinearPredictors:
    """Call that hands the aggregating party the encrypted part of `sender`."""

    sender: str


@dataclass(frozen=True, slots=True)
class AddUp:
    """Call to add up the parts; answered by `Done` with the margins, and with the ids as JSON if there are ids."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Call for one sum over the added margins and the labels, without noise; answered by `Done` and the sum.

    This call is possible only after the offer of an evaluation that the label party's policy has allowed.
    """

    statistic: Statistic


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to a service.

    part : digest of the part of the model to apply. caller, purpose : as stated by the aggregating party. records : number of
        ids.
    """

    part: str
    caller: str
    purpose: str
    records: int


@dataclass(frozen=True, slots=True)
class Score:
    """Call for parts of margins for several requests. One vector contains the ids of the records of all requests."""

    asked: tuple[Asked, ...]


ANSWERED, REFUSED, EXHAUSTED, QUOTA, ABSENT, AWAY = "", "refused", "exhausted", "quota", "absent", "away"
"""Codes of an outcome, in this order: answered; forbidden by the policy; the party's limit reached; the caller's limit reached;
no part loaded; no answer from the party, or from its database, to this request."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one request at one party. code : one of the codes above. why : the reason; '' for an answer."""

    code: str = ANSWERED
    why: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """Answer to `Score`: an outcome per request, and one vector of margins for all answered requests.

    The margin of an unknown id is NaN; of a record with unusable cells infinite, if the owner lets callers know that.
    """

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Call to keep only these parts of models; all other served parts are dropped. Answered by `Kept`. parts : digests."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """Answer to `Keep`: states of the served parts. states : {digest: '' if the part is loaded, else the reason why not}.

    stale : True if changed data could not be read, so that earlier records are scored.
    """

    states: Mapping[str, str] = field(default_factory=dict)
    stale: bool = False
