"""Location of Ray's object store, in memory or on a disk, which a certificate states."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from vfl.launch.sites.ray import DISK, MEMORY, STORED, UNCERTAIN, UNSEEN, flags_of_stores, store_here

if TYPE_CHECKING:
    from pathlib import Path

MOUNTS = """27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
25 24 0:27 / /shm rw,relatime shared:3 - tmpfs tmpfs rw,size=24684084k
41 23 0:38 / /big rw,relatime master:1 shared:2 - hugetlbfs none rw
"""
LINE = "7f46eb3a0000-7f46f0000000 rw-s 00000000 {} 907                        {}\n"
OTHERS = (
    "556b59078000-556b59079000 r--p 00000000 fe:00 1234                       /opt/plasma/python\n"
    "7facaf3a0000-7facb4000000 r-xp 00000000 fe:00 907                        /lib/plasma.so\n"
    "7facb4000000-7facb5000000 rw-p 00000000 00:00 0 \n"
)


@pytest.mark.parametrize(
    ("mapped", "lies"),
    [
        ([("00:1b", "/shm/plasmaaacVJt (deleted)")], MEMORY),
        ([("00:26", "/big/plasmaaacVJt (deleted)")], MEMORY),
        ([("fe:00", "/disk/ray/plasmaxdZeUD (deleted)")], DISK),
        ([("08:01", "/disk/a b/plasmaxdZeUD (deleted)")], DISK),  # an overlay: no mount has this device
        ([("00:1b", "/shm/plasmaaacVJt (deleted)"), ("fe:00", "/disk/plasmaxdZeUD (deleted)")], DISK),
        ([], UNCERTAIN),
        ([("?", "/shm/plasmaaacVJt")], UNCERTAIN),
    ],
)
def test_mapped_files_reveal_the_location(mapped: list[tuple[str, str]], lies: str) -> None:
    assert store_here(OTHERS + "".join(LINE.format(*part) for part in mapped), MOUNTS) == lies


def test_mounts_in_another_format_reveal_nothing() -> None:
    assert store_here(LINE.format("00:1b", "/plasmaaacVJt"), "none\n") == UNCERTAIN


class Ray:
    """Fake of Ray, whose references are the answers themselves."""

    class exceptions:  # noqa: N801  # Ray's name
        """Its errors."""

        class RayError(Exception):
            """Ray's."""

    def wait(self, refs: list[str], **_: Any) -> None:
        """Return at once."""

    def get(self, ref: str, timeout: float) -> str:
        """Return the answer, or lose it."""
        if ref == "lost":
            raise self.exceptions.RayError
        return ref


class Actor:
    """An actor whose object store is at a given place."""

    def __init__(self, lies: str) -> None:
        self.lies = lies
        self.__ray_call__ = self

    def remote(self, _: Any) -> str:
        """Return a stand-in for a reference."""
        return self.lies


def test_the_flags_name_the_owners_of_stores_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfl.launch.sites.ray.store_here", lambda: MEMORY)
    lie = {"party 'a'": DISK, "party 'b'": MEMORY, "party 'c'": "lost", "the coordinator": DISK}
    flags = flags_of_stores(Ray(), {who: Actor(lies) for who, lies in lie.items()})
    assert flags == (STORED.format(who="party 'a' and of the coordinator"), UNSEEN.format(who="party 'c'"))
    assert "--object-store-memory" in flags[0]
    monkeypatch.setattr("vfl.launch.sites.ray.store_here", lambda: DISK)
    assert flags_of_stores(Ray(), {"party 'b'": Actor(MEMORY)}) == (STORED.format(who="the driver"),)


CODE = """
import sys
import numpy as np
import vfl
from vfl.launch.sites.connection import import_ray

folder = {"_plasma_directory": sys.argv[1]} if sys.argv[1:] else {}
off = {"automatic_object_spilling_enabled": False}
import_ray().init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
    object_store_memory=80_000_000, _system_config=off, **folder)
rng = np.random.default_rng(0)
job = vfl.Job(
    partition=vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, label=("telco", "y")),
    bounds={"a": (0.0, 1.0), "b": (0.0, 1.0)}, privacy=vfl.Privacy(epsilon=1.0, delta=1e-6), solver=vfl.SkGD(passes=1),
)
import pandas as pd
table = pd.DataFrame({"a": rng.random(500), "b": rng.random(500), "y": rng.choice([0, 1], 500)})
print(*vfl.train(job, table).certificate.flags, sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("disk", [False, True])
def test_a_certificate_states_the_location(tmp_path: Path, disk: bool) -> None:
    """On a real Ray whose store is in /dev/shm, and on one whose store is in a folder on a disk."""
    command = [sys.executable, "-c", CODE, *([str(tmp_path)] if disk else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = "the Ray object store of party 'bank' and of party 'telco' and of the coordinator and of the driver lies on disk"
    assert (told in done.stdout) == disk, done.stdout
