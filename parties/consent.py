"""Consent: what a party's owner allows. The party's own process reads this policy file before it opens any data.

A policy file can have these entries. "Left out" says what holds without an entry.
format = 1
jobs = ["3f9a…", "credit"]      jobs to accept, by digest (one exact job) or by name (any job of that name); "*" for any job
columns = ["income", "age"]     columns that a job may use, label and id included; left out: all
trust = ["trusted"]             accepted values of `trust` in a job; left out: all
sources = ["bank.parquet"]      files and addresses that may be read to train, align, evaluate and predict; "memory" for tables,
                                and for parts of one table of all parties; "*" is a wild card; a relative path starts at this
                                file's folder; left out: any file or table. Addresses must be listed, with their parameters:
                                "postgresql://reader@db/bank", "s3://bucket/*?region=eu-central-1" (parties.allowed)
products = true                 accept jobs that may show this party's columns, without noise, to the coordinator and to later
                                parties, who multiply these columns with their own (intervals, the solver NoisyGram,
                                SkGD with joint=True)
interactive = true              ask at the terminal for jobs that are not listed
allow_non_private = true        accept jobs whose certificate says NOT PRIVATE: no privacy, seeded noise, smoothness="data",
                                diagnostics, evaluation.public
ledger = "bank.ledger"          the party ledger; left out: this file's name with the ending .ledger
allow_network_file_system = true    accept a party ledger on a network file system, where a charge may be lost

[job]                           limit of each job; left out: the rest of [total]
epsilon = 1.0
delta = 1e-6

[total]                         limit of all jobs together, for releases from this party's records
epsilon = 4.0
delta = 1e-6

[prediction]                    predictions from this party's records, without noise; left out: none is allowed
models = ["7be1…"]              digests of parts of models that this party may apply, as a refusal states them; "*" is any
parties = ["bank"]              parties that may add up the margins, and thereby see this party's parts; left out: any
sources = ["new/*.csv"]         sources, also allowed above, that may be predicted; left out: all
records = 1000                  limit of records per day (UTC), counted in a file next to the ledger; left out: any number
labels = true                   others may also measure a model on this party's labels, without noise (vfl evaluate)
callers = ["branch"]            callers that a resident service (vfl serve) may answer; "*" is any; left out: no service
purposes = ["credit decision"]  purposes that a caller may state; left out: any
rate = 50.0                     records per second that a service may answer; left out: any number
secure = true                   a service may also apply models trained under trust = "secure"
unusable = true                 a service tells callers that a record's cells cannot be used; left out: they get the answer for
                                an unknown record
fill = { calls = 7.0 }          values with which a service replaces missing cells of columns without a fill in the job
lookup = true                   a service looks up only the requested records, in DuckDB or Postgres; left out: it reads all

[secure]                        demands on jobs under trust = "secure"; then, without an entry `trust`, other jobs are refused
collude = 2                     accept jobs in which at least so many parties may pool what they saw and learn no more; left
                                out: any
dealer = "separate"             accept jobs with a separate dealer; "none": jobs of two parties without a dealer;
                                ["separate", "none"]: both; left out: any
products = false                no products of columns, for which others hold masked or encrypted columns; left out: allowed
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from parties.allowed import matches, require_listed
from vfl.base.arguments import number, option, require_count, require_positive, that
from vfl.base.documents import built, read_toml
from vfl.errors import ConsentRefused, PrivacyError, SpecificationError
from vfl.job.flags import flags_of, voids
from vfl.secure.roles import NONE, SEPARATE
from vfl.solvers.on_shares import may_open_products

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vfl.job import Job

FORMAT = 1
ANY = "*"
DEALT = f"{SEPARATE!r}, {NONE!r}, or a list of both"
_LIMIT = "is out of range: a limit needs epsilon > 0 and 0 < delta < 1"
VARIABLE = "VFL_POLICY"
"""Environment variable with which an owner sets the policy file on its own node. It overrides the policy that a job names."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit on (ε, δ). Neither number may be exceeded."""

    epsilon: float = option(number(lambda epsilon: 0 < epsilon < math.inf, _LIMIT, PrivacyError))
    delta: float = option(number(lambda delta: 0 < delta < 1, _LIMIT, PrivacyError))


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionPolicy:
    """Section [prediction] of a policy. The module's docstring explains each entry; an entry of None allows everything."""

    models: tuple[str, ...] = ()
    parties: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    records: int | None = option(that(lambda records: records >= 0, "must be a whole number of at least 0"), None)
    labels: bool = False
    callers: tuple[str, ...] | None = None
    purposes: tuple[str, ...] | None = None
    rate: float | None = option(require_positive, None)
    secure: bool = False
    lookup: bool = False
    unusable: bool = False
    fill: Mapping[str, Any] = field(default_factory=dict)

    def why_not(self, caller: str, purpose: str) -> str:
        """Return the reason why a service may not answer a caller, or '' if it may."""
        if self.callers is None or not {ANY, caller} & set(self.callers):
            return f"[prediction] callers: the caller {caller!r} is not listed there"
        if self.purposes is not None and purpose not in self.purposes:
            return "[prediction] purposes: the stated purpose is not listed there"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Section [secure] of a policy: the weakest threat model that the owner accepts for training on secret shares.

    The module's docstring explains each entry. An entry of None demands nothing.
    """

    collude: int | None = option(require_count, None)
    dealer: str | tuple[str, ...] | None = option(
        that(lambda own: {SEPARATE, NONE}.issuperset([own] if isinstance(own, str) else own), f"must be {DEALT}"), None
    )
    products: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """An owner's policy. The module's docstring explains each entry.

    job : limit of one job, in addition to the total. columns, sources : None allows all columns, or all files and tables.
    trust : accepted values of `trust`. None accepts only 'secure' if `secure` is given, else all values.
    prediction : None allows no prediction. secure : None demands nothing.
    """

    ledger: Path
    total: Limit
    job: Limit | None = None
    jobs: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    trust: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    interactive: bool = False
    allow_non_private: bool = False
    prediction: PredictionPolicy | None = None
    secure: Demands | None = None
    allow_network_file_system: bool = False
    products: bool = False

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy file. Raises SpecificationError if the file is missing or has an unknown entry."""
        path = Path(path).expanduser().absolute()
        plain = read_toml(path, "policy file", number=FORMAT, name=path.name, remedy=": nothing is consented to")
        if "total" not in plain:
            raise SpecificationError(
                f"the policy file {path.name!r} needs [total] with epsilon and delta: the most that all jobs together "
                "may release"
            )
        parts = {"total": Limit, "job": Limit, "prediction": PredictionPolicy, "secure": Demands}
        plain = {"ledger": path.with_suffix(".ledger").name} | plain
        policy: Policy = built(cls, plain, f"the policy file {path.name!r}: ", **parts)
        return replace(policy, ledger=path.parent / policy.ledger)

    def check(self, job: Job, party: str, ask: Callable[[str], bool] | None = None) -> None:
        """Raise ConsentRefused, which names the rule, unless the owner of `party` agrees to the job. No data is read.

        ask : function that asks the owner a question and returns True for yes; None asks at the terminal.
        """
        refuse = partial(refuse_job, job, party)
        listed = self._listed(job)
        if not listed and not self.interactive:
            refuse("jobs", f"it is not listed: once it is approved, add its digest {job.digest} there")
        trust = ("secure",) if self.trust is None and self.secure is not None else self.trust
        if trust is not None and job.trust_name not in trust:
            refuse("trust", f"it runs under trust = {job.trust_name!r}, and the policy allows only {_listing(trust)}")
        self._check_threats(job, refuse)
        if self.columns is not None:
            for column in job.wanted(party):
                if column not in self.columns:
                    hint = "; '*' is not a wildcard for columns: list their names" if "*" in self.columns else ""
                    refuse("columns", f"it uses column {column!r}, which is not allowed{hint}")
        if job.shows_columns and not self.products:
            refuse(
                "products",
                "it may show columns to other participants before noise, and the policy does not allow that",
            )
        not_private = _not_private(job)
        if not_private and not self.allow_non_private:
            refuse("allow_non_private", f"{not_private}, and the policy allows no such job")
        if job.privacy is not None:
            self.check_demand(job, party, job.privacy.epsilon, job.privacy.delta)
        if not listed and not (ask or _ask_at_terminal)(_question(job, party)):
            refuse("interactive", "its owner was asked and did not agree, or could not be asked where the party runs")

    def check_source(self, party: str, source: str, what: str, *, owners: bool) -> None:
        """Raise ConsentRefused unless the owner allows a source to be read, for any purpose. No data is read.

        source : result of parties.allowed.name_of. what : words for the error that say why the source would be read.
        owners : True if the owner set this policy, which may then allow addresses.
        """
        if self.sources is not None and not self._lists(self.sources, source):
            raise ConsentRefused(
                f"party {party!r} refuses {what} by its policy's sources: the source is not listed there (paths "
                "are relative to the policy file's folder)"
            )
        require_listed(party, source, (self.sources or ()) if owners else (), self.ledger.parent)

    def check_prediction(self, party: str, digest: str, source: str, *, receiver: str, labels: bool) -> None:
        """Raise ConsentRefused unless the owner allows a part of a model to be applied to a source. No data is read.

        digest : digest of the part. source : result of parties.allowed.name_of. receiver : aggregating party, which
            sees this party's part of each margin. labels : True if labels are read too.

        The error names the rule that refuses.
        """
        allowed, refuse = self.prediction, partial(self.refuse_prediction, party)
        if allowed is None:
            refuse("", "there is no such section, so that no model may be applied to its records")
        if ANY not in allowed.models and digest not in allowed.models:
            refuse("models", f"this part is not listed: once it is approved, add its digest {digest} there")
        if allowed.parties is not None and receiver not in (party, *allowed.parties):
            refuse(
                "parties",
                f"{receiver!r} would add up the linear predictors, and the policy allows only {_listing(allowed.parties)}",
            )
        if allowed.sources is not None and not self._lists(allowed.sources, source):
            refuse("sources", "the source that was named is not listed there")
        if labels and not allowed.labels:
            refuse("labels", "a model may not be measured on its labels")

    def check_service(self, party: str, job: Job) -> None:
        """Raise ConsentRefused unless a resident service may apply the model of a job.

        `check_prediction` checks the other rules.
        """
        allowed, refuse = self.prediction, partial(self.refuse_prediction, party)
        if allowed is None or allowed.callers is None:
            refuse("callers", "no service is allowed: list the callers whom it may answer")
        if job.secure is not None and not allowed.secure:
            refuse(
                "secure",
                "the model was trained under trust = 'secure', and a service shows this party's parts of linear predictors to "
                "the aggregating party; the owner accepts this with secure = true",
            )

    def refuse_prediction(self, party: str, rule: str, why: str) -> NoReturn:
        """Raise ConsentRefused for a prediction. rule : entry of [prediction] that the error names. why : reason."""
        raise ConsentRefused(
            f"party {party!r} refuses a prediction by its policy's [prediction]{rule and ' '}{rule}: {why}"
        )

    def _lists(self, patterns: tuple[str, ...], source: str) -> bool:
        return any(matches(source, pattern, self.ledger.parent) for pattern in patterns)

    def check_demand(self, job: Job, party: str, epsilon: float, delta: float | None) -> None:
        """Refuse a job above the limit of one job. delta : None if δ depends on a number of records that is not known yet."""
        if self.job is None:
            return
        for name, asked, most in (("epsilon", epsilon, self.job.epsilon), ("delta", delta, self.job.delta)):
            if asked is not None and asked > most:
                refuse_job(job, party, "[job]", f"it asks for {name} = {asked:.4g}, and at most {most:.4g} is allowed")

    def _check_threats(self, job: Job, refuse: Callable[[str, str], NoReturn]) -> None:
        """Refuse a job on secret shares if its threat model is weaker than the one that the owner demands."""
        demanded, stated = self.secure, job.secure
        if demanded is None or stated is None:
            return
        if demanded.collude is not None and stated.collude < demanded.collude:
            refuse(
                "[secure] collude",
                f"it protects against {stated.collude} colluding part{'y' if stated.collude == 1 else 'ies'}, and "
                f"protection against at least {demanded.collude} is demanded",
            )
        # Dealers have no order: without a dealer nobody can unmask what one party received, but a party that deviates can
        # read more.
        dealers = (demanded.dealer,) if isinstance(demanded.dealer, str) else demanded.dealer
        if dealers is not None and stated.dealer not in dealers:
            refuse("[secure] dealer", f"its dealer is {stated.dealer!r}, and {_listing(tuple(dealers))} is demanded")
        if not demanded.products and may_open_products(job.solver):
            refuse("[secure] products", "it may open products of columns: SkGD does not with joint = false")

    def _listed(self, job: Job) -> bool:
        # The submitter chooses the name of a job, so a name must not pass for the digest of another job.
        return ANY in self.jobs or job.digest in self.jobs or (job.name in self.jobs and not _is_digest(job.name))


