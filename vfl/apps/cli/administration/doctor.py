"""`vfl doctor`: check that this installation is complete and can train on this machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfl.apps.cli.options import JSON, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("ray", "numpy", "scipy", "numba", "cryptography", "scikit-learn", "pyarrow", "rich", "click")


def _one_place() -> str:
    """Check that vfl, coordinator and parties come from one distribution, since another wheel may overwrite `parties`."""
    homes = {
        name: Path(str(importlib.import_module(name).__file__)).resolve().parent
        for name in ("vfl", "coordinator", "parties")
    }
    if len({home.parent for home in homes.values()}) > 1:
        raise RuntimeError(
            "vfl, coordinator and parties come from different places ("
            + ", ".join(f"{name}: {home.parent}" for name, home in homes.items())
            + "): reinstall vfl into an environment of its own"
        )
    importlib.import_module("parties.party")
    importlib.import_module("coordinator.coordinator")
    return str(homes["vfl"].parent)


def _version() -> str:
    from vfl.version import __version__

    installed = importlib.metadata.version("vfl")
    if installed != __version__:
        raise RuntimeError(f"the code is {__version__}, the installed distribution {installed}: reinstall")
    return f"vfl {__version__}, Python {sys.version.split()[0]}"


def _kernels() -> str:
    import numpy as np

    from vfl.kernels import dense as kernels

    X, v = np.asfortranarray(np.eye(4)), np.zeros(4)
    kernels.forward(X, np.ones(4), v)
    if not np.array_equal(v, np.ones(4)):
        raise RuntimeError("a compiled kernel gives a wrong answer: clear numba's cache and reinstall numba")
    return "compiled and correct"


def _noise() -> str:
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.noise import CryptographicNoise

    source = CryptographicNoise()
    key = ReleaseKey(0)
    if (source.stream(key).words(4) == source.stream(key).words(4)).all():
        raise RuntimeError("the noise source repeats itself: do not train privately here")
    return "fresh for every release"


def _ray() -> str:
    from vfl.launch.sites.connection import connected

    with connected(1, None) as ray:
        return f"starts, with {ray.cluster_resources().get('CPU', 0):g} CPU offered to one actor"


def _measured() -> str:
    from vfl.launch.measuring import measure

    found = measure()
    path = found.store()
    return (
        f"a coordinate update {found.update_seconds * 1e9:.2g} ns per record, a release {found.release_seconds * 1e3:.2g} ms, "
        f"a Ray round trip {found.trip_seconds * 1e3:.2g} ms and {found.vector_bytes_a_second / 1e9:.2g} GB/s; kept in {path}"
    )


CHECKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("version", _version),
    ("one place", _one_place),
    ("packages", lambda: ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)),
    ("machine", lambda: f"{os.cpu_count()} cores"),
    ("kernels", _kernels),
    ("noise", _noise),
    ("ray", _ray),
)


@click.command("doctor")
@JSON
@click.option("--measure", is_flag=True, help="Measure this machine, for the costs that vfl plan --explain predicts.")
def command(*, as_json: bool, measure: bool) -> None:
    """Check this installation: versions, kernels, noise, and that Ray starts."""
    findings = []
    for name, check in (*CHECKS, *((("measured", _measured),) if measure else ())):
        try:
            findings.append({"check": name, "ok": True, "finding": check()})
        except Exception as error:  # noqa: BLE001  # report every kind of failure
            findings.append({"check": name, "ok": False, "finding": f"{type(error).__name__}: {error}"})
        if not as_json:
            last = findings[-1]
            click.echo(f"{'ok  ' if last['ok'] else 'FAIL'}  {name:<10} {last['finding']}")
    if as_json:
        print_json(findings)
    if not all(finding["ok"] for finding in findings):
        raise click.exceptions.Exit(1)
