"""Fields, file format, signature and words of a certificate.

The schema file beside this module, certificate-1.schema.json, describes a certificate file for other programs. A certificate
can be written in exactly one way: vfl refuses a file that differs from this spelling in any byte.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.base import markup
from vfl.base.documents import LARGEST as LARGEST_FILE
from vfl.base.documents import parse_json, read_bytes
from vfl.crypto.signatures import ALGORITHM
from vfl.errors import LedgerError, OutputError
from vfl.job.flags import voids
from vfl.job.start import EXACT
from vfl.privacy.events import Event
from vfl.privacy.ledger.codec import as_json, canonical, from_json
from vfl.secure.roles import dealing
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vfl.crypto.signatures import SigningKey

    Events = tuple[tuple[Event, int], ...]

FORMAT = 1
LARGEST = 1 << 53
"""Upper bound on integers in the file. JSON parsers of all languages read integers below this bound exactly."""
SCHEMA = Path(__file__).with_name(f"certificate-{FORMAT}.schema.json")


@dataclass(frozen=True, slots=True)
class Signature:
    """Signature of a certificate. The signed bytes include the signer's key and the time.

    public_key : key of the signer, 64 hexadecimal digits. signed : time in UTC. value : the signature, 128 hexadecimal digits.
    """

    algorithm: str
    public_key: str
    signed: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Statement of a model's privacy: the releases, the adjacency, ε and δ, and data-dependent values that were not charged.

    private : False if there is no guarantee; `flags` then say why.
    epsilon, delta : the guarantee of this run alone; inf and 0 if there is no guarantee. With a start, `guaranteed` is the
        guarantee for every record.
    adjacency : relation between the two data sets that the guarantee compares.
    basis : releases from which ε is computed. 'charged' means the releases that were made. 'reserved' means all planned
        releases, made or not: released values could decide how many were made, and then only the ε of all planned releases is
        valid (a privacy filter). 'none' means a run without privacy.
    accounting : 'gdp' (exact for Gaussian releases), 'zcdp' (mixed kinds of releases), 'pld' (a plan fixed beforehand),
        'selection' (a private choice among candidates) or 'none'.
    scope : other uses of the same data that the guarantee includes or leaves out.
    flags : sentences on data-dependent values that were not charged, and on noise that can be repeated.
    releases : number of charged releases.
    events : ((event, count), ...) that were charged. reserved : ((event, count), ...) that were reserved before any data were
        read. If events depend on released values, charged and reserved events may differ, but cost the same.
    noise : class of the noise source. solver : name of the solver and final value of each of its options.
    clip, geometry : cap on one record's influence on a release, and the norm that the cap bounds.
    smoothness : origin of the smoothness constants: 'private' (released), 'bounds', 'declared' or 'data'.
    moments_digest : SHA-256 of the released moments of the columns, from which smoothness follows; '' if no moments were
        released. The run's log has the moments.
    n_records : number of records. This number is public, and so is the list of individuals who take part.
    who_sees_what : values that noise protects and values that it does not, per kind of participant.
    trust : threat model of training on shares, {mode, participants, dealer, collude, holders, contributors, price, bits},
        `encryption` without a dealer, and `products` for joint steps; {} for other runs. `price` is the noise of an opened sum
        divided by the noise that ε counts; `products` is that ratio for an opened product of two parties' columns.
    job, job_digest, dataset : name and SHA-256 of the job, and the name of the job's data in the ledger ('' if the guarantee
        holds for this fit alone).
    model_digest, findings_digest : SHA-256 of the model, and of the other released values ('' if there are none).
    ledger : position in the ledger's hash chain when the run was settled, {run, account, entries, head}; {} for a budget in
        memory.
    party_ledgers : {party: {entries, head}} of the parties that keep a ledger of their own.
    selection : facts of a private choice among candidate jobs, {candidates, winner, score, inclusion, withheld}; {} for a run.
        `candidates` and `winner` are SHA-256 digests of jobs, and `withheld` is a sentence.
    knots : {column: released knots} of the curves whose knots the run found; {} if there are none.
    start : released model from which training started and the cost of the releases behind it, as the job states them
        (`vfl.job.start.Start.stated`); {} if there is none.
    total : cost for every record of this run and the releases behind its start (`vfl.job.start.total_of`); {} without a start,
        and if the start has no guarantee.
    federation : federation of organisations that made the run, {name, digest}; for training on shares also {dealer}, the
        organisation that was the dealer; {} for runs of one operator. The digest is over all names and pinned certificates.
    signature : None if the certificate is not signed. dataclasses.replace returns an unsigned copy.
    """

    format: int = FORMAT
    private: bool
    epsilon: float
    delta: float
    adjacency: str
    basis: str
    accounting: str
    scope: str
    flags: tuple[str, ...]
    releases: int
    events: Events
    reserved: Events
    noise: str
    solver: Mapping[str, Any]
    clip: float | str | None
    geometry: str
    smoothness: str
    moments_digest: str
    n_records: int
    who_sees_what: Mapping[str, str]
    job: str
    job_digest: str
    dataset: str
    model_digest: str
    findings_digest: str
    ledger: Mapping[str, Any] = field(default_factory=dict)
    party_ledgers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    selection: Mapping[str, Any] = field(default_factory=dict)
    trust: Mapping[str, Any] = field(default_factory=dict)
    knots: Mapping[str, list[float]] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    total: Mapping[str, Any] = field(default_factory=dict)
    federation: Mapping[str, str] = field(default_factory=dict)
    code_version: str = __version__
    signature: Signature | None = field(default=None, init=False)

    def __str__(self) -> str:
        return described(self)

    def __repr__(self) -> str:
        return f"{self._title()}\n{self}"

    def _repr_html_(self) -> str:
        lines = map(markup.line, str(self).splitlines())
        seen = [(who, self.who_sees_what[who]) for who in PARTICIPANTS if who in self.who_sees_what]
        return markup.whole(markup.line(self._title(), strong=True), *lines, markup.table(("who", "saw"), seen))

    def _title(self) -> str:
        return f"Certificate of job {self.job!r}: {self.n_records:,} records, {self.releases:,} releases"

    @property
    def guaranteed(self) -> tuple[float, float]:
        """(ε, δ) for every record: `total` if training started from a released model, else `epsilon` and `delta`."""
        return (self.total["epsilon"], self.total["delta"]) if self.total else (self.epsilon, self.delta)

    def signed(self, key: SigningKey) -> Certificate:
        """Return a copy of the certificate, signed with a key."""
        copy = dataclasses.replace(self)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        unsigned = Signature(ALGORITHM, key.public, now, "")
        object.__setattr__(copy, "signature", unsigned)
        value = key.sign(copy.to_sign())
        object.__setattr__(copy, "signature", dataclasses.replace(unsigned, value=value))
        return copy

    def to_sign(self) -> bytes:
        """Return the bytes to sign: a line with the format, then canonical JSON of all fields except the signature's value."""
        plain = _plain(self)
        if self.signature is not None:
            del plain["signature"]["value"]
        return f"vfl certificate {self.format}\n{canonical(plain)}".encode()

    def to_json(self) -> str:
        """Return the text of the certificate's file. Doubles are read back bit for bit; an infinite ε is written as null."""
        return json.dumps(_plain(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, said: str = "this") -> Certificate:
        """Return the certificate from text that `to_json` wrote; raise OutputError for any other text.

        said : name of the text in the error.
        """
        try:
            plain = parse_json(text)
            if isinstance(plain, dict) and plain.get("format", FORMAT) != FORMAT:
                raise OutputError(f"this vfl reads certificates of format {FORMAT}, not {plain['format']!r}")
            certificate = _read(plain)
            written = certificate.to_json()
        except json.JSONDecodeError as error:
            raise OutputError(f"{said} is not a certificate: it is not JSON ({error})") from error
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, LedgerError) as error:
            raise OutputError(f"{said} is not a certificate, or it was altered: {error}") from error
        if written != text:
            raise OutputError(
                "the certificate is not as vfl writes it: it was altered or reformatted; get the file as it was signed"
            )
        return certificate

    @classmethod
    def load(cls, path: str | Path, largest: int = LARGEST_FILE, *, follow: bool = True) -> Certificate:
        """Read a certificate file. largest, follow : as for vfl.base.documents."""
        try:
            # Read bytes, since reading text would normalise line ends.
            return cls.from_json(read_bytes(path, largest, follow=follow).decode(), said=f"{str(path)!r}")
        except OSError as error:
            raise OutputError(f"cannot read the certificate {str(path)!r}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise OutputError(f"{str(path)!r} is not a certificate, or it was altered: {error}") from error


def _plain(certificate: Certificate) -> dict[str, Any]:
    plain = {f.name: getattr(certificate, f.name) for f in dataclasses.fields(certificate)}
    plain = {name: value for name, value in plain.items() if value or name not in OPTIONAL}
    signature = certificate.signature
    return plain | {
        "epsilon": certificate.epsilon if math.isfinite(certificate.epsilon) else None,
        "flags": list(certificate.flags),
        "events": _events(certificate.events),
        "reserved": _events(certificate.reserved),
        "signature": None if signature is None else dataclasses.asdict(signature),
    }


def _events(events: Events) -> list[dict[str, Any]]:
    """Return events with the field names that the ledger uses. Doubles are the shortest decimals that read back bit for bit."""
    return [_spelt(event) | {"count": count} for event, count in events]


def _spelt(event: Event) -> dict[str, Any]:
    values = {name: getattr(event, name, text) for name, text in as_json(event).items()}
    return {name: _spelt(value) if isinstance(value, Event) else value for name, value in values.items()}


def _event(plain: dict[str, Any]) -> tuple[Event, int]:
    count = plain["count"]
    if not _is_count(count) or count < 1:
        raise ValueError("the count of an event is not a positive integer")
    return from_json(_exact({name: value for name, value in plain.items() if name != "count"})), count


def _exact(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an event's fields as the ledger writes them, including the fields of a nested event."""
    if not all(_is_count(value) for value in fields.values() if type(value) is int):
        raise ValueError("an event has an integer that is negative or too large")
    return {
        name: value.hex() if type(value) is float else _exact(value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


PARTICIPANTS = ("outsider", "party", "coordinator", "dealer")
OPTIONAL = ("selection", "knots", "start", "total", "trust", "federation")
"""Fields that a file omits if they are empty."""


@functools.cache
def _rules() -> Any:
    """Return the validator of the schema. For the validator, 1 is an integer only, and 1.0 a double only."""
    import jsonschema  # imported here so that an actor starts faster

    def typed(validator: Any, names: Any, value: Any, _schema: Any) -> Iterator[Any]:
        own = {int: "integer", float: "number"}.get(type(value))
        names = [names] if isinstance(names, str) else names
        if not (any(validator.is_type(value, name) for name in names) if own is None else own in names):
            yield jsonschema.ValidationError(f"it is not of type {' or '.join(names)}")

    exact = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"type": typed})
    return exact(json.loads(SCHEMA.read_text(encoding="utf-8")))


def _read(plain: Any) -> Certificate:
    """Return the certificate in a file's content. The schema checks all fields but events; the ledger's codec checks events."""
    if not isinstance(plain, dict):
        raise TypeError("it is not a JSON object")
    checked = plain | {name: [] for name in ("events", "reserved") if isinstance(plain.get(name), list)}
    if (error := next(_rules().iter_errors(checked), None)) is not None:
        at = ".".join(map(str, error.absolute_path))
        raise ValueError(f"the field {at!r} has an invalid value" if at else error.message)
    signature = plain.pop("signature")
    certificate = Certificate(
        **plain
        | {
            "epsilon": math.inf if plain["epsilon"] is None else plain["epsilon"],
            "flags": tuple(plain["flags"]),
            "events": tuple(map(_event, plain["events"])),
            "reserved": tuple(map(_event, plain["reserved"])),
        }
    )
    if signature is not None:
        object.__setattr__(certificate, "signature", Signature(**signature))
    return certificate


_LARGEST = 700.0
"""Largest ε for which the factor e^ε is printed."""
_RAREST = 1e-15
WHOLE = (
    "ε counts every planned release, made or not: earlier releases could decide how many were made, and only the ε of all "
    "of them holds then"
)
UNPROTECTED = (
    "Anyone who has the model may learn about single records from it, and this certificate must not be cited as "
    "protection of anyone's data."
)
_SHOWN = 16
"""Number of digits of a key to show. `vfl verify` compares and prints all digits."""


def described(certificate: Certificate) -> str:
    """Return the certificate's guarantee, scope, exceptions (flags) and signer, one per line."""
    lines = ["NOT PRIVATE: trained without noise"]
    if math.isfinite(certificate.epsilon):
        epsilon, delta = certificate.guaranteed
        guarantee = f"(ε = {epsilon:.4g}, δ = {delta:.3g})-differentially private for every record"
        said = f"{guarantee} ({certificate.adjacency})"
        stated = said if certificate.private else f"NOT PRIVATE (the accounting alone would give: {said})"
        lines = [stated, certificate.scope]
    if certificate.basis == "reserved":
        lines.append(WHOLE)
    if certificate.selection:
        chosen = certificate.selection
        lines.append(
            f"ε covers the choice among {len(chosen['candidates'])} candidates by {chosen['score']}; {chosen['withheld']}"
        )
    if certificate.trust:
        many = certificate.trust["collude"]
        lines.append(
            f"trained on shares among semi-honest participants: up to {many} part{'ies' if many > 1 else 'y'} may pool what "
            f"they saw, {dealing(certificate.trust)}; sums were opened with {certificate.trust['price']:.3g} times "
            "the noise charged to ε"
            + (
                "; every party held masked columns of all others, to open products"
                if "products" in certificate.trust and "encryption" not in certificate.trust
                else ""
            )
        )
    if certificate.federation:
        dealer = certificate.federation.get("dealer", "")
        lines.append(
            f"trained across the organisations of federation {certificate.federation['name']!r}, digest "
            f"{certificate.federation['digest'][:_SHOWN]}…" + (f"; {dealer!r} dealt" if dealer else "")
        )
    if certificate.start:
        lines.append(
            f"training started from the released model {certificate.start['model'][:_SHOWN]}…{_added(certificate)}"
        )
    lines += [f"flag: {flag}" for flag in certificate.flags]
    if certificate.signature is not None:
        lines.append(f"signed {certificate.signature.signed} with key {certificate.signature.public_key[:_SHOWN]}…")
    return "\n".join(lines)


def _added(certificate: Certificate) -> str:
    """Return the cost of the run alone, and the rule by which the cost of its start was added; '' if it was not added."""
    if not certificate.total:
        return ""
    rule = (
        "the costs of both added up exactly"
        if certificate.total["rule"] == EXACT
        else "the sum of both ε, and of both δ"
    )
    return (
        f", whose cost the stated ε includes ({rule}); for records on which that model was not trained, ε = "
        f"{certificate.epsilon:.4g} and δ = {certificate.delta:.3g}"
    )


def sentences(certificate: Certificate, *, start_verified: bool = False) -> tuple[str, str]:
    """Return the guarantee and its limits, in two sentences without mathematics.

    Verify the certificate before you print the sentences. They restate differential privacy: the probability of any
    conclusion changes by at most a factor e^ε, plus δ (Dwork & Roth 2014, Def. 2.4).

    start_verified : True if the stated cost of the model that training started from is that of the model's certificate.
    """
    if not certificate.private:
        reason = next((flag for flag in certificate.flags if voids((flag,))), "no flag states the reason")
        return f"This model carries no privacy guarantee: {reason.removeprefix('NOT PRIVATE: ')}.", UNPROTECTED
    start = certificate.start.get("model", "")[:_SHOWN]
    began = f" and from the model {start}… that it started from" if start else ""
    if start and not start_verified:
        began += " (if that model cost no more than the job states, which was not verified)"
    holds = (
        f"Whatever anyone concludes from this model{began}, "
        "replacing the data of any one record (one row over all parties, with its label) by any other data changes the "
        f"probability of that conclusion by at most {_change(*certificate.guaranteed)}"
        + (
            f"; for records on which the model {start}… was not trained, by at most "
            f"{_change(certificate.epsilon, certificate.delta)}."
            if start
            else "."
        )
    )
    between = (
        "during training it protects the participants' data from one another within the threat model that it states"
        if certificate.trust
        else "it does not protect the participants' data from one another during training"
    )
    alone = "alone (every other use of the same records adds to it)"
    total = f"(the ledger of the data set {certificate.dataset!r} limits the total of all trainings charged to it)"
    return holds, (
        "The guarantee holds against everyone who sees the model or this certificate, for this one training "
        f"{total if certificate.dataset else alone}; {between}, and it relies on all participants running this software "
        "unchanged."
    )


def _change(epsilon: float, delta: float) -> str:
    chance = f"1 in {math.floor(1.0 / delta * (1.0 + 1e-12)):,}" if delta > _RAREST else "less than 1 in 10^15"
    return f"a factor of {_factor(epsilon)}, plus a chance of {chance} (ε = {epsilon:.4g}, δ = {delta:.3g})"


def _factor(epsilon: float) -> str:
    """Return e^ε to four digits, rounded up, since rounding down would overstate the guarantee."""
    if epsilon > _LARGEST:
        return "more than 10^300, which guarantees nothing in practice"
    value = math.exp(epsilon)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1.0 - 1e-12)) * unit:.10g}"
