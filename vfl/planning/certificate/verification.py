"""Verification of a certificate: recompute all values that follow from the given inputs, and list checks that lack an input.

Verification cannot show that the participants ran this software, or that the data set has no other ledger.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.base import markup
from vfl.crypto import signatures
from vfl.errors import LedgerError, OutputError, SpecificationError, VflError
from vfl.job.flags import flags_of, voids
from vfl.job.start import total_of
from vfl.planning.certificate.document import sentences
from vfl.planning.certificate.issue import (
    cost_behind,
    digest_of,
    fault_of,
    findings_digest,
    is_exact,
    is_selection,
    model_digest,
    moments_among,
    moments_digest,
    planned,
    seen,
)
from vfl.privacy.events import Event, ReleaseKey
from vfl.privacy.ledger import Accounting, SqliteLedger
from vfl.privacy.ledger.codec import as_json, from_json
from vfl.privacy.ledger.composition import epsilon_of, exact_mu, plan_cost
from vfl.privacy.ledger.fit import FIXED
from vfl.privacy.noise import CryptographicNoise
from vfl.secure.ring import LARGEST_TOTAL, SMALLEST_TOTAL
from vfl.secure.roles import DEALER, DEALING, ENCRYPTION, NONE, Roles, dealing
from vfl.solvers.on_shares import BY_PRODUCTS, BY_SUMS
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vfl.planning import Plan
    from vfl.planning.certificate.document import Certificate, Events
    from vfl.queries.protocol import Released

TOLERANCE = {"gdp": 1e-9, "zcdp": 1e-9, "pld": 1e-6, "selection": 1e-6}
"""Relative difference allowed for ε, per accounting, since special functions differ between machines."""

MARKS = {True: "ok", False: "FAIL", None: "--"}


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of one check of a certificate. holds : None if the input of the check was not given."""

    name: str
    holds: bool | None
    finding: str

    def __str__(self) -> str:
        return f"{self.name}: {self.finding}"


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of a verification. `ok` is True if no check failed; `checks` also lists checks that lacked an input."""

    certificate: Certificate
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that failed."""
        return tuple(check for check in self.checks if check.holds is False)

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    @property
    def guarantee(self) -> tuple[str, str]:
        """Guarantee and limits, in two sentences without mathematics. Raises OutputError if a check failed."""
        self.require()
        verified = all(check.holds for check in self.checks if check.name == "start")
        return sentences(self.certificate, start_verified=verified)

    def require(self) -> None:
        """Raise OutputError that names all failed checks, if a check failed."""
        if wrong := "; ".join(map(str, self.failed)):
            raise OutputError(f"the certificate does not hold: {wrong}; do not rely on the certificate or the model")

    def __str__(self) -> str:
        return "\n".join(f"{MARKS[check.holds]:<4}  {check.name:<10} {check.finding}" for check in self.checks)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return markup.table((), [(MARKS[check.holds], check.name, check.finding) for check in self.checks])


class _Mismatch(Exception):
    """Raised by a check that fails. The message says why, in words."""


NO_LOG = "not checked: there is no log of the run"
ALONE = "not checked: only the certificate was given"


class _Unsettled(Exception):
    """Raised by a check that can neither hold nor fail. The message says why, in words."""


def verify(
    certificate: Certificate,
    *,
    model: Mapping[str, Any] | None = None,
    findings: Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    released: Sequence[Released] = (),
    ledger: str | Path | None = None,
    key: str | Path | None = None,
    federation: Mapping[str, str] | None = None,
    start: Certificate | None = None,
) -> Report:
    """Check the signature, compute ε again from the events, and compare the certificate with everything given.

    The report names each check and its outcome, and each check that lacked an input. `Report.require` raises on a failure.

    model, findings : contents of model.json and of findings.json; {} for a run that measured nothing.
    plan : plan of the job for n records. The plan fixes the releases that the run must have reserved.
    released : values that the first queries released, from the run's log.
    ledger : path of the ledger in which the run was charged.
    key : public key of the expected signer, as 64 hexadecimal digits or as the path of a PEM file.
    federation : `vfl.network.federation.file.Federation.stated` of the federation that the reader expects.
    start : certificate of the model from which training started.

    Raises SpecificationError for an invalid `key`, OutputError for a ledger that cannot be opened.
    """
    if ledger is not None:
        _require_opens(Path(ledger))
    wanted = None if key is None else signatures.public_key(key)
    stated = certificate.federation or federation
    looks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("signature", lambda: _signature(certificate)),
        ("signer", lambda: _signer(certificate, wanted)),
        ("epsilon", lambda: _epsilon(certificate)),
        ("claims", lambda: _claims(certificate)),
        *((("trust", lambda: _trust(certificate)),) if certificate.trust else ()),
        *((("federation", lambda: _federation(certificate, federation)),) if stated else ()),
        *((("start", lambda: _start(certificate, start)),) if certificate.start or start is not None else ()),
        ("model", lambda: _model(certificate, model)),
        ("findings", lambda: _findings(certificate, findings)),
        ("job", lambda: _job(certificate, plan)),
        ("plan", lambda: _plan(certificate, plan)),
        *((("choice", lambda: _choice(certificate, plan)),) if _chosen(certificate) else ()),
        *((("knots", lambda: _knots(certificate, plan, released)),) if certificate.knots else ()),
        ("moments", lambda: _moments(certificate, plan, released)),
        ("ledger", lambda: _ledger(certificate, ledger)),
        ("cap", lambda: _cap(certificate, ledger)),
    )
    return Report(certificate, tuple(_looked_at(*look) for look in looks))


