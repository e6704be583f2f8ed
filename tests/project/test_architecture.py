"""The layering of imports, read from the sources with `ast`; each rule is also shown to catch a breach.

A rule is a function from the sources to a list of complaints. Imports inside functions count. Imports in TYPE_CHECKING blocks
count for circles of files alone.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("vfl", "coordinator", "parties")

# From the bottom up. A unit is a module or a package with all its content; a trailing * adds siblings with that prefix.
ROWS: tuple[tuple[str, ...], ...] = (
    (
        "vfl.types",
        "vfl.errors",
        "vfl.arguments",
        "vfl.version",
        "vfl.partition",
        "vfl.columns",
        "vfl.features",
        "vfl.schema",
        "vfl.holdout",
        "vfl.targets",
        "vfl.markup",
        "vfl.csv",
        "vfl.documents",
        "vfl.tables",
        "vfl.file_systems",
        "vfl.writing",
        "vfl.file_systems",
        "vfl.store",
    ),
    (
        "vfl.losses",
        "vfl.penalties",
        "vfl.security",
        "vfl.federation",
        "vfl.wire",
        "vfl.alignment",
        "vfl.kernels",
        "vfl.shards",
    ),
    ("vfl.privacy",),
    ("vfl.messages",),
    ("vfl.secure",),
    (
        "vfl.problem",
        "vfl.samplers",
        "vfl.solvers",
        "vfl.kinds",
        "vfl.evaluation",
        "vfl.job",
        "vfl.job.file",
        "vfl.planning",
        "vfl.certificate",
        "vfl.inference",
    ),
    ("coordinator", "parties"),
    ("vfl.launch", "vfl.examples", "vfl.tuning", "vfl.serving"),
    ("vfl.__main__", "vfl.cli", "vfl.estimators", "vfl.report", "vfl.ui", "vfl.auditing"),
)
APART = {("coordinator", "parties"), ("parties", "coordinator")}
# Scripts written like a user's; nothing imports them.
SCRIPTS = ("vfl.examples.companies", "vfl.examples.partitions", "vfl.examples.data_owner")
PUBLIC = ("vfl", "vfl.errors", "vfl.examples")

DRAWING = ("noise", "mechanisms", "keystream", "rounded_gaussian")
HEAVY = ("ray", "grpc", "numba", "scipy", "flint", "pyarrow", "sklearn", "pandas")
ACCOUNTING = ("accountants", "calibration", "gaussian_dp", "zcdp", "pld", "spending", "ledger", "private_selection")


@dataclass(frozen=True)
class Import:
    """One imported name: `target` is one of our modules if it exists, else the dotted name as written."""

    target: str
    line: int
    deferred: bool


@dataclass(frozen=True)
class Module:
    """One source file, with its imports at run time, and those in TYPE_CHECKING blocks."""

    name: str
    path: Path
    tree: ast.Module
    imports: list[Import] = field(default_factory=list)
    typed: list[Import] = field(default_factory=list)


def _guards_types(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _statements(node: ast.AST, *, deferred: bool = False) -> Iterator[tuple[ast.AST, bool | None]]:
    """Yield all nodes, each with True if it runs only inside a function, and None if only type checkers read it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _guards_types(child.test):
            yield from ((inner, None) for statement in child.body for inner in ast.walk(statement))
            for statement in child.orelse:
                yield statement, deferred
                yield from _statements(statement, deferred=deferred)
            continue
        inner = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, inner
        yield from _statements(child, deferred=inner)


def _written(module: Module) -> Iterator[tuple[str, tuple[str, ...], int, bool | None]]:
    """Yield (module as written, names imported from it, line, deferred; None for type checkers alone)."""
    package = module.name if module.path.stem == "__init__" else module.name.rpartition(".")[0]
    for node, deferred in _statements(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, (), node.lineno, deferred
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module or "") if part)
            yield source, tuple(alias.name for alias in node.names), node.lineno, deferred
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value, (), node.lineno, deferred


