"""Tests of the packages.

They start hundreds of processes. Where the environment forbids compiled modules next to the sources and the installer wrote
none, every process would compile about 500 modules again. The tests then keep compiled modules in pytest's cache folder.

Runs, ledgers and books wait for the disk after every charge, which took half of the time of such tests. Their folders are
therefore in memory where it has room; PYTEST_DEBUG_TEMPROOT names another place.
"""

import os
import shutil
import sys
from pathlib import Path

if sys.dont_write_bytecode:
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # not set under python -B

MEMORY, ROOM = Path("/dev/shm"), 4 << 30  # noqa: S108 - pytest makes a folder of mode 0700 there

if "PYTEST_DEBUG_TEMPROOT" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)
