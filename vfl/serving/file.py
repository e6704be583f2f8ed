"""The service file: models and their versions, data, callers, addresses.

format = 1
party = "bank"                    the party that adds up: the label party of the models
listen = "127.0.0.1:8080"         address of the service; another one than loopback needs `certificate` and `key`
federation = "scoring.toml"       in which this party is the coordinator; left out: the data of all parties are below
identity = "bank.key"             left out: PARTY.key beside the federation file
certificate, key                  PEM files for HTTPS
metrics = "127.0.0.1:9464"        Prometheus metrics; left out: none
answer_seconds = 1.0              limit for the answer to one request

[data]                            {party: file or address}: of this party, and of others whose data are here
[policies]                        {party: policy file} of the same parties

[models.credit]
active = "2026-11"                version that answers requests which name none
versions = { "2026-11" = "runs/credit" }
fallback = "refuse"               for a party that is away: refuse, or "fill": its part of a record with missing cells only
sources = { telco = "new" }       names that the other parties gave their sources

[callers.branch]
token = "9f86d0…"                 SHA-256 of a bearer token, hex (vfl identity token)
certificate = "branch.pem"        client certificate (vfl identity new), instead of a token or beside it; over HTTPS only
models = ["credit"]               left out: all
records = 10000                   per day (UTC); left out: any number
rate = 50.0                       records per second; left out: any number

Paths start at the file's folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.errors import SpecificationError, nearest
from vfl.federation.certificate import check_name
from vfl.federation.file import check_address
from vfl.federation.identity import read_public
from vfl.job.file import ADDRESS
from vfl.tables import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.federation.certificate import Read

FORMAT = 1
LISTEN, ANSWER_SECONDS = "127.0.0.1:8080", 1.0
REFUSE, FILL = FALLBACKS = ("refuse", "fill")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the service; the module's docstring explains each entry."""

    name: str
    active: str
    versions: Mapping[str, Path]
    fallback: str = REFUSE
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller of the service; the module's docstring explains each entry."""

    name: str
    token: str = ""
    certificate: Read | None = None
    models: tuple[str, ...] | None = None
    records: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """A service file; the module's docstring explains each entry."""

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
    answer_seconds: float = ANSWER_SECONDS