def read(root: Path) -> dict[str, Module]:
    """Read the three packages under root."""
    modules = {}
    for path in sorted(file for package in PACKAGES for file in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
    for module in modules.values():
        for source, names, line, deferred in _written(module):
            for target in {f"{source}.{name}" if f"{source}.{name}" in modules else source for name in names} or {
                source
            }:
                if deferred is None:
                    module.typed.append(Import(target, line, deferred=True))
                else:
                    module.imports.append(Import(target, line, deferred))
    return modules


def _under(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def unit_of(name: str) -> str | None:
    """Return the unit of ROWS that a module belongs to; None for a script."""
    if name in SCRIPTS:
        return None
    for unit in (unit for row in ROWS for unit in row):
        if _under(name, unit) or (unit.endswith("*") and name.startswith(unit[:-1])):
            return unit
    return None


def row_of(unit: str) -> int:
    """Return the row number of a unit."""
    return next(height for height, row in enumerate(ROWS) if unit in row)


def _at(module: Module, line: int) -> str:
    return f"{module.name}:{line}"


def arrows_upwards(modules: dict[str, Module]) -> list[str]:
    """Each module is in a row and imports from it or from below; coordinator and parties never import each other."""
    found = []
    for module in modules.values():
        unit = unit_of(module.name)
        if module.name == "vfl":  # it loads its names lazily, so it counts as the lowest row
            above = [i for i in module.imports if _ours(i.target) and unit_of(i.target) not in ROWS[0]]
            found += [f"{_at(module, i.line)} the facade imports {i.target}" for i in above]
            continue
        if module.name in SCRIPTS:
            inner = [i for i in module.imports if _ours(i.target) and i.target not in PUBLIC]
            found += [f"{_at(module, i.line)} a script imports {i.target}" for i in inner]
            continue
        if unit is None:
            found.append(f"{module.name} is in no row")
            continue
        for imported in module.imports:
            target = unit_of(imported.target)
            if target is None:
                if _ours(imported.target):
                    found.append(f"{_at(module, imported.line)} imports {imported.target}, which is in no row")
            elif row_of(target) > row_of(unit):
                found.append(f"{_at(module, imported.line)} imports upwards: {imported.target}")
            elif (unit, target) in APART:
                found.append(f"{_at(module, imported.line)} imports {imported.target}, across")
    return found


def _ours(name: str) -> bool:
    return any(_under(name, package) for package in PACKAGES)


def cycles(modules: dict[str, Module]) -> list[str]:
    """Units of one row do not import each other in a circle."""
    arrows: dict[str, set[str]] = {}
    for module in modules.values():
        unit = unit_of(module.name)
        targets = {unit_of(i.target) for i in module.imports} - {None, unit}
        if unit is not None:
            arrows.setdefault(unit, set()).update(t for t in targets if t is not None and row_of(t) == row_of(unit))

    def reached(unit: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(arrows.get(unit, ()))
        while waiting:
            if (nearer := waiting.pop()) not in seen:
                seen.add(nearer)
                waiting += arrows.get(nearer, ())
        return seen

    return [
        f"{unit} imports itself by way of {sorted(arrows[unit])}" for unit in sorted(arrows) if unit in reached(unit)
    ]


def _circles(modules: dict[str, Module]) -> list[set[str]]:
    """Return the strongly connected components of two or more files, counting deferred imports and annotations."""
    arrows = {
        name: {i.target for i in (*module.imports, *module.typed) if i.target in modules} - {name}
        for name, module in modules.items()
    }

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(arrows[name])
        while waiting:
            if (nearer := waiting.pop()) not in seen:
                seen.add(nearer)
                waiting += arrows[nearer]
        return seen

    reach = {name: reached(name) for name in arrows}
    circles: list[set[str]] = []
    for name in sorted(arrows):
        if name in reach[name] and not any(name in circle for circle in circles):
            circles.append({other for other in reach[name] if name in reach[other]})
    return circles


def circles_of_files(modules: dict[str, Module]) -> list[str]:
    """No files import each other in a circle, counting deferred imports and annotations."""
    return [f"files import each other in a circle: {', '.join(sorted(circle))}" for circle in _circles(modules)]


def third_parties(modules: dict[str, Module]) -> list[str]:
    """Only the kernels import Numba; only the actors, their transport and vfl.launch import Ray; only vfl.wire gRPC."""
    found = []
    for module in modules.values():
        for imported in module.imports:
            top = imported.target.split(".")[0]
            if top in ("numba", "llvmlite") and not module.name.startswith("vfl.kernels"):
                found.append(f"{_at(module, imported.line)} imports {top}")
            with_ray = _under(module.name, "vfl.launch") or module.name.endswith((".actor", ".ray_transport"))
            if top == "ray" and not with_ray:
                found.append(f"{_at(module, imported.line)} imports ray")
            if top in ("grpc", "google") and not _under(module.name, "vfl.wire"):
                found.append(f"{_at(module, imported.line)} imports {top}")
    return found


def bookkeeping_in_parties(modules: dict[str, Module]) -> list[str]:
    """Parties cannot import ledger, accountants or calibration; they draw noise from an event that they are given.

    Only parties.book may import the ledger. An owner's log of releases is a ledger of the same implementation, so that
    there is one chain, one exact sum and one durable store to trust. It decides nothing about noise.
    """
    barred = [f"vfl.privacy.{name}" for name in ("ledger", "accountants", "calibration", "gaussian_dp")]
    return [
        f"{_at(module, i.line)} imports {i.target}"
        for module in modules.values()
        for i in module.imports
        if _under(module.name, "parties")
        and any(_under(i.target, name) for name in barred)
        and not (module.name == "parties.book" and _under(i.target, "vfl.privacy.ledger"))
    ]


def halves_of_privacy(modules: dict[str, Module]) -> list[str]:
    """Drawing noise and accounting for it import the events only, not each other."""
    halves = {f"vfl.privacy.{name}": half for half in (DRAWING, ACCOUNTING) for name in half}

    def half_of(name: str) -> tuple[str, ...] | None:
        return next((half for prefix, half in halves.items() if _under(name, prefix)), None)

    return [
        f"{_at(module, i.line)} imports {i.target}"
        for module in modules.values()
        for i in module.imports
        if half_of(module.name) and half_of(i.target) and half_of(module.name) != half_of(i.target)
    ]


def reached_at_import(modules: dict[str, Module], name: str) -> set[str]:
    """Return our modules that importing one of them executes, packages included."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen or current not in modules:
            continue
        seen.add(current)
        parts = current.split(".")
        waiting += [".".join(parts[:k]) for k in range(1, len(parts))]
        waiting += [i.target for i in modules[current].imports if not i.deferred]
    return seen


def sklearn_in_actors(modules: dict[str, Module]) -> list[str]:
    """No module imported by an actor's process names scikit-learn, not even inside a function."""
    actors = [name for name in modules if name.endswith(".actor")]
    return [
        f"{_at(modules[name], i.line)} (reached from {actor}) imports {i.target}"
        for actor in actors
        for name in sorted(reached_at_import(modules, actor))
        for i in modules[name].imports
        if _under(i.target, "sklearn")
    ]


def cases_on_solvers(modules: dict[str, Module]) -> list[str]:
    """Only vfl.solvers distinguishes between solvers."""
    solvers = {
        node.name
        for module in modules.values()
        if _under(module.name, "vfl.solvers")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    found = []
    for module in modules.values():
        if _under(module.name, "vfl.solvers"):
            continue
        for node in ast.walk(module.tree):
            asked: list[ast.AST] = []
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                asked = list(node.args[1:])
            elif isinstance(node, ast.MatchClass):
                asked = [node.cls]
            elif isinstance(node, ast.Compare) and any(_is_type_call(side) for side in (node.left, *node.comparators)):
                asked = [node.left, *node.comparators]
            named = {getattr(n, "id", getattr(n, "attr", "")) for part in asked for n in ast.walk(part)}
            found += [f"{_at(module, node.lineno)} asks for {name}" for name in sorted(named & solvers)]
    return found


def _is_type_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "type" and len(node.args) == 1


RULES = (
    arrows_upwards,
    cycles,
    circles_of_files,
    third_parties,
    bookkeeping_in_parties,
    halves_of_privacy,
    sklearn_in_actors,
    cases_on_solvers,
)


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_sources_keep_every_rule(rule, modules):
    assert rule(modules) == []


BREACHES = [
    (arrows_upwards, {"vfl/losses.py": "from vfl.privacy import events", "vfl/privacy/events.py": ""}, "vfl.losses:1"),
    (arrows_upwards, {"vfl/errors.py": "def f():\n    import vfl.losses", "vfl/losses.py": ""}, "vfl.errors:2"),
    (arrows_upwards, {"vfl/errors.py": "import importlib\nimportlib.import_module('vfl.job')"}, "vfl.errors:2"),
    (arrows_upwards, {"vfl/losses.py": "from .privacy import events", "vfl/privacy/events.py": ""}, "vfl.losses:1"),
    (arrows_upwards, {"coordinator/a.py": "import vfl.launch.train"}, "coordinator.a:1"),
    (
        arrows_upwards,
        {"coordinator/a.py": "from parties.party import Party", "parties/party.py": ""},
        "coordinator.a:1",
    ),
    (arrows_upwards, {"parties/a.py": "import coordinator"}, "parties.a:1"),
    (arrows_upwards, {"vfl/novelty.py": ""}, "vfl.novelty is in no row"),
    (arrows_upwards, {"vfl/job.py": "from vfl import Result"}, "vfl.job:1"),
    (arrows_upwards, {"vfl/__init__.py": "from vfl.launch import train", "vfl/launch/train.py": ""}, "vfl:1"),
    (arrows_upwards, {"vfl/examples/data_owner.py": "import vfl.job", "vfl/job.py": ""}, "vfl.examples.data_owner:1"),
    (
        arrows_upwards,
        {"vfl/launch/a.py": "import vfl.examples.data_owner", "vfl/examples/data_owner.py": ""},
        "vfl.launch.a:1",
    ),
    (cycles, {"vfl/job.py": "def f():\n    from vfl import planning", "vfl/planning.py": "import vfl.job"}, "vfl.job"),
    (
        circles_of_files,
        {
            "vfl/job/a.py": "def f():\n    from vfl.job import b",
            "vfl/job/b.py": "from vfl.job import c",
            "vfl/job/c.py": "import vfl.job.a",
        },
        "files import each other in a circle: vfl.job.a, vfl.job.b, vfl.job.c",
    ),
    (third_parties, {"vfl/losses.py": "from numba import njit"}, "vfl.losses:1"),
    (third_parties, {"coordinator/states/margins.py": "def f():\n    import ray"}, "coordinator.states.margins:2"),
    (third_parties, {"parties/party.py": "import grpc"}, "parties.party:1"),
    (
        bookkeeping_in_parties,
        {"parties/p.py": "from vfl.privacy.ledger import fit", "vfl/privacy/ledger/fit.py": ""},
        "parties.p:1",
    ),
    (
        bookkeeping_in_parties,
        {"parties/book.py": "from vfl.privacy import accountants", "vfl/privacy/accountants.py": ""},
        "parties.book:1",
    ),
    (
        halves_of_privacy,
        {"vfl/privacy/noise.py": "from vfl.privacy import zcdp", "vfl/privacy/zcdp.py": ""},
        "vfl.privacy.noise:1",
    ),
    (
        sklearn_in_actors,
        {"parties/actor.py": "import vfl.job", "vfl/job.py": "def f():\n    import sklearn.svm"},
        "vfl.job:2",
    ),
    (
        cases_on_solvers,
        {"vfl/solvers/s.py": "class SkGD: ...", "vfl/planning.py": "isinstance(x, (int, m.SkGD))"},
        "vfl.planning:1",
    ),
    (
        cases_on_solvers,
        {"vfl/solvers/s.py": "class SkGD: ...", "vfl/planning.py": "match x:\n    case SkGD(): ..."},
        "vfl.planning:2",
    ),
    (cases_on_solvers, {"vfl/solvers/s.py": "class SkGD: ...", "vfl/planning.py": "type(x) is SkGD"}, "vfl.planning:1"),
]


@pytest.mark.parametrize(("rule", "sources", "complaint"), BREACHES)
def test_every_rule_catches_a_breach(rule, sources, complaint, tmp_path):
    _plant(tmp_path, sources)
    assert any(found.startswith(complaint) for found in rule(read(tmp_path)))


def test_circles_for_type_checkers_are_circles(tmp_path):
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vfl.job.b\n"
    _plant(tmp_path, {"vfl/job/a.py": guarded, "vfl/job/b.py": "import vfl.job.a"})
    assert circles_of_files(read(tmp_path)) == ["files import each other in a circle: vfl.job.a, vfl.job.b"]


def test_imports_for_type_checkers_are_allowed_but_not_their_else_branch(tmp_path):
    guarded = "import typing\nif typing.TYPE_CHECKING:\n    import vfl.job\nelse:\n    import vfl.planning\n"
    _plant(tmp_path, {"vfl/errors.py": guarded})
    assert arrows_upwards(read(tmp_path)) == ["vfl.errors:5 imports upwards: vfl.planning"]


def _plant(root: Path, sources: dict[str, str]) -> None:
    for name, text in sources.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _loaded_after(code: str) -> set[str]:
    """Run code in a fresh interpreter; return the top-level names of the modules that it imported."""
    report = "\nimport sys; print('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import vfl; dir(vfl)",
        "import vfl.cli; [vfl.cli.vfl.get_command(None, name) for name in vfl.cli.COMMANDS]",
        "from vfl.cli import vfl; vfl(['--help'], standalone_mode=False)",
        "from vfl.cli import vfl; vfl(['run', '--help'], standalone_mode=False)",
    ],
)
def test_import_and_help_load_nothing_heavy(code):
    assert _loaded_after(code) & set(HEAVY) == set()


def test_the_probe_sees_loaded_modules():
    assert "scipy" in _loaded_after("import scipy.special")


def _named_by_us() -> list[Path]:
    return [path for top in (*PACKAGES, "tests", "deploy", "docs") for path in sorted((ROOT / top).rglob("*.py"))]


def test_no_file_has_a_vague_name():
    vague = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc", "base2"}
    names = {path: {path.stem, *path.stem.split("_"), *path.relative_to(ROOT).parts} for path in _named_by_us()}
    assert [str(path) for path, words in names.items() if words & vague] == []
