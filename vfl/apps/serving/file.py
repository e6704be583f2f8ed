"""Service file: models and their versions, data, callers and addresses of a scoring service.

format = 1
party = "bank"                    party of this service: the label party of the models, which adds up all parts of a score
listen = "127.0.0.1:8080"         address of the service; any address other than loopback needs `certificate` and `key`
federation = "scoring.toml"       federation file that names this party as coordinator; left out: all parties' data are below
identity = "bank.key"             private key of this party; left out: PARTY.key beside the federation file
certificate, key                  PEM files for HTTPS
metrics = "127.0.0.1:9464"        address for Prometheus metrics; left out: none
answer_timeout_s = 1.0              limit for the answer to one request

[data]                            {party: file or address}: data of this party, and of other parties whose data are here
[policies]                        {party: policy file} of the same parties

[models.credit]
active = "2026-11"                version that answers requests that name no version
versions = { "2026-11" = "runs/credit" }
fallback = "refuse"               if a party is away: "refuse", or "fill": use its part for a record whose cells are all
missing
sources = { telco = "new" }       names that the other parties gave their sources

[callers.branch]
token = "9f86d0…"                 SHA-256 of a bearer token, hex (vfl identity token)
certificate = "branch.pem"        client certificate (vfl identity new), instead of or in addition to a token; over HTTPS only
models = ["credit"]               models that the caller may use; left out: all models
records = 10000                   limit of records per day (UTC); left out: any number
rate = 50.0                       limit of records per second; left out: any number

Paths start at the file's folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vfl.base.arguments import one_of, option, require_positive, whole
from vfl.base.documents import built, read_toml
from vfl.errors import SpecificationError
from vfl.job.file import ADDRESS
from vfl.network.federation.certificate import check_name
from vfl.network.federation.file import check_address
from vfl.network.federation.identity import read_public

if TYPE_CHECKING:
    from vfl.network.federation.certificate import Read

FORMAT = 1
LISTEN, ANSWER_SECONDS = "127.0.0.1:8080", 1.0
REFUSE, FILL = FALLBACKS = ("refuse", "fill")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Entry [models.NAME] of a service file; the module's docstring explains each field."""

    name: str
    active: str
    versions: Mapping[str, Path]
    fallback: str = option(one_of(FALLBACKS), REFUSE)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Caller:
    """Entry [callers.NAME] of a service file; the module's docstring explains each field."""

    name: str
    token: str = ""
    certificate: Read | None = None
    models: tuple[str, ...] | None = None
    records: int | None = option(whole(0), None)
    rate: float | None = option(require_positive, None)


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """Contents of a service file; the module's docstring explains each field."""

    path: Path
    party: str
    models: Mapping[str, ServedModel]
    callers: Mapping[str, Caller]
    data: Mapping[str, str]
    policies: Mapping[str, Path]
    listen: str = LISTEN
    federation: Path | None = None
    identity: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    metrics: str | None = None
    answer_timeout_s: float = option(require_positive, ANSWER_SECONDS)


def read_service(path: str | Path) -> ServiceFile:
    """Read a service file. Raises SpecificationError, which names the faulty entry."""
    path = Path(path).expanduser().absolute()
    where, folder = f"the service file {path.name!r}: ", path.parent
    plain = read_toml(path, "service file", number=FORMAT, shows=True)

    def refuse(entry: str, why: str) -> NoReturn:
        raise SpecificationError(f"{where}{entry} {why}")

    if "path" in plain:
        refuse("path", "is unknown")
    file: ServiceFile = built(ServiceFile, plain | {"path": str(path)}, where)

    def placed(given: Any) -> Any:
        return None if given is None else folder / Path(given).expanduser()

    def of_table(key: str, kind: Any) -> dict[str, Any]:
        """Return {name: object of this kind}, built from the tables under `key`, one per name."""
        tables = plain[key]
        if not isinstance(tables, Mapping) or not tables:
            refuse(key, "must be a table that contains at least one table, or the service could answer nothing")
        for name, one in tables.items():
            if isinstance(one, Mapping) and "name" in one:
                refuse(f"{key}.{name}.name", "is unknown: the name stands in the table's head")
        return {
            name: built(kind, {"name": name, **one} if isinstance(one, Mapping) else one, f"{where}{key}.{name}.")
            for name, one in tables.items()
        }

    models, callers = of_table("models", ServedModel), of_table("callers", Caller)
    for name, model in models.items():
        for named in (name, *model.versions):
            if not _NAME.fullmatch(named):
                refuse(f"models.{name}", f"needs names of at most 64 letters, digits, '.', '-' and '_', not {named!r}")
        if model.active not in model.versions:
            known = ", ".join(model.versions) or "none is given"
            refuse(f"models.{name}.active", f"must be one of the versions: {known}")
        models[name] = replace(model, name=name, versions={v: placed(own) for v, own in model.versions.items()})
    for name, caller in callers.items():
        check_name(name, "a caller")
        if caller.token and not _HASH.fullmatch(caller.token):
            refuse(f"callers.{name}.token", "must be the SHA-256 of the token, 64 hexadecimal digits in lower case")
        if not caller.token and caller.certificate is None:
            refuse(f"callers.{name}", "has neither token nor certificate: make a token with vfl identity token")
        read = None if caller.certificate is None else read_public(folder / Path(caller.certificate).expanduser())
        callers[name] = replace(caller, name=name, certificate=read)
    for party in file.data:
        if party not in file.policies:
            refuse(f"policies.{party}", "is missing: its data are served under its owner's policy only")
    if file.party not in file.data:
        refuse(f"data.{file.party}", "is missing: the service looks up its own records there")
    check_address(file.listen, f"{where}listen")
    if file.metrics is not None:
        check_address(file.metrics, f"{where}metrics")
    if (file.certificate is None) != (file.key is None):
        refuse("certificate", "and key belong together: give both, or none")
    if file.certificate is None and file.listen.rpartition(":")[0] not in LOOPBACK:
        refuse("certificate", f"and key are missing: at {file.listen} tokens and scores travel over HTTPS only")
    return replace(
        file,
        path=path,
        models=models,
        callers=callers,
        data={party: own if ADDRESS in own else str(placed(own)) for party, own in file.data.items()},
        policies={party: placed(own) for party, own in file.policies.items()},
        **{name: placed(getattr(file, name)) for name in ("federation", "identity", "certificate", "key")},
    )
