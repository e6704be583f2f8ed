"""The shipped distribution: three typed packages, a console script, and the examples as package files."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
import tomllib
import types
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import vfl
from vfl.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("vfl", "coordinator", "parties")


@pytest.fixture(scope="module")
def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_three_typed_packages_come_from_one_distribution(pyproject):
    assert tuple(pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == PACKAGES
    for package in PACKAGES:
        assert (ROOT / package / "__init__.py").is_file()
        assert (ROOT / package / "py.typed").is_file()


def test_every_folder_with_sources_is_a_package():
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_console_script_can_be_called(pyproject):
    module, _, attribute = pyproject["project"]["scripts"]["vfl"].partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_the_version_is_defined_once(pyproject):
    assert "version" in pyproject["project"]["dynamic"]
    home = ROOT / pyproject["tool"]["hatch"]["version"]["path"]
    assigned = [node for node in ast.parse(home.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign)]
    assert [ast.literal_eval(node.value) for node in assigned] == [__version__] == [vfl.__version__]


def test_the_installed_distribution_is_this_one():
    installed = importlib.metadata.distribution("vfl")
    assert installed.version == __version__
    assert [(e.name, e.value) for e in installed.entry_points if e.group == "console_scripts"] == [
        ("vfl", "vfl.apps.cli:main")
    ]


def test_readme_licence_and_citation_exist(pyproject):
    named = [pyproject["project"]["readme"], *pyproject["project"]["license-files"], "CHANGELOG.md", "SECURITY.md"]
    assert [name for name in named if not (ROOT / name).is_file() or not (ROOT / name).stat().st_size] == []


def test_the_changelog_knows_the_version():
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line[:3] == "## "]
    assert headings[0].startswith("## [Unreleased]") or __version__ in headings[0]


class TestLock:
    """The lock file for development, made by `uv lock`."""

    TEXT = (ROOT / "uv.lock").read_text(encoding="utf-8")

    def test_it_matches_pyproject(self, pyproject):
        """If this fails, run `uv lock` after the change of the dependencies."""
        (ours,) = [package for package in tomllib.loads(self.TEXT)["package"] if package["name"] == "vfl"]
        locked = {(entry["name"], entry.get("marker")) for entry in ours["metadata"]["requires-dist"]}
        wanted = {(Requirement(text).name, None) for text in pyproject["project"]["dependencies"]} | {
            (Requirement(text).name, f"extra == '{extra}'")
            for extra, texts in pyproject["project"]["optional-dependencies"].items()
            for text in texts
        }
        assert locked == wanted

    def test_it_names_only_the_public_index(self):
        assert set(re.findall(r'"[a-z+]+://([^/"]+)', self.TEXT)) == {"pypi.org", "files.pythonhosted.org"}


def test_the_citation_names_the_version():
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited == [__version__]


def test_only_the_accounting_library_is_pinned(pyproject):
    optional = pyproject["project"]["optional-dependencies"]
    lists = (pyproject["project"]["dependencies"], *optional.values())
    wanted = {Requirement(text) for texts in lists for text in texts}
    capped = {r.name for r in wanted if any(s.operator in ("==", "===", "<", "<=", "~=") for s in r.specifier)}
    assert capped == {"dp-accounting"}
    assert all(r.specifier for r in wanted), "each dependency names the oldest release that works"


def test_every_third_party_import_is_declared(pyproject):
    optional = pyproject["project"]["optional-dependencies"]
    declared = {
        Requirement(text).name
        for text in pyproject["project"]["dependencies"]
        + optional["accounting"]
        + optional["plot"]
        + optional["frames"]
        + optional["federation"]
        + optional["he"]
        + optional["onnx"]
        + optional["serve"]
        + optional["track"]
    } | {"grpcio-tools"}  # regenerates the code of vfl.network.wire, in a checkout
    shipped_as = {
        "sklearn": "scikit-learn",
        "dp_accounting": "dp-accounting",
        "tomli_w": "tomli-w",
        "llvmlite": "numba",
        "flint": "python-flint",
        "grpc": "grpcio",
        "grpc_tools": "grpcio-tools",
        "google": "protobuf",
        "mlflow": "mlflow-skinny",
        "prometheus_client": "prometheus-client",
    }
    imported = set()
    for path in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - set(PACKAGES)
    assert {shipped_as.get(name, name) for name in foreign} <= declared


MODULES = ("columns", "errors", "federation", "losses", "penalties", "releases", "sklearn", "solvers")


class TestPublicNames:
    def test_each_can_be_imported(self):
        assert [name for name in vfl.__all__ if getattr(vfl, name, None) is None] == []
        with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
            vfl.nonesuch  # noqa: B018  # the access is the test

    def test_no_name_is_hidden_by_a_module_of_the_same_name(self):
        """Importing vfl.NAME sets NAME on the package; users cannot tell whether that precedes the lazy lookup."""
        assert {module.name for module in pkgutil.iter_modules(vfl.__path__)}.isdisjoint(vfl.__all__)

    def test_the_stub_holds_only_exports(self):
        """A stub without an alias exports nothing, and any other statement would not reach `vfl.__all__`."""
        stub = ast.parse((ROOT / "vfl" / "__init__.pyi").read_text(encoding="utf-8")).body[1:]  # after the docstring
        assert {type(statement) for statement in stub} == {ast.ImportFrom}
        names = [alias for statement in stub for alias in statement.names]
        assert [alias.name for alias in names] == [alias.asname for alias in names]

    def test_there_are_few_and_dir_lists_them_with_the_public_modules(self):
        assert set(dir(vfl)) == {*vfl.__all__, *MODULES}
        assert len(set(vfl.__all__)) == len(vfl.__all__) <= 40

    @pytest.mark.parametrize("name", MODULES)
    def test_a_public_module_is_imported_on_first_use(self, name):
        code = f"import vfl; print(vfl.{name}.__name__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == (f"vfl.{name}\n", "")

    @pytest.mark.parametrize(
        ("name", "now"),
        [
            ("GD", "it is vfl.solvers.GD"),
            ("Huber", "it is vfl.losses.Huber"),
            ("DataError", "it is vfl.errors.DataError"),
            ("VerticalRidge", "it is vfl.sklearn.VerticalRidge"),
            ("woe", "it is vfl.releases.woe"),
            ("Binned", "it is vfl.columns.Binned"),
            ("SqliteLedger", r"write vfl.Ledger\(path\).open\(\)"),
            ("log_to_mlflow", "write Result.log_to_mlflow"),
        ],
    )
    def test_a_name_of_a_module_is_found_from_the_top(self, name, now):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': {now}"):
            getattr(vfl, name)

    def test_each_is_documented_under_docs_api(self):
        """A page names the object itself, or the module whose members it lists."""
        pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
        documented = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
        shown = [pkgutil.resolve_name(path) for path in documented]
        modules = [value.__name__ for value in shown if isinstance(value, types.ModuleType)]
        missing = [
            name
            for name in vfl.__all__
            if name != "__version__"
            and not any(getattr(vfl, name) is value for value in shown)
            and not getattr(vfl, name).__module__.startswith(tuple(modules))
        ]
        assert missing == []


def test_the_package_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "vfl", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"vfl, version {__version__}\n", "")


def test_the_wheel_holds_all_files(tmp_path):
    pytest.importorskip("hatchling", reason="the build backend is not installed here; .ci/run builds the wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("vfl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    ours = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    examples = {path.relative_to(ROOT).as_posix() for path in (ROOT / "vfl" / "examples").glob("*") if path.is_file()}
    assert examples
    assert ours | examples | {"vfl/__init__.pyi"} | {f"{package}/py.typed" for package in PACKAGES} <= held
    assert {name.split("/")[0] for name in held} == {*PACKAGES, f"vfl-{__version__}.dist-info"}
