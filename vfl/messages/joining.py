"""Calls between a coordinator and a party of another organisation, and their answers, except for queries and notices.

Every call of a run follows an Offer that the party's owner has agreed to. No call names a path or an address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.messages.query import Statistic

TRAIN, ALIGN, PREDICT, EVALUATE, SERVE = PURPOSES = ("train", "align", "predict", "evaluate", "serve")


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer of work, which the owner's policy judges before any data are opened.

    purpose : one of PURPOSES. run : id of the run. job : the public job as JSON, which the party reads itself; for a prediction
        or a service, the party's part of the model (parties.prediction.ModelPart).
    digest : digest of the job or the part, which the party recomputes. parties : all participating parties.
    source : the owner's name of its source; '' is the one without a name.
    keeps : name under which the aligned rows are kept, for a run that may be resumed; '' keeps none.
    resumed, later, last, again : as in vfl.alignment.Keeping.
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
    """Answer to a call that failed. kind : name of an error in vfl.errors. reason : its message."""

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Load:
    """Call to read the columns; answered by a Greeting."""


@dataclass(frozen=True, slots=True)
class SendLabels:
    """Call for y, at the label party; answered by Done and a vector."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Call to close the work. why : '' if it is complete, else the reason, a sentence."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Ping:
    """Call that is answered at once, with the requested number of bytes; touches no data.

    seconds : the caller's clock. size : size of the returned vector in bytes.
    """

    seconds: float
    size: int = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer of a Ping. seconds : the party's clock. version : version of its code."""

    seconds: float
    version: str


@dataclass(frozen=True, slots=True)
class SealingKey:
    """A party's key in one run to seal vectors for it that pass through the coordinator, signed by its identity.

    key : X25519, 32 bytes. signature : as in vfl.security.sealing.
    """

    key: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Introduce:
    """Call for the party's SealingKey."""


@dataclass(frozen=True, slots=True)
class Introduced:
    """Call that hands every party's SealingKey to a party."""

    keys: Mapping[str, SealingKey] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MakeSalt:
    """Call to one party to choose the salt of an alignment; answered by a Sealed for every other party."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """Short texts, each sealed by one party so that only one other party can read it."""

    texts: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TakeSalt:
    """Call that hands the sealed salt to a party. maker : the party that sealed it."""

    maker: str
    text: bytes


@dataclass(frozen=True, slots=True)
class ReadIds:
    """Call to read the ids; answered by an IdsGreeting."""


@dataclass(frozen=True, slots=True)
class BeginAligning:
    """Call to begin an alignment, or to continue the pending alignment of that name. sizes : {party: number of its ids}."""

    pending: str | None
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Multiply:
    """Call to blind the set of `owner`, which `holder` has sealed; the party's own set is made from its ids."""

    owner: str
    holder: str


@dataclass(frozen=True, slots=True)
class SendSet:
    """Call for the set of `owner`: sealed for party `to`, or in the clear for the coordinator if `to` is ''."""

    owner: str
    to: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """Call that hands a party the positions of its common records; answered by an Indexed."""


@dataclass(frozen=True, slots=True)
class About:
    """Answer to the offer of a prediction. ids : True if the new records have an id column."""

    ids: bool


@dataclass(frozen=True, slots=True)
class Apply:
    """Call to compute the party's part of the margins, which stays with the party; answered by Applied."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Answer of Apply. n_records : records that were predicted."""

    n_records: int


@dataclass(frozen=True, slots=True)
class SendMargins:
    """Call for the party's part of the margins, sealed for the party that adds up."""

    to: str


@dataclass(frozen=True, slots=True)
class TakeMargins:
    """Call that hands the sealed part of `sender` to the party that adds up."""

    sender: str


@dataclass(frozen=True, slots=True)
class AddUp:
    """Call to add the parts; answered by Done with the margins, and the ids as JSON if there are any."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Call for one sum over the added margins and the labels, without noise; answered by Done and the sum.

    It only follows the offer of an evaluation that the label party's policy has allowed.
    """

    statistic: Statistic


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to a service.

    part : digest of the part of the model to apply. caller, purpose : stated by the adding party. records : number of ids.
    """

    part: str
    caller: str
    purpose: str
    records: int


@dataclass(frozen=True, slots=True)
class Score:
    """Call for parts of margins of records, by id, of several requests; the ids of all requests come in one vector."""

    asked: tuple[Asked, ...]


ANSWERED, REFUSED, EXHAUSTED, QUOTA, ABSENT, AWAY = "", "refused", "exhausted", "quota", "absent", "away"
"""Codes of an outcome: answered; the policy forbids it; the party's limit, or the caller's, is reached; no part is loaded; the
party, or the database that it asks, did not answer this request."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one request at one party. code : one of the codes above. why : the reason, '' for an answer."""

    code: str = ANSWERED
    why: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """Answer of Score: an outcome per request, and a vector of the margins of all answered requests; NaN for an unknown id."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Call to keep these parts of models and to drop all others that are served; answered by Kept. parts : digests."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """States of served parts. states : {digest: '' if it is loaded, else the reason why it is not}."""

    states: Mapping[str, str] = field(default_factory=dict)
