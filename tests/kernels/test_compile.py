"""The cache of compiled loops: no change of a module that is compiled in leaves a stale loop."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vfl.kernels import compile as compilation
from vfl.kernels import dense_loops, ring_loops, sparse_loops
from vfl.kernels.compile import SOURCES, sources
from vfl.kernels.curve import ladder

if TYPE_CHECKING:
    from types import ModuleType

FOLDER = Path(compilation.__file__).parent
_numbers = itertools.count()


def imported(path: Path, **names: Any) -> ModuleType:
    """Import a file as a new module, as a new process would, with these names in it."""
    spec = importlib.util.spec_from_file_location(f"loops{next(_numbers)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    return module


def test_a_changed_module_is_compiled_in_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own file stays as it is; the constant that is compiled into it comes from another module."""
    monkeypatch.setattr(compilation.numba.config, "CACHE_DIR", "")
    path = tmp_path / "loops.py"
    path.write_text("from vfl.kernels.compile import compiled\n@compiled\ndef loop():\n    return VALUE\n")
    assert imported(path, VALUE=1).loop() == 1
    again = imported(path, VALUE=1).loop
    assert again() == 1
    assert sum(again.stats.cache_hits.values()) == 1
    assert imported(path, VALUE=2).loop() == 1, "the cache without the folder's content is stale, as this test shows"
    monkeypatch.setattr(compilation, "SOURCES", "another content")
    assert imported(path, VALUE=2).loop() == 2


@pytest.mark.parametrize("name", sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py")))
def test_the_digest_covers_every_module(tmp_path: Path, name: str) -> None:
    copied = tmp_path / "kernels"
    shutil.copytree(FOLDER, copied, ignore=shutil.ignore_patterns("__pycache__"))
    assert sources(copied) == SOURCES
    (copied / name).write_text((copied / name).read_text() + "\n# changed\n")
    assert sources(copied) != SOURCES


def test_every_compiled_loop_is_stamped() -> None:
    loops = [
        loop
        for module in (dense_loops, sparse_loops, ring_loops, ladder)
        for loop in vars(module).values()
        if is_cached(loop)
    ]
    assert len(loops) > 8
    assert all(loop._cache._cache_file._source_stamp[1] == SOURCES for loop in loops)


def is_cached(loop: Any) -> bool:
    return hasattr(getattr(loop, "_cache", None), "_cache_file")
