"""Vertical federated training of generalised linear models, (ε, δ)-differentially private for every record.

The stub file beside this one, `__init__.pyi`, lists the public names and the modules that define them. Each name is imported
on first use, so that `import vfl` stays fast.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from vfl.version import __version__ as __version__

_MODULES = {
    alias.name: f"{statement.module}"
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
"""The module of each public name, as the stub states it."""

__all__ = [*_MODULES]  # noqa: PLE0604  # _MODULES has only names as keys


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'vfl' has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    value = getattr(module, name) if hasattr(module, name) else importlib.import_module(f"{module.__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
