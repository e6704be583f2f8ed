"""Generate the Python code of vfl/network/wire/federation.proto: python -m tests.wire.generate

Needs grpcio-tools. `differing` ignores the lines of the generated code that name the version of the compiler and the oldest
supported runtime.
"""

from __future__ import annotations

import re
import tempfile
from importlib import resources
from pathlib import Path

from vfl.network import wire

FOLDER = Path(wire.__file__).resolve().parent
PROTO = "vfl/network/wire/federation.proto"
GENERATED = ("federation_pb2.py", "federation_pb2.pyi")


def generate(root: Path) -> None:
    """Write the generated files to the package vfl.network.wire under `root`. Raises SystemExit if the compiler fails."""
    from grpc_tools import protoc

    sources = FOLDER.parents[2]
    include = str(resources.files("grpc_tools") / "_proto")
    given = ["protoc", f"-I{sources}", f"-I{include}", f"--python_out={root}", f"--pyi_out={root}", PROTO]
    if protoc.main(given):
        raise SystemExit(f"cannot compile {PROTO}")


def differing() -> list[str]:
    """Return the generated files that differ from those that the compiler generates now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = Path(folder) / "vfl" / "network" / "wire"
        return [name for name in GENERATED if unversioned(fresh / name) != unversioned(FOLDER / name)]


def unversioned(path: Path) -> str:
    """Return generated code without the versions of compiler and runtime."""
    text = re.sub("# Protobuf Python Version: .*", "", path.read_text(encoding="utf-8"))
    return re.sub(r"(Domain\.PUBLIC,)\s+\d+,\s+\d+,\s+\d+,", r"\1", text)


if __name__ == "__main__":
    generate(FOLDER.parents[2])