def read_service(path: str | Path) -> ServiceFile:
    """Read a service file. Raises SpecificationError, which names the entry."""
    path = Path(path).expanduser().absolute()
    return _Reader(path).read()


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path, self._where = path, f"the service file {path.name!r}"

    def read(self) -> ServiceFile:
        plain = read_toml(self._path, "service file", shows=True)
        known = ("format", *(name for name in ServiceFile.__slots__ if name != "path"))
        self._known(plain, known, "")
        if plain.get("format") != FORMAT:
            raise self._error("format", f"must be {FORMAT}, which this vfl reads")
        party = self._text(plain, "party")
        if party is None:
            raise self._error("party", "is missing: name the party that adds up, the label party of the models")
        models = {name: self._model(name, one) for name, one in self._table(plain, "models").items()}
        callers = {name: self._caller(name, one) for name, one in self._table(plain, "callers").items()}
        if not models or not callers:
            raise self._error("models" if not models else "callers", "names none, so that nothing could be answered")
        data = {name: self._source(name, one) for name, one in self._table(plain, "data").items()}
        policies = {name: self._file(one, f"policies.{name}") for name, one in self._table(plain, "policies").items()}
        for name in data:
            if name not in policies:
                raise self._error(f"policies.{name}", "is missing: its data are served under its owner's policy only")
        if party not in data:
            raise self._error(f"data.{party}", "is missing: the service looks up its own records there")
        listen = self._text(plain, "listen") or LISTEN
        check_address(listen, f"{self._where}: listen")
        certificate, key = (self._path_of(plain, name) for name in ("certificate", "key"))
        if (certificate is None) != (key is None):
            raise self._error("certificate", "and key belong together: give both, or none")
        if certificate is None and listen.rpartition(":")[0] not in LOOPBACK:
            raise self._error(
                "certificate", f"and key are missing: at {listen} tokens and scores travel over HTTPS only"
            )
        metrics = self._text(plain, "metrics")
        if metrics is not None:
            check_address(metrics, f"{self._where}: metrics")
        return ServiceFile(
            self._path,
            party,
            models,
            callers,
            data,
            policies,
            listen,
            self._path_of(plain, "federation"),
            self._path_of(plain, "identity"),
            certificate,
            key,
            metrics,
            self._number(plain, "answer_seconds", "") or ANSWER_SECONDS,
        )

    def _model(self, name: str, plain: Any) -> ServedModel:
        where = f"models.{name}"
        plain = self._of_table(plain, where)
        self._known(plain, ServedModel.__slots__[1:], f"{where}.")
        self._named(name, where)
        versions = {
            version: self._file(folder, f"{where}.versions.{version}")
            for version, folder in self._of_table(plain.get("versions", {}), f"{where}.versions").items()
        }
        for version in versions:
            self._named(version, f"{where}.versions.{version}")
        active, fallback = plain.get("active"), plain.get("fallback", REFUSE)
        if active not in versions:
            raise self._error(
                f"{where}.active", f"must be one of the versions: {', '.join(versions) or 'none is given'}"
            )
        if fallback not in FALLBACKS:
            raise self._error(f"{where}.fallback", f"must be one of {', '.join(FALLBACKS)}")
        sources = self._of_table(plain.get("sources", {}), f"{where}.sources")
        if not all(isinstance(own, str) for own in sources.values()):
            raise self._error(f"{where}.sources", "must be a table of text")
        return ServedModel(name, active, versions, fallback, sources)

    def _caller(self, name: str, plain: Any) -> Caller:
        where = f"callers.{name}"
        plain = self._of_table(plain, where)
        self._known(plain, Caller.__slots__[1:], f"{where}.")
        check_name(name, "a caller")
        token, certificate = plain.get("token", ""), None
        if token and not (isinstance(token, str) and _HASH.fullmatch(token)):
            raise self._error(f"{where}.token", "must be the SHA-256 of the token, 64 hexadecimal digits in lower case")
        if "certificate" in plain:
            certificate = read_public(self._file(plain["certificate"], f"{where}.certificate"))
        if not token and certificate is None:
            raise self._error(where, "has neither token nor certificate: make a token with vfl identity token")
        models, records = plain.get("models"), plain.get("records")
        if models is not None and not (isinstance(models, list) and all(isinstance(own, str) for own in models)):
            raise self._error(f"{where}.models", "must be a list of text")
        if records is not None and (type(records) is not int or records < 0):
            raise self._error(f"{where}.records", "must be a whole number")
        listed = None if models is None else tuple(models)
        return Caller(name, token, certificate, listed, records, self._number(plain, "rate", f"{where}."))

    def _source(self, name: str, given: Any) -> str:
        if isinstance(given, str) and ADDRESS in given:
            return given
        return str(self._file(given, f"data.{name}"))

    def _file(self, given: Any, where: str) -> Path:
        if not isinstance(given, str) or not given:
            raise self._error(where, "must be a path, as text")
        return self._path.parent / Path(given).expanduser()

    def _path_of(self, plain: Mapping[str, Any], key: str) -> Path | None:
        return self._file(plain[key], key) if key in plain else None

    def _text(self, plain: Mapping[str, Any], key: str) -> str | None:
        if key in plain and not isinstance(plain[key], str):
            raise self._error(key, "must be text")
        return plain.get(key)

    def _number(self, plain: Mapping[str, Any], key: str, where: str) -> float | None:
        given = plain.get(key)
        if given is None:
            return None
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1e9:
            raise self._error(where + key, "must be a number above 0")
        return float(given)

    def _table(self, plain: Mapping[str, Any], key: str) -> dict[str, Any]:
        return self._of_table(plain.get(key, {}), key)

    def _of_table(self, plain: Any, where: str) -> dict[str, Any]:
        if not isinstance(plain, dict):
            raise self._error(where, "must be a table")
        return plain

    def _named(self, name: str, where: str) -> None:
        if not _NAME.fullmatch(name):
            raise self._error(where, "needs a name of at most 64 letters, digits, '.', '-' and '_'")

    def _known(self, plain: Mapping[str, Any], known: tuple[str, ...] | list[str], where: str) -> None:
        for key in plain:
            if key not in known:
                raise self._error(where + key, f"is unknown{nearest(key, known)}; known: {', '.join(known)}")

    def _error(self, key: str, why: str) -> SpecificationError:
        return SpecificationError(f"{self._where}: {key} {why}")
