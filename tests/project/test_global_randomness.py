"""Packages and tests never use the global random generator of NumPy or Python.

A habitual seed would void privacy where noise is drawn. An unseeded generator makes a run unrepeatable elsewhere.
Generators are therefore injected.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

GENERATORS = {
    "Generator",
    "default_rng",
    "SeedSequence",
    "BitGenerator",
    "Philox",
    "PCG64",
    "PCG64DXSM",
    "SFC64",
    "MT19937",
}


def global_randomness(tree: ast.Module) -> list[int]:
    """Return the lines that use the global generator of NumPy or Python, or make one without a seed."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def dotted(node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return names.get(node.id, "")
        if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
            return f"{base}.{node.attr}"
        return ""

    lines = []
    for node in ast.walk(tree):
        name = dotted(node)
        if name.startswith("numpy.random.") and name.split(".")[2] not in GENERATORS:
            lines.append(node.lineno)
        if name.startswith("random.") and name.split(".")[1] not in ("Random", "SystemRandom"):
            lines.append(node.lineno)
        if isinstance(node, ast.Call) and dotted(node.func).startswith("numpy.random."):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            unseeded = not given or (isinstance(given[0], ast.Constant) and given[0].value is None)
            if unseeded and dotted(node.func).split(".")[2] in GENERATORS:
                lines.append(node.lineno)
    return sorted(set(lines))


def _python_files() -> list[Path]:
    return [
        path
        for top in ("vfl", "coordinator", "parties", "tests", "deploy", "docs")
        for path in sorted((ROOT / top).rglob("*.py"))
    ]


def test_no_global_random_generator():
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in _python_files()
        if "rand" in (text := path.read_text(encoding="utf-8"))
        for line in global_randomness(ast.parse(text))
    }
    assert found == set()


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np\nnp.random.seed(0)",
        "from numpy import random\nrandom.rand(3)",
        "import numpy.random as nr\nnr.shuffle(x)",
        "from numpy.random import default_rng\ndefault_rng()",
        "import numpy\nnumpy.random.default_rng(None)",
        "import numpy\nnumpy.random.default_rng(seed=None)",
        "import random\nrandom.shuffle(x)",
    ],
)
def test_global_randomness_is_detected(code):
    assert global_randomness(ast.parse(code)) == [2]


def test_seeded_generators_are_allowed():
    code = "import numpy as np\nnp.random.default_rng(3).random()\nnp.random.Generator(np.random.Philox(key=1))"
    assert global_randomness(ast.parse(code)) == []