def refuse_job(job: Job, party: str, rule: str, why: str) -> NoReturn:
    """Raise ConsentRefused for a job. rule : entry of the party's policy that the error names. why : reason."""
    raise ConsentRefused(f"party {party!r} refuses job {job.name!r} by its policy's {rule}: {why}")


def policy_of(given: str | os.PathLike[str] | None) -> Policy | None:
    """Return the policy of the party in this process: from the file in $VFL_POLICY, else from `given`; None without either."""
    path = os.environ.get(VARIABLE) or given
    return Policy.read(path) if path else None


def require_source(policy: Policy | None, party: str, source: str, what: str, *, owners: bool = False) -> None:
    """Raise ConsentRefused unless the party's owner allows a source. No data is read.

    policy : result of `policy_of`; the owner set it if $VFL_POLICY is set. Other arguments : as for `Policy.check_source`.
    """
    if policy is None:
        require_listed(party, source)
    else:
        policy.check_source(party, source, what, owners=owners or bool(os.environ.get(VARIABLE)))


def _not_private(job: Job) -> str:
    """Return the reason why the job's certificate would give no guarantee, or '' if it would give one."""
    return next((flag for flag in flags_of(job) if voids((flag,))), "")


def _question(job: Job, party: str) -> str:
    asked = "WITHOUT PRIVACY"
    if job.privacy is not None:
        delta = job.privacy.delta
        asked = f"ε = {job.privacy.epsilon:g} at δ = " + ("1/n²" if delta is None else f"{delta:.3g}")
    threats = "" if job.secure is None else f" ({job.secure.describe()})"
    return (
        f"Job {job.name!r}, digest {job.digest}\nwants {_listing(job.wanted(party))} of party {party!r}: "
        f"{asked}, trust {job.trust_name!r}{threats}. {' '.join(flags_of(job))}\nDo you agree? [y/N] "
    )


def _ask_at_terminal(question: str) -> bool:
    if not (sys.stdin and sys.stdin.isatty()):
        return False
    return input(question).strip().lower() in ("y", "yes")


def _is_digest(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def _listing(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
