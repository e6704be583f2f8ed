"""Job files: TOML that holds a job without loss of information, and the job's environment, which is not part of its digest.

format = 1
name = "credit"
loss = "logistic"
id = "customer"        column by which records are aligned; or [id] bank = "customer", telco = "subscriber";
                       or id = { column = ["name", "born"], kind = ["text", "date"], normalise = ["casefold"] }
[partition]            parties = {bank = ["income"], telco = ["calls"]}, label = ["bank", "default"]
                       exposure = "years" (for counts: a column of the label's owner, with bounds above 0)
                       weight = "amount" (a column of the label's owner, with bounds from 0 on; a record of weight s counts
                       s/HIGH times)
sparse = ["telco"]     (parties whose columns are only scaled by a factor)
[bounds]               income = [0, 2e5], "telco.*" = [0, 1] (telco's columns without own bounds; "*": those of all parties)
[loss]                 kind = "huber", width = 2.0 (instead of loss = NAME, for a loss with options)
[columns.calls]        fill = 0 (value for missing cells)
[columns.city]         kind = "categorical", categories = ["Bern", "Basel"], missing = "indicator" (or: kind = "dropped")
[penalty]              kind = "l2", strength = 1e-4
precision = "float32"  (columns in half the memory)
intervals = true       (standard errors of the coefficients)
[privacy]              epsilon = 1.0               (privacy = "none" trains without privacy)
[evaluation]           holdout = 0.2               (fraction of the records that are kept out of training)
[evaluation.fairness]  group = "sex"               (a feature, or one of [partition.groups] bank = ["sex"])
[solver]               kind = "SkGD", passes = 10
[trust]                dealer = "separate", collude = 1 (instead of trust = "secure"; "none": two parties without dealer)
[data]                 bank = "bank.parquet"       environment: files that the parties' actors open
                       telco = "warehouse://calls" environment: or address of a database, object store or installed source
[data.shop]            path = "shop.csv"           environment: or a text file with its format (vfl.Csv):
                       delimiter = ";", decimal = ",", thousands = ".", encoding = "cp1252", quote = "'", missing = ["?"]
[simulation]           table = "all.csv"           environment: or one table, split by the partition
[ray]                  address = "auto", shards = 4  environment: cluster and nodes (vfl.job.site)
[ray.resources]        bank = "node:10.0.0.7"      environment: resource of a party's node, if it is not party:NAME
[faults]               on_party_lost = "wait"      environment: policy for lost parties (vfl.job.site)
[policy]               bank = "bank-policy.toml"   environment: each owner's policy
[alignment]            num_cpus = 4                   environment: cores of each party, for alignment and training
[alignment.index]      bank = "bank-index"         environment: folder for the party's aligned rows
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.base.arguments import moved, named
from vfl.base.csv import Csv, formatted
from vfl.base.documents import FORMS, built, check_types, is_format, parse_toml, read_toml
from vfl.base.losses import LOSSES
from vfl.base.partition import FeaturePartition
from vfl.base.penalties import PENALTIES
from vfl.base.schema import declarations
from vfl.base.writing import write_whole
from vfl.crypto.identifiers import Id
from vfl.errors import JobFileError, SpecificationError, nearest
from vfl.job.environment import Environment, Ledger, path_of
from vfl.job.job import Job
from vfl.job.plain import FORMAT
from vfl.job.site import RAY_KEYS, Faults, Ray
from vfl.job.start import Start
from vfl.measures.specification import Evaluation, Fairness
from vfl.privacy.noise import SeededNoise
from vfl.privacy.specification import Privacy
from vfl.secure.roles import DEALER, Secure
from vfl.solvers import SOLVERS, SkGD
from vfl.solvers.blocks.options import Details

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "job.toml"
EXAMPLE = "example:"
ADDRESS = "://"
DUCKDB = "duckdb://"
"""Prefix of the address of a DuckDB file. A relative path after the prefix starts at the job file's folder."""
TOP = "the job file"
ENVIRONMENT = ("data", "simulation", "ray", "ledger", "policy", "alignment", "faults")


