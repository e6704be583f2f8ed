"""Generate the Python code of federation.proto, or check that it is up to date.

    python -m vfl.wire.generate [--check]

Needs grpcio-tools. The check ignores the lines of the generated code that name the version of the compiler and the oldest
supported runtime.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROTO = "vfl/wire/federation.proto"
GENERATED = ("federation_pb2.py", "federation_pb2.pyi")


def generate(root: Path) -> None:
    """Write the generated files to the package vfl.wire under `root`. Raises SystemExit if the compiler fails."""
    from grpc_tools import protoc

    sources = FOLDER.parents[1]
    include = str(resources.files("grpc_tools") / "_proto")
    given = ["protoc", f"-I{sources}", f"-I{include}", f"--python_out={root}", f"--pyi_out={root}", PROTO]
    if protoc.main(given):
        raise SystemExit(f"cannot compile {PROTO}")


def differing() -> list[str]:
    """Return the generated files that differ from those that the compiler generates now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = Path(folder) / "vfl" / "wire"
        return [name for name in GENERATED if unversioned(fresh / name) != unversioned(FOLDER / name)]


def unversioned(path: Path) -> str:
    """Return generated code without the versions of compiler and runtime."""
    text = re.sub("# Protobuf Python Version: .*", "", path.read_text(encoding="utf-8"))
    return re.sub(r"(Domain\.PUBLIC,)\s+\d+,\s+\d+,\s+\d+,", r"\1", text)


def main() -> None:
    """Generate; with --check, end with an error if a file would change."""
    if sys.argv[1:] == ["--check"]:
        if stale := differing():
            raise SystemExit(f"{', '.join(stale)} differ from {PROTO}: run python -m vfl.wire.generate")
        return
    generate(FOLDER.parents[1])


if __name__ == "__main__":
    main()
