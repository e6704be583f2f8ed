"""Tests of the packages.

They start hundreds of processes. Where the environment forbids compiled modules next to the sources and the installer wrote
none, every process would compile about 500 modules again. The tests then keep compiled modules in pytest's cache folder.
"""

import os
import sys
from pathlib import Path

if sys.dont_write_bytecode:
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # not set under python -B