def _known(given: Iterable[str], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in given:
        if key not in known:
            homes = [home for home in _homes().get(key, ()) if home != where]
            belongs = f"; it belongs to {' or '.join(homes)}" if homes else ""
            belongs = belongs or moved(key)
            if homes and homes[0] != TOP:
                belongs += f" (--set {_dotted(homes[0], key)}=...)"
            close = "" if belongs else nearest(key, known)
            raise JobFileError(f"unknown key {key!r} in {where}{close}{belongs}; known: {', '.join(known)}")


def _homes() -> dict[str, list[str]]:
    """Return {key: tables that may hold the key}, for the error about misplaced keys."""
    homes: dict[str, list[str]] = {}
    kinds = [("[privacy]", (Privacy,)), ("[evaluation]", (Evaluation,)), ("[solver]", SOLVERS.values())]
    kinds += [("[solver.details]", (Details,))]
    kinds += [("[evaluation.fairness]", (Fairness,)), ("[trust]", (Secure,)), ("[start]", (Start,))]
    kinds += [("[penalty]", PENALTIES.values()), ("[ray]", (Ray,)), ("[faults]", (Faults,)), (TOP, (Job,))]
    for where, members in kinds:
        for key in dict.fromkeys(f.name for kind in members for f in dataclasses.fields(kind) if f.init):
            if where != "[ray]" or key in RAY_KEYS:
                homes.setdefault(key, []).append(where)
    return homes


def homes_of(key: str) -> list[str]:
    """Return the dotted form of a key for each table that may hold it, such as 'privacy.epsilon' for 'epsilon'."""
    if key in ("solver", "penalty"):
        return [f"{key}.kind"]
    return [_dotted(home, key) for home in _homes().get(key, ())]


def _dotted(home: str, key: str) -> str:
    return key if home == TOP else f"{home.strip('[]')}.{key}"


def _table(plain: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = plain.get(key, {})
    if isinstance(value, str) and key in ("solver", "penalty"):
        return {"kind": value}
    if not isinstance(value, Mapping):
        kind = next((name for types, name in FORMS.values() if isinstance(value, types)), "a list")
        raise JobFileError(f"[{key}] must be a table, not {kind}")
    return dict(value)


def _of_kind(plain: dict[str, Any], kinds: Mapping[str, Any], where: str) -> Any:
    kind = plain.pop("kind", None)
    if kind is None:
        raise JobFileError(f"{where} needs a kind; known: {', '.join(kinds)}")
    return _built(named("kind", str(kind), kinds, f" in {where}", JobFileError), plain, where)


def _built(kind: Any, plain: Mapping[str, Any], where: str) -> Any:
    """Return kind(**plain) for a dataclass; JobFileError names a key that is unknown, missing or of the wrong type."""
    _known(plain, (f.name for f in dataclasses.fields(kind)), where)
    return built(kind, plain, f"{where}: ", JobFileError)


def decode(plain: Mapping[str, Any], solvers: Mapping[str, Any] = SOLVERS) -> Job:
    """Return the job from its plain form. For an unknown key, JobFileError names the nearest known keys.

    solvers : {name: class} of the solvers that the job may name.
    """
    plain = dict(plain)
    version = plain.pop("format", None)
    if not is_format(version, FORMAT):
        raise JobFileError(f"this vfl reads job files with format = {FORMAT}, not {version!r}")
    _known(plain, (f.name for f in dataclasses.fields(Job) if f.init), TOP)
    if "partition" not in plain:
        raise JobFileError("the job file has no [partition]: name the parties, their columns and the label")
    if "privacy" not in plain:
        raise JobFileError('the job file has no [privacy]: give epsilon, or privacy = "none"')
    plain["partition"] = FeaturePartition.from_dict(_table(plain, "partition"))
    if "penalty" in plain:
        plain["penalty"] = _of_kind(_table(plain, "penalty"), PENALTIES, "[penalty]")
    if "solver" in plain:
        solver = {"kind": SkGD.name} | _table(plain, "solver")
        if isinstance(solver.get("details"), Mapping):
            solver["details"] = _built(Details, solver["details"], "[solver.details]")
        plain["solver"] = _of_kind(solver, solvers, "[solver]")
    if plain["privacy"] == "none":
        plain["privacy"] = None
    else:
        if isinstance(plain["privacy"], str):
            raise JobFileError(f'privacy is a table, or "none" to train without, not {plain["privacy"]!r}')
        privacy = _table(plain, "privacy")
        if "noise" in privacy:
            privacy["noise"] = _built(SeededNoise, _table(privacy, "noise"), "[privacy.noise]")
        plain["privacy"] = _built(Privacy, privacy, "[privacy]")
    if "bounds" in plain:
        plain["bounds"] = _table(plain, "bounds")
    if isinstance(plain.get("evaluation"), Mapping) and "fairness" in plain["evaluation"]:
        fairness = _built(Fairness, _table(plain["evaluation"], "fairness"), "[evaluation.fairness]")
        plain["evaluation"] = {**plain["evaluation"], "fairness": fairness}
    for key, kind in (("evaluation", Evaluation), ("start", Start)):
        if key in plain:
            plain[key] = _built(kind, _table(plain, key), f"[{key}]")
    if "columns" in plain:
        plain["columns"] = declarations(_table(plain, "columns"))
    if "classes" in plain:
        if not isinstance(plain["classes"], list):
            raise JobFileError(
                f"the job file: classes are a list of two labels, the negative one first, not {plain['classes']!r}"
            )
        plain["classes"] = tuple(tuple(c) if isinstance(c, list) else c for c in plain["classes"])
    if isinstance(plain.get("trust"), Mapping):
        plain["trust"] = _built(Secure, plain["trust"], "[trust]")
    if isinstance(named := plain.get("id"), Mapping) and "column" in {*named} - {*plain["partition"].parties}:
        plain["id"] = _built(Id, named, "[id]")
    if isinstance(plain.get("loss"), Mapping):
        plain["loss"] = _of_kind(_table(plain, "loss"), LOSSES, "[loss]")
    elif not isinstance(plain.get("loss", ""), str):
        raise JobFileError(f"the job file: loss must be text, not {plain['loss']!r}")
    check_types(Job, plain, f"{TOP}: ", JobFileError)
    return Job(**plain)


def write(job: Job, path: Path) -> None:
    """Write a job file. Raises OutputError."""
    write_whole(path, job.to_toml())


_NAME = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^.="']+)"""
_ASSIGNMENT = re.compile(rf"(?P<key>{_NAME}(?:\.{_NAME})*)=(?P<value>.*)", re.DOTALL)


def override(plain: dict[str, Any], assignments: Iterable[str]) -> None:
    """Apply assignments 'dotted.key=value' in place. Names may be quoted as in TOML; a value that is not valid TOML is text.

    An empty value ('key=') removes the key, since TOML has no null. Then the key's default applies.
    """
    for assignment in assignments:
        found = _ASSIGNMENT.fullmatch(assignment)
        if found is None:
            raise SpecificationError(f"--set takes key=value, for instance --set privacy.epsilon=2, not {assignment!r}")
        key, text = found["key"], found["value"].strip()
        try:
            value = parse_toml(f"value = {text}")["value"]
        except ValueError:
            value = text
        *tables, last = map(_unquoted, re.findall(_NAME, key))
        target = plain
        for name in tables:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise SpecificationError(f"--set {key}: {name!r} is not a table; remove it first with --set {name}=")
        if text:
            target[last] = value
        else:
            target.pop(last, None)


def _unquoted(name: str) -> str:
    """Return a name without its quotes. A name that TOML cannot read stays as it is."""
    try:
        return str(parse_toml(f"name = {name}")["name"]) if name[0] in "\"'" else name
    except ValueError:
        return name


def _environment(plain: dict[str, Any], folder: Path) -> Environment:
    data, simulation, ray, ledger, policies, alignment, faults = (_table(plain, key) for key in ENVIRONMENT)
    indexes = _table(alignment, "index")
    if "holdout" in simulation:
        raise JobFileError("a hold-out is part of the job: move holdout from [simulation] to [evaluation]")
    _known(simulation, ("table",), "[simulation]")
    if isinstance(simulation.get("table"), Mapping):
        simulation["table"] = _source(simulation["table"], "[simulation.table]")
    if "resources" in ray:
        ray["resources"] = _table(ray, "resources")
    _known(ray, RAY_KEYS, "[ray]")
    kept = _built(Ledger, ledger, "[ledger]")
    _known(alignment, ("num_cpus", "index"), "[alignment]")
    check_types(Ray, {k: v for k, v in alignment.items() if k == "num_cpus"}, "[alignment]: ", JobFileError)
    if not isinstance(simulation.get("table"), str | Csv | None):
        raise JobFileError(f"[simulation] table must be a path, not {simulation['table']!r}")
    data = {party: _source(source, f"[data.{party}]") for party, source in data.items()}
    for key, paths in (("policy", policies), ("alignment.index", indexes)):
        for party, path in paths.items():
            if not isinstance(path, str):
                raise JobFileError(f"[{key}] {party} must be a path")
    table = simulation.get("table")
    return Environment(
        data={party: _placed(source, folder) for party, source in data.items()},
        table=None if table is None else _placed(table, folder),
        policies={party: str(folder / path) for party, path in policies.items()},
        indexes={party: str(folder / path) for party, path in indexes.items()},
        ledger=kept if kept.path is None else dataclasses.replace(kept, path=str(folder / kept.path)),
        site=dataclasses.replace(
            _built(Ray, ray, "[ray]"), num_cpus=alignment.get("num_cpus"), faults=_built(Faults, faults, "[faults]")
        ),
    )


def _source(plain: Any, where: str) -> str | Csv:
    """Return the source that a job file names: a path, or a text file with its format."""
    if isinstance(plain, str):
        return plain
    if not isinstance(plain, Mapping) or not isinstance(plain.get("path"), str):
        raise JobFileError(f"{where} must be a path, or a table with a path and the format of its text")
    try:
        return formatted(plain["path"], {key: value for key, value in plain.items() if key != "path"})
    except SpecificationError as error:
        raise JobFileError(f"{where}: {error}") from None


def _placed(source: str | Csv, folder: Path) -> str | Csv:
    """Return a source whose relative path starts at the job file's folder."""
    path = path_of(source)
    if path.startswith(DUCKDB):
        path = DUCKDB + str(folder / path.removeprefix(DUCKDB))
    elif ADDRESS not in path and not path.startswith(EXAMPLE):
        path = str(folder / path)
    return dataclasses.replace(source, path=path) if isinstance(source, Csv) else path


def read(
    path: str | Path, assignments: Iterable[str] = (), *, follow: bool = True, folder: Path | None = None
) -> tuple[Job, Environment]:
    """Read a job file. Relative paths in it and in the assignments start at `folder`; None takes the file's folder.

    follow : as for vfl.base.documents.
    """
    path = Path(path)
    plain = read_toml(path, "job file", error=JobFileError, follow=follow, shows=True)
    override(plain, assignments)
    _known(plain, (*(f.name for f in dataclasses.fields(Job) if f.init), *ENVIRONMENT, "format"), TOP)
    environment = _environment(plain, folder or path.resolve().parent)
    for key in ENVIRONMENT:
        plain.pop(key, None)
    job = decode(plain)
    _known(environment.data, job.partition.parties, "[data]")
    _known(environment.policies, job.partition.parties, "[policy]")
    _known(environment.indexes, job.partition.parties, "[alignment.index]")
    dealer = (DEALER,) if job.dealer else ()
    _known(environment.site.resources, (*job.partition.parties, *dealer), "[ray.resources]")
    return job, environment
