"""The notebooks of the docs run from top to bottom, each in a kernel of its own, and write nothing into the checkout."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def own_kernel(tmp_path, monkeypatch):
    """Let the kernel import this checkout, and keep keys and indexes in a folder of the test."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("VFL_KEY", str(tmp_path / "signing.pem"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "commit notebooks without outputs"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    assert any("held out" in str(output) for output in outputs)
