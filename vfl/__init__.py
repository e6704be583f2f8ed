"""Vertical federated training of generalised linear models, (ε, δ)-differentially private for every record.

The stub file beside this one, `__init__.pyi`, lists the public names and the modules that define them. Each name is imported
on first use, so that `import vfl` stays fast. Further names are in `vfl.columns`, `vfl.errors`, `vfl.federation`, `vfl.losses`,
`vfl.penalties`, `vfl.releases`, `vfl.sklearn` and `vfl.solvers`.
"""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

from vfl.version import __version__ as __version__

_HERE = Path(__file__).parent
_LISTED = {
    alias.name: f"{statement.module}"
    for statement in ast.parse((_HERE / "__init__.pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
_MODULES = {name: module for name, module in _LISTED.items() if module != __name__}
"""The module of each public name, as the stub states it."""
_PLACES = tuple(name for name in _LISTED if name not in _MODULES)
"""Public modules."""
_GONE = {
    "forecast": "vfl.plan(job, n_records).forecast(...)",
    "log_to_mlflow": "Result.log_to_mlflow(...)",
    "SqliteLedger": "vfl.Ledger(path).open()",
}

__all__ = [*_MODULES]  # noqa: PLE0604  # _MODULES has only names as keys


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return importlib.import_module(f"vfl.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'vfl' has no attribute {name!r}{_elsewhere(name)}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def _elsewhere(name: str) -> str:
    """Return, as a clause, where a name is that this module does not have; '' if no public module has the name."""
    defined = re.compile(rf"^(class|from .* as) {re.escape(name)}\b", re.MULTILINE)
    for place in _PLACES:
        files = (_HERE / f"{place}.py", _HERE / place / "__init__.py")
        if any(file.exists() and defined.search(file.read_text(encoding="utf-8")) for file in files):
            return f": it is vfl.{place}.{name}"
    return f": write {_GONE[name]}" if name in _GONE else ""


def __dir__() -> list[str]:
    return sorted(_LISTED)