def _require_opens(ledger: Path) -> None:
    try:
        ledger.open("rb").close()
    except OSError as error:
        raise OutputError(
            f"the ledger {str(ledger)!r} cannot be opened: {error.strerror}. Nothing was checked: name a file that you may read"
        ) from None


def _looked_at(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except _Unsettled as error:
        return Check(name, None, str(error))
    except (_Mismatch, VflError) as error:
        return Check(name, False, str(error))


def _signature(certificate: Certificate) -> str:
    stamp = certificate.signature
    if stamp is None:
        raise _Mismatch("the certificate has no signature: Result.save signs it")
    if stamp.algorithm != signatures.ALGORITHM:
        raise _Mismatch(f"this vfl verifies {signatures.ALGORITHM}, not {stamp.algorithm!r}")
    if not signatures.is_signed(certificate.to_sign(), public=stamp.public_key, signature=stamp.value):
        raise _Mismatch("the signature does not match: the certificate was altered after it was signed")
    return f"unaltered since it was signed at {stamp.signed}"


def _signer(certificate: Certificate, wanted: str | None) -> str:
    stamp = certificate.signature
    if stamp is None:
        raise _Unsettled("not known here: there is no signature")
    if wanted is not None:
        if stamp.public_key != wanted:
            raise _Mismatch(f"signed with key {stamp.public_key}, not with the expected key {wanted}")
        return f"the expected key, {wanted}"
    if stamp.public_key != signatures.own_public_key():
        raise _Unsettled(f"not known here: {stamp.public_key}; compare it with --signer PUBLIC")
    return f"this user's own key, {stamp.public_key}"


def _epsilon(certificate: Certificate) -> str:
    if certificate.basis == "none":
        if certificate.events or certificate.reserved or certificate.releases or math.isfinite(certificate.epsilon):
            raise _Mismatch("it states releases or an ε, but no accounting")
        raise _Unsettled("none is stated")
    if certificate.accounting not in TOLERANCE:
        raise _Mismatch("it states releases, but no accounting for them")
    counted = sum(count for _, count in certificate.events)
    if counted != certificate.releases:
        raise _Mismatch(f"it lists {counted} charged releases, but states {certificate.releases}")
    events = certificate.events if certificate.basis == "charged" else certificate.reserved
    for event, _ in (*certificate.events, *certificate.reserved):
        if event.adjacency != certificate.adjacency:
            raise _Mismatch(f"a release has {event.adjacency} adjacency, the guarantee {certificate.adjacency}")
    tolerance = TOLERANCE[certificate.accounting]
    found = recomputed(certificate.accounting, events, certificate.delta)
    if certificate.basis == "charged" and dict(certificate.events) != dict(certificate.reserved):
        # A run that made fewer releases than it reserved was cut off. Its certificate has to state the ε of the reservation.
        planned = recomputed(certificate.accounting, certificate.reserved, certificate.delta)
        if found < planned * (1.0 - tolerance):
            raise _Mismatch(
                f"it states a complete run, but fewer releases (ε = {found!r}) than were reserved (ε = {planned!r})"
            )
    if not math.isclose(found, certificate.epsilon, rel_tol=tolerance):
        raise _Mismatch(f"its releases have ε = {found!r} at δ = {certificate.delta!r}, not {certificate.epsilon!r}")
    if certificate.basis == "reserved":
        spent = recomputed(certificate.accounting, certificate.events, certificate.delta)
        if spent > certificate.epsilon * (1.0 + tolerance):
            raise _Mismatch(f"the charges (ε = {spent!r}) exceed the reservation")
        return f"{found:.6g} at δ = {certificate.delta:.3g}, recomputed from all planned releases, made or not"
    return f"{found:.6g} at δ = {certificate.delta:.3g}, recomputed from the {counted} release{'s' * (counted != 1)} charged"


def recomputed(accounting: str, events: Events, delta: float) -> float:
    """Return the ε of events at δ, computed by an accounting. 'gdp' is exact for Gaussian releases."""
    if accounting in FIXED:
        from vfl.privacy.accountants import choose_accountant

        return choose_accountant(events, committed=True).compose_all(events).epsilon(delta)
    way = Accounting(accounting)
    return epsilon_of(way, plan_cost(events, way), delta)


def _claims(certificate: Certificate) -> str:
    """Return the claim in words; _Mismatch if `private` contradicts noise, smoothness or flags (listed exceptions)."""
    private = (
        certificate.basis != "none"
        and certificate.noise == CryptographicNoise.__name__
        and certificate.smoothness != "data"
        and not voids(certificate.flags)
    )
    if private != certificate.private:
        raise _Mismatch(
            f"it claims to be {'private' if certificate.private else 'not private'}, but its noise, smoothness and flags "
            "contradict that"
        )
    return "private, by its noise and flags" if private else "NOT PRIVATE, as it states"


def _trust(certificate: Certificate) -> str:
    if fault := _fault_of_trust(certificate):
        raise _Mismatch(fault)
    stated = certificate.trust
    many, parties = stated["collude"], len([name for name in stated["contributors"] if name != DEALER])
    version = ", nor the library's version" if "encryption" in stated else ""
    return (
        f"up to {many} of {parties} parties may pool what they saw, {dealing(stated)}, {stated['price']:.3g} times the noise "
        f"charged to ε; not checked: that participants were semi-honest{version}"
    )


def _fault_of_trust(certificate: Certificate) -> str:
    """Return a contradiction within the stated threat model, or between that model and the stated solver; '' if there is none.

    Price, holders and contributors follow from the parties, the label party and the number that may collude. No file can show
    that participants were semi-honest.
    """
    stated, solver = certificate.trust, certificate.solver["name"]
    holders, names, many = stated["holders"], stated["contributors"], stated["collude"]
    if solver not in (*BY_SUMS, *BY_PRODUCTS):
        return f"it states training on shares, which {solver} does not offer"
    try:
        roles = Roles(tuple(name for name in names if name != DEALER), holders[0], many, stated["dealer"] != NONE)
    except SpecificationError as error:
        return f"its roles contradict one another: {error}"
    if tuple(names) != roles.contributors:
        return f"noise was drawn by {_listing(names)}, and has to be drawn by {_listing(roles.contributors)}"
    own = stated.get("encryption", {})
    if own != ({} if roles.dealt else ENCRYPTION | {"library": own.get("library")}):
        return f"it states the encryption {own}, which does not fit {DEALING[stated['dealer']]}"
    if own and not re.fullmatch(r"TenSEAL \d[\w.+!-]*", str(own["library"])):
        return f"it was encrypted with {own['library']!r}, which vfl does not use"
    by_products = solver in BY_PRODUCTS
    expected = roles.parties if by_products else roles.holders
    if tuple(holders) != expected:
        return f"with collude = {many} the shares are held by {_listing(expected)}, not by {_listing(holders)}"
    price = roles.price_of_products if by_products else roles.price
    if not math.isclose(stated["price"], price, rel_tol=1e-9):
        return (
            f"with {len(roles.parties)} parties and collude = {many} an opened sum has {price:.4g} times the noise that ε "
            f"counts, not {stated['price']:.4g} times"
        )
    joint, said = roles.price_of_products if certificate.solver.get("joint") else None, stated.get("products")
    if said != joint:
        return f"it states {said} times the noise that ε counts for products of columns, and joint steps have {joint} times"
    fewest, most = _bits(by_products=by_products)
    if not fewest <= stated["bits"] <= most:
        return f"{stated['bits']} bits are outside the range from {fewest} to {most} of an opened sum"
    return ""


def _bits(*, by_products: bool) -> tuple[int, int]:
    """Return the smallest and the largest allowed number of bits of an opened sum, or of an opened product of columns."""
    if not by_products:
        return SMALLEST_TOTAL, LARGEST_TOTAL
    from vfl.secure.gram import LARGEST_BITS, SMALLEST_BITS  # loads compiled loops

    return 2 * SMALLEST_BITS, 2 * LARGEST_BITS


def _listing(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _federation(certificate: Certificate, expected: Mapping[str, str] | None) -> str:
    stated = certificate.federation
    if expected is None:
        named = f"{stated['name']!r}, digest {stated['digest'][:16]}…"
        raise _Unsettled(f"{named}, not checked: give its file with --federation FILE")
    if not stated:
        raise _Mismatch(f"the run was not made in a federation, and {expected['name']!r} is expected")
    if any(stated[name] != expected[name] for name in ("name", "digest")):
        raise _Mismatch(
            f"the run was made in federation {stated['name']!r}, digest {stated['digest']}, and {expected['name']!r}, digest "
            f"{expected['digest']}, is expected: its members or their certificates differ"
        )
    if stated.get("dealer") != expected.get("dealer"):
        dealt, deals = (
            "nobody" if who is None else repr(who) for who in (stated.get("dealer"), expected.get("dealer"))
        )
        raise _Mismatch(f"the certificate names {dealt} as the dealer, and the federation file {deals}")
    return f"{stated['name']!r}, digest {stated['digest'][:16]}…: the expected members and certificates"


def _start(certificate: Certificate, start: Certificate | None) -> str:
    """Compute the total with the cost of the start again. Compare the stated cost with the certificate of the start."""
    stated = certificate.start
    if not stated:
        raise _Mismatch("training did not start from a model, as the certificate states")
    counted = certificate.reserved if certificate.basis == "reserved" else certificate.events
    if not any(stated["model"][:12] in flag for flag in certificate.flags) and certificate.basis != "none":
        raise _Mismatch("the certificate lacks a flag that names the model from which training started")
    total = total_of(stated, certificate.epsilon, certificate.delta, exact_mu(counted))
    if not alike(dict(certificate.total), total):
        raise _Mismatch(f"with the cost of its start, its releases cost {total}, not {dict(certificate.total)}")
    if certificate.private and not total:
        raise _Mismatch("it claims to be private, but the model that it started from has no stated cost")
    said = f"model {stated['model'][:16]}…"
    if start is None:
        raise _Unsettled(
            f"{said}, with the cost that the job states; not checked: give its certificate with --warm-start RUN"
        )
    if start.model_digest != stated["model"]:
        raise _Mismatch(
            f"training started from model {stated['model']}, and the given certificate is for another model"
        )
    if wrong := "; ".join(map(str, verify(start).failed)):
        raise _Mismatch(f"the certificate of the start does not hold: {wrong}")
    cost = cost_behind(start) if start.private else {}
    if not alike(cost, {name: stated[name] for name in ("mu", "epsilon", "delta") if name in stated}):
        raise _Mismatch(
            "the job states another cost of the model that it starts from than the certificate of that model"
        )
    signer = "" if start.signature is None else start.signature.public_key
    found = f"{said}, at the cost that its certificate, signed with key {signer}, states"
    if start.start:
        raise _Unsettled(
            f"{found}; that cost includes a start of its own, not checked: verify that certificate likewise"
        )
    return found


def _model(certificate: Certificate, model: Mapping[str, Any] | None) -> str:
    if model is None:
        raise _Unsettled(ALONE)
    if model_digest(model) != certificate.model_digest:
        raise _Mismatch("it is not the certified model: its numbers or names differ")
    if {column: list(own) for column, own in model.get("knots", {}).items()} != dict(certificate.knots):
        raise _Mismatch("it is not the certified model: its curves have other knots")
    return f"the certified model, SHA-256 {certificate.model_digest[:16]}…"


def _findings(certificate: Certificate, findings: Mapping[str, Any] | None) -> str:
    if findings is None:
        raise _Unsettled(ALONE)
    if findings_digest(findings) != certificate.findings_digest:
        raise _Mismatch(
            "the stated measures are not the certified ones"
            if findings
            else "findings.json, which the certificate covers, is missing: copy it from the folder of the run"
        )
    return "the certified ones" if findings else "none: only the model was released"


def _job(certificate: Certificate, plan: Plan | None) -> str:
    if plan is None:
        raise _Unsettled(ALONE)
    if plan.job.digest != certificate.job_digest:
        raise _Mismatch("the job file was changed after the run")
    job = plan.job
    for name, value, stated in (
        ("name", job.name, certificate.job),
        ("dataset", job.dataset or "", certificate.dataset),
    ):
        if stated != value:
            raise _Mismatch(f"the job's {name} is {value!r}, but the certificate states {stated!r}")
    return f"{certificate.job!r}, the job of the run, SHA-256 {certificate.job_digest[:16]}…"


def _plan(certificate: Certificate, plan: Plan | None) -> str:
    """Compare the certificate with the plan of the job. The plan's defaults may differ in another version of vfl."""
    if plan is None:
        raise _Unsettled(ALONE)
    missing = [flag for flag in flags_of(plan.job) if flag not in certificate.flags]
    if missing:
        raise _Mismatch(f"the certificate lacks a flag that the job requires: {missing[0]}")
    own = not certificate.dataset or is_exact(certificate.reserved) or _chosen(certificate)
    if own and certificate.basis != "none" and not alike(certificate.delta, plan.problem.delta):
        raise _Mismatch(
            f"δ = {plan.problem.delta!r} follows from the job and n, but the certificate states {certificate.delta!r}"
        )
    differing = _differing(certificate, plan)
    if not differing:
        return f"reservation, clipping and noise are those that this job plans for {certificate.n_records} records"
    made = certificate.code_version
    where = "" if made == __version__ else f"; this is vfl {__version__}: verify it with vfl {made}, which issued it"
    raise _Mismatch(f"the field {differing[0]!r} does not follow from the job and n{where}")


def _differing(certificate: Certificate, plan: Plan) -> list[str]:
    expected = planned(plan, certificate.flags if _chosen(certificate) else ())
    del expected["job_digest"]  # compared by `_job`
    if encryption := expected["trust"].get("encryption"):  # the version of the run, not of this machine
        encryption["library"] = certificate.trust.get("encryption", {}).get("library")
    if _chosen(certificate):  # `_choice` compares the charges, which cover all candidates
        del expected["reserved"]
        expected["who_sees_what"] = seen(expected["who_sees_what"])
    del expected["flags"]  # the run may have added some; `_plan` looks for those that the job requires
    return [name for name, value in expected.items() if not alike(getattr(certificate, name), value)]


def alike(one: Any, other: Any) -> bool:
    """Return True if two fields are equal. Doubles may differ by a relative 1e-9: special functions depend on the machine."""
    if isinstance(one, Event) and isinstance(other, Event):
        return alike(_fields(one), _fields(other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(alike(a, b) for a, b in zip(one, other, strict=True))
    return bool(type(one) is type(other) and one == other)


def _fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name, text) for name, text in as_json(event).items()}


def _chosen(certificate: Certificate) -> bool:
    return bool(certificate.selection) or is_selection((*certificate.events, *certificate.reserved))


def _choice(certificate: Certificate, plan: Plan | None) -> str:
    """Compare the charges of a private choice with the choice's candidates and winner, and with the winner's plan."""
    if fault := fault_of(certificate, plan):
        raise _Mismatch(fault)
    stated = certificate.selection
    number = stated["candidates"].index(stated["winner"]) + 1
    return f"candidate {number} of {len(stated['candidates'])} by {stated['score']}; ε covers all of them; {stated['withheld']}"


def _knots(certificate: Certificate, plan: Plan | None, released: Sequence[Released]) -> str:
    """Compare the certified knots with those that follow from the released histograms."""
    if plan is None or plan.knots is None or not released:
        raise _Unsettled(NO_LOG)
    knots = plan.knots
    try:
        placed = knots.placed(released[0]) if knots.bent else knots.lines()
        same = {column: list(own) for column, own in knots.by_column(placed).items()} == dict(certificate.knots)
    except (ArithmeticError, LookupError, TypeError, ValueError):  # an altered log may hold anything
        same = False
    if not same:
        raise _Mismatch("the histograms in the run's log give other knots than the certified ones")
    return "those that the histograms in the run's log give"


def _moments(certificate: Certificate, plan: Plan | None, released: Sequence[Released]) -> str:
    if plan is None or not released or not certificate.moments_digest:
        why = NO_LOG if certificate.moments_digest else "of the columns: none were released"
        withheld = "not checked: withheld with the other releases of the trials"
        raise _Unsettled(withheld if certificate.selection else why)
    if moments_digest(plan, moments_among(plan, released)) != certificate.moments_digest:
        raise _Mismatch("the run's log has moments that differ from the certified ones")
    return "of the columns, from which smoothness follows: the certified ones are in the run's log"


def _why_no_ledger(certificate: Certificate) -> str:
    if certificate.basis == "none":
        return "none: nothing was charged"
    if not certificate.ledger:
        return "none: the budget was kept in memory, for this one fit"
    return f"not checked: give the ledger of account {certificate.ledger['account']!r} with --ledger FILE"


def charges(ledger: str | Path, run: str, *, before: float = math.inf) -> Counter[Event]:
    """Return a run's charges in a ledger as {event: count}, after verifying the ledger's hash chain.

    before : count only charges of rounds with a number below this one.
    """
    return Counter(event for key, event in events_of(ledger, run).items() if key.round < before)


def events_of(ledger: str | Path, run: str) -> dict[ReleaseKey, Event]:
    """Return {key of the charge: event} of a run's charges, after verifying the ledger's hash chain."""
    entries = json.loads(SqliteLedger(ledger, readonly=True).export())["entries"]
    return {
        ReleaseKey(entry["round"], entry["part"], entry["attempt"]): from_json(entry["body"])
        for entry in _of(entries, "charge")
        if entry["run"] == run
    }


def _ledger(certificate: Certificate, ledger: str | Path | None) -> str:
    """Verify the ledger's hash chain; compare its reservation, charges and settlement of the run with the certificate."""
    if ledger is None:
        raise _Unsettled(_why_no_ledger(certificate))
    place = certificate.ledger
    if not place:
        raise _Mismatch("the certificate names no entry of a ledger, so no ledger can confirm it")
    run, account = place["run"], place["account"]
    document = json.loads(SqliteLedger(ledger, readonly=True).export())
    entries = [entry for entry in document["entries"] if entry["run"] == run and entry["dataset"] == account]
    if not entries:
        raise _Mismatch(f"this ledger does not contain run {run!r} on account {account!r}")
    reserve = next(_of(entries, "reserve"))
    settle = next(_of(entries, "settle"), None)
    if settle is None or (settle["seq"], settle["hash"]) != (place["entries"], place["head"]):
        raise _Mismatch("its chain lacks the certified head: give the ledger of the run, in its newest copy")
    caps = [entry for entry in _of(document["entries"], "cap") if entry["dataset"] == account]
    delta = next(e["body"]["delta"] for e in reversed(caps) if e["seq"] < reserve["seq"])
    body = reserve["body"]
    choice = certificate.selection
    named = digest_of(choice["candidates"], choice["score"], choice["inclusion"]) if choice else certificate.job_digest
    stated = {
        "job": (body["job"], named),
        "releases reserved": (_counts(body["plan"]), Counter(dict(certificate.reserved))),
        "releases charged": (
            _counts([entry["body"], 1] for entry in _of(entries, "charge")),
            Counter(dict(certificate.events)),
        ),
        "end of the run": (settle["body"]["stopped_early"], certificate.basis == "reserved"),
    }
    if not is_exact(certificate.reserved) and not choice:  # otherwise the certificate states an ε of its own
        stated["accounting"] = (body["accounting"], certificate.accounting)
        stated["δ"] = (float.fromhex(delta), certificate.delta)
    for name, (kept, said) in stated.items():
        if kept != said:
            raise _Mismatch(f"its record of this run differs from the certificate in: {name}")
    return f"chain unbroken over {document['head']['seq']} entries; entry {settle['seq']} settles the certified run"


def _cap(certificate: Certificate, ledger: str | Path | None) -> str:
    """Report changes of the data set's cap on ε after releases. A change before the run's settlement needs a flag."""
    if ledger is None or not certificate.ledger:
        raise _Unsettled(_why_no_ledger(certificate))
    account, settled = certificate.ledger["account"], certificate.ledger["entries"]
    try:
        balances = SqliteLedger(ledger, readonly=True).show()
    except LedgerError:  # the check of the ledger fails and states the reason
        raise _Unsettled("not checked: the ledger cannot be read") from None
    balance = next((b for b in balances if b.dataset == account), None)
    if balance is None:
        raise _Mismatch(f"this ledger has no data set {account!r}")
    concealed = [str(r) for r in balance.revisions if r.seq < settled and str(r) not in certificate.flags]
    if concealed:
        raise _Mismatch(f"the certificate lacks a flag: {concealed[0]}")
    if not balance.revisions:
        return "not changed since the first release on the data set"
    return "; ".join(map(str, balance.revisions))


def _of(entries: Sequence[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (entry for entry in entries if entry["kind"] == kind)


def _counts(events: Any) -> Counter[Event]:
    counts: Counter[Event] = Counter()
    for plain, count in events:
        counts[from_json(plain)] += count
    return counts
