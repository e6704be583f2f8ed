"""The certificate: what may be said of a model's privacy, in one file beside it, from which ε can be computed again."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import OutputError
from vfl.privacy.noise import CryptographicNoise
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.planning import Plan
    from vfl.privacy.ledger import Statement

FORMAT = 1

WHO_SEES_WHAT: dict[str, dict[str, str]] = {
    "trusted": {
        "outsider": "the model and this certificate: (ε, δ)-differentially private",
        "party": "its columns, its own un-noised gradients, residuals; in sweeps margins and labels: NOT protected by noise",
        "coordinator": "labels and margins Xw: NOT protected by noise",
    }
}
UNPROTECTED = {"outsider": "the model and this certificate: NOT protected, see the flags"}
"""DESIGN §5: noise protects the model, not the n-vectors that travel between participants."""


AMPLIFIED = (
    "; it counts that nobody knows which records a step sampled, so it is for those who see the model: participants see "
    "the batches"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What was released, under which adjacency, at which ε; with everything that was not charged, in words.

    private : False when there is no guarantee at all; `flags` say why.
    epsilon, delta : the guarantee; inf and 0 when there is none.
    adjacency : the two data sets that it compares.
    events : ({type, its fields, count}, ...), all that was charged or reserved for.
    scope : what else on the same data the guarantee does or does not cover.
    flags : sentences on what depends on data and was not charged, and on noise that anybody can repeat.
    """

    private: bool
    epsilon: float
    delta: float
    adjacency: str
    accounting: str
    scope: str
    events: tuple[Mapping[str, Any], ...]
    releases: int
    flags: tuple[str, ...]
    who_sees_what: Mapping[str, str]
    noise: str
    clip: float | None
    smoothness: str
    n_records: int
    job: str
    job_digest: str
    ledger: Mapping[str, Any] = field(default_factory=dict)
    code_version: str = __version__
    format: int = FORMAT

    def __str__(self) -> str:
        if math.isfinite(self.epsilon):
            said = f"(ε = {self.epsilon:.4g}, δ = {self.delta:.3g})-differentially private for every record ({self.adjacency})"
            lines = [said if self.private else f"NOT PRIVATE (the accounting, had it been: {said})", self.scope]
        else:
            lines = ["NOT PRIVATE: trained without noise"]
        return "\n".join([*lines, *(f"flag: {flag}" for flag in self.flags)])

    def to_json(self) -> str:
        """Return the certificate as JSON; infinite numbers as the text 'inf'."""
        plain = {name: "inf" if value == math.inf else value for name, value in dataclasses.asdict(self).items()}
        return json.dumps(plain, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Return the certificate that `to_json` wrote; OutputError when it is none."""
        try:
            plain = json.loads(text)
            if plain.get("format") != FORMAT:
                raise OutputError(f"this vfl reads certificates of format {FORMAT}, not {plain.get('format')!r}")
            plain = {name: math.inf if value == "inf" else value for name, value in plain.items()}
            return cls(**plain | {"events": tuple(plain["events"]), "flags": tuple(plain["flags"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OutputError(f"this is not a certificate: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise OutputError(f"cannot read the certificate {str(path)!r}: {error.strerror}") from error


def flags_of(plan: Plan) -> tuple[str, ...]:
    """Return a sentence for everything data-dependent that the job leaves uncharged."""
    privacy = plan.job.privacy
    if privacy is None:
        return ("trained with privacy=None: the model is not differentially private",)
    flags = []
    if privacy.noise is not None:
        flags.append("NOT PRIVATE: the noise is seeded, so whoever knows the seed can take it off")
    if privacy.smoothness == "data":
        flags.append(
            "NOT PRIVATE as a whole: means and smoothness of the columns were computed from the data and not charged "
            "(smoothness='data'); ε would hold only if these had been fixed public numbers"
        )
    return tuple(flags)


def certify(plan: Plan, statement: Statement | None) -> Certificate:
    """Return the certificate of a run that the book has settled; `statement` is None without privacy."""
    job, problem = plan.job, plan.problem
    flags = flags_of(plan)
    smoothness = problem.smoothness if isinstance(problem.smoothness, str) else "declared"
    noise = "none" if job.privacy is None else type(job.privacy.noise or CryptographicNoise()).__name__
    return Certificate(
        private=statement is not None and not flags,
        epsilon=statement.epsilon if statement else math.inf,
        delta=statement.delta if statement else 0.0,
        adjacency=str(statement.adjacency) if statement else "none",
        accounting=statement.accounting if statement else "none",
        scope=statement.scope + (AMPLIFIED if plan.committed else "") if statement else "no guarantee",
        events=tuple(
            {"type": type(event).__name__, **dataclasses.asdict(event), "count": count}
            for event, count in plan.releases
        ),
        releases=statement.releases if statement else 0,
        flags=flags,
        who_sees_what=WHO_SEES_WHAT[job.trust] | ({} if statement and not flags else UNPROTECTED),
        noise=noise,
        clip=getattr(plan.solver, "clip", None) if statement else None,
        smoothness=smoothness,
        n_records=problem.n_records,
        job=job.name,
        job_digest=job.digest,
        ledger={"entries": statement.entries, "head": statement.head} if statement and statement.head else {},
    )
