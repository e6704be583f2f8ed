"""The layering of imports, read from the sources with `ast`; each rule is also shown to catch a breach.

A rule is a function from the sources to a list of complaints. Imports inside functions count. Imports in TYPE_CHECKING blocks
count for the order of packages and for circles of files.
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

# From the bottom up: each package imports its own files and packages before it, annotations included.
LAYERS = (
    "vfl.errors",
    "vfl.base",
    "vfl.kernels",
    "vfl.privacy",
    "vfl.crypto",
    "vfl.queries",
    "vfl.secure",
    "vfl.solvers",
    "vfl.measures",
    "vfl.job",
    "vfl.planning",
    "vfl.network",
    "parties",
    "coordinator",
    "vfl.examples",
    "vfl.launch",
    "vfl.apps",
    "vfl.__main__",
)
APART = {("coordinator", "parties")}
# Public modules that only name what other modules define; nothing but a user's code imports them.
FACADES = {f"vfl.{name}" for name in ("columns", "federation", "losses", "penalties", "releases", "sklearn")}
FILES = {"__init__.py", "__init__.pyi", "__main__.py", "errors.py", "version.py", "py.typed"} | {
    f"{name.removeprefix('vfl.')}.py" for name in FACADES
}
MOST = 14
"""Largest number of folders in vfl/."""
# Scripts written like a user's; nothing imports them.
SCRIPTS = ("vfl.examples.companies", "vfl.examples.partitions", "vfl.examples.data_owner")
PUBLIC = ("vfl", "vfl.errors", "vfl.examples", "vfl.solvers", *FACADES)

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


def layer_of(name: str) -> str | None:
    """Return the layer that a module belongs to; None for a script, and for modules that stand in no layer."""
    return None if name in SCRIPTS else next((layer for layer in LAYERS if _under(name, layer)), None)


def _at(module: Module, line: int) -> str:
    return f"{module.name}:{line}"


def arrows_upwards(modules: dict[str, Module]) -> list[str]:
    """Each module is in a layer and imports from it or from layers below; coordinator and parties never import each other."""
    found = []
    for module in modules.values():
        layer = layer_of(module.name)
        if module.name in ("vfl", "vfl.version"):  # the facade loads its names lazily
            above = [i for i in module.imports if _ours(i.target) and i.target != "vfl.version"]
            found += [f"{_at(module, i.line)} the facade imports {i.target}" for i in above]
            continue
        if module.name in FACADES:
            own = {id(node) for node in module.tree.body[1:] if isinstance(node, ast.ImportFrom)}
            found += [
                f"{_at(module, node.lineno)} is more than a name"
                for node in module.tree.body[1:]
                if id(node) not in own
            ]
            continue
        if module.name in SCRIPTS:
            inner = [i for i in module.imports if _ours(i.target) and i.target not in PUBLIC]
            found += [f"{_at(module, i.line)} a script imports {i.target}" for i in inner]
            continue
        if layer is None:
            found.append(f"{module.name} is in no layer")
            continue
        for imported in (*module.imports, *module.typed):
            target = layer_of(imported.target)
            if imported.target == "vfl.version":
                continue
            if target is None:
                if _ours(imported.target):
                    found.append(f"{_at(module, imported.line)} imports {imported.target}, which is in no layer")
            elif (layer, target) in APART:
                found.append(f"{_at(module, imported.line)} imports {imported.target}, across")
            elif LAYERS.index(target) > LAYERS.index(layer):
                found.append(f"{_at(module, imported.line)} imports upwards: {imported.target}")
    return found


def _ours(name: str) -> bool:
    return any(_under(name, package) for package in PACKAGES)


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
    """Only the kernels import Numba; only the actors, their transport and vfl.launch import Ray; only vfl.network.wire gRPC."""
    found = []
    for module in modules.values():
        for imported in module.imports:
            top = imported.target.split(".")[0]
            if top in ("numba", "llvmlite") and not module.name.startswith("vfl.kernels"):
                found.append(f"{_at(module, imported.line)} imports {top}")
            with_ray = _under(module.name, "vfl.launch") or module.name.endswith((".actor", ".ray_transport"))
            if top == "ray" and not with_ray:
                found.append(f"{_at(module, imported.line)} imports ray")
            if top in ("grpc", "google") and not _under(module.name, "vfl.network.wire"):
                found.append(f"{_at(module, imported.line)} imports {top}")
    return found


def bookkeeping_in_parties(modules: dict[str, Module]) -> list[str]:
    """Parties cannot import ledger, accountants or calibration; they draw noise from an event that they are given.

    Only parties.ledger may import the ledger. An owner's log of releases is a ledger of the same implementation, so that
    there is one chain, one exact sum and one durable store to trust. It decides nothing about noise.
    """
    barred = [f"vfl.privacy.{name}" for name in ("ledger", "accountants", "calibration", "gaussian_dp")]
    return [
        f"{_at(module, i.line)} imports {i.target}"
        for module in modules.values()
        for i in module.imports
        if _under(module.name, "parties")
        and any(_under(i.target, name) for name in barred)
        and not (module.name == "parties.ledger" and _under(i.target, "vfl.privacy.ledger"))
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
    (arrows_upwards, {"vfl/base/a.py": "from vfl.privacy import b", "vfl/privacy/b.py": ""}, "vfl.base.a:1"),
    (arrows_upwards, {"vfl/errors.py": "def f():\n    import vfl.base.a", "vfl/base/a.py": ""}, "vfl.errors:2"),
    (arrows_upwards, {"vfl/errors.py": "import importlib\nimportlib.import_module('vfl.job')"}, "vfl.errors:2"),
    (arrows_upwards, {"vfl/base/a.py": "from ..privacy import b", "vfl/privacy/b.py": ""}, "vfl.base.a:1"),
    (
        arrows_upwards,
        {
            "vfl/base/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vfl.job.b",
            "vfl/job/b.py": "",
        },
        "vfl.base.a:3",
    ),
    (arrows_upwards, {"coordinator/a.py": "import vfl.launch.train"}, "coordinator.a:1"),
    (
        arrows_upwards,
        {"coordinator/a.py": "from parties.party import Party", "parties/party.py": ""},
        "coordinator.a:1",
    ),
    (arrows_upwards, {"parties/a.py": "import coordinator"}, "parties.a:1"),
    (arrows_upwards, {"vfl/novelty.py": ""}, "vfl.novelty is in no layer"),
    (arrows_upwards, {"vfl/job/a.py": "from vfl import Result"}, "vfl.job.a:1"),
    (arrows_upwards, {"vfl/__init__.py": "from vfl.launch import train", "vfl/launch/train.py": ""}, "vfl:1"),
    (
        arrows_upwards,
        {"vfl/examples/data_owner.py": "import vfl.job.a", "vfl/job/a.py": ""},
        "vfl.examples.data_owner:1",
    ),
    (
        arrows_upwards,
        {"vfl/launch/a.py": "import vfl.examples.data_owner", "vfl/examples/data_owner.py": ""},
        "vfl.launch.a:1",
    ),
    (
        circles_of_files,
        {
            "vfl/job/a.py": "def f():\n    from vfl.job import b",
            "vfl/job/b.py": "from vfl.job import c",
            "vfl/job/c.py": "import vfl.job.a",
        },
        "files import each other in a circle: vfl.job.a, vfl.job.b, vfl.job.c",
    ),
    (third_parties, {"vfl/base/a.py": "from numba import njit"}, "vfl.base.a:1"),
    (
        third_parties,
        {"coordinator/states/linear_predictors.py": "def f():\n    import ray"},
        "coordinator.states.linear_predictors:2",
    ),
    (third_parties, {"parties/party.py": "import grpc"}, "parties.party:1"),
    (
        bookkeeping_in_parties,
        {"parties/p.py": "from vfl.privacy.ledger import fit", "vfl/privacy/ledger/fit.py": ""},
        "parties.p:1",
    ),
    (
        bookkeeping_in_parties,
        {"parties/ledger.py": "from vfl.privacy import accountants", "vfl/privacy/accountants.py": ""},
        "parties.ledger:1",
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


def test_imports_for_type_checkers_do_not_run_but_those_of_their_else_branch_do(tmp_path):
    guarded = "import typing\nif typing.TYPE_CHECKING:\n    import vfl.job\nelse:\n    import vfl.planning\n"
    _plant(tmp_path, {"vfl/errors.py": guarded})
    assert [i.target for i in read(tmp_path)["vfl.errors"].imports] == ["typing", "vfl.planning"]


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
        "import vfl.apps.cli; [vfl.apps.cli.vfl.get_command(None, name) for name in vfl.apps.cli.COMMANDS]",
        "from vfl.apps.cli import vfl; vfl(['--help'], standalone_mode=False)",
        "from vfl.apps.cli import vfl; vfl(['run', '--help'], standalone_mode=False)",
    ],
)
def test_import_and_help_load_nothing_heavy(code):
    assert _loaded_after(code) & set(HEAVY) == set()


def test_the_probe_sees_loaded_modules():
    assert "scipy" in _loaded_after("import scipy.special")


def _named_by_us() -> list[Path]:
    return [path for top in (*PACKAGES, "tests", "deploy", "docs") for path in sorted((ROOT / top).rglob("*.py"))]


def test_vfl_has_few_packages_and_each_says_what_is_in_it():
    entries = {path.name: path for path in (ROOT / "vfl").iterdir() if path.name != "__pycache__"}
    folders = {name for name, path in entries.items() if path.is_dir()}
    assert set(entries) - folders == FILES
    assert len(folders) <= MOST
    assert {f"vfl.{name}" for name in folders} <= set(LAYERS)
    docs = {name: ast.get_docstring(ast.parse((entries[name] / "__init__.py").read_text("utf-8"))) for name in folders}
    assert [name for name, doc in docs.items() if doc is None or len(doc.splitlines()) < 3] == []


def test_no_file_has_a_vague_name():
    vague = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc", "base2"}
    names = {path: {path.stem, *path.stem.split("_"), *path.relative_to(ROOT).parts} for path in _named_by_us()}
    assert [str(path) for path, words in names.items() if words & vague] == []
