"""Detection of Ray clusters that may write vectors to disk unencrypted (spilling). Only the operator can prevent this."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SPILLS = (
    "the Ray cluster may spill its object store to disk: per-record vectors and ids may have been written in clear on its "
    "nodes; "
    """start its head with --system-config='{"automatic_object_spilling_enabled": false}'"""
)
UNKNOWN = "whether the Ray cluster spills its object store to disk in clear could not be found out"
STORED = (
    "the Ray object store of {who} lies on disk: per-record vectors and ids were written there in clear; start Ray there "
    "with a --object-store-memory that its /dev/shm can hold"
)
UNSEEN = "whether the Ray object store of {who} lies on disk in clear could not be found out"
MEMORY, DISK, UNCERTAIN = "memory", "disk", "uncertain"
IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
"""File systems that hold files in memory. Swapping is not detected."""
ASK_SECONDS = 60.0


def flags_of_cluster() -> tuple[str, ...]:
    """Return the certificate's flags for the cluster to which Ray is connected; () if spilling is switched off.

    The head node's setting applies to all nodes and overrides their environments. Ray has no public function that returns
    this setting. If this version of Ray lacks the private function that does, the flag says that the setting is unknown.
    """
    try:
        from ray._private.state import state

        config = state.get_system_config()
    except Exception:  # noqa: BLE001  # private to Ray, so anything may change
        return (UNKNOWN,)
    return () if config.get("automatic_object_spilling_enabled") is False else (SPILLS,)


def store_here(maps: str | None = None, mounts: str | None = None) -> str:
    """Return the medium of this node's object store: MEMORY, DISK or UNCERTAIN.

    If /dev/shm is too small, Ray puts the store into a file of its temporary folder and reports this only in its log. This
    process maps the file once an object is in the store.

    maps, mounts : contents of /proc/self/maps and /proc/self/mountinfo; None reads these files.
    """
    try:
        if maps is None:
            import ray

            ray.get(ray.put(b""))
            maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8") if mounts is None else mounts
        kinds = {
            tuple(map(int, line.split()[2].split(":"))): line.partition(" - ")[2].split()[0]
            for line in mounts.splitlines()
        }
        mapped = [line.split(maxsplit=5) for line in maps.splitlines()]
        # Address, permissions, offset, device, inode, path: shared memory has an s among the permissions.
        devices = [part[3] for part in mapped if "s" in part[1] and part[-1].rpartition("/")[2].startswith("plasma")]
        # A device without a mount of its own is a disk below an overlay file system.
        found = {kinds.get(tuple(int(half, 16) for half in device.split(":")), "") for device in devices}
    except Exception:  # noqa: BLE001  # no /proc here, or none of this form
        return UNCERTAIN
    if not found:
        return UNCERTAIN
    return MEMORY if found <= set(IN_MEMORY) else DISK


def flags_of_stores(ray: Any, actors: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the certificate's flags for the object stores that these actors and this process use.

    actors : {name of the actor in the flag: handle of the actor}.
    """
    # __ray_call__ is Ray's own method to run a function in an actor.
    asked = {who: actor.__ray_call__.remote(_store_of) for who, actor in actors.items()}
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=ASK_SECONDS)
    found = {who: _answer(ray, ref) for who, ref in asked.items()} | {"the driver": store_here()}
    return tuple(
        said.format(who=" and of ".join(those))
        for said, kind in ((STORED, DISK), (UNSEEN, UNCERTAIN))
        if (those := [who for who, what in found.items() if what == kind])
    )


def _store_of(_: Any) -> str:
    return store_here()


def _answer(ray: Any, ref: Any) -> str:
    try:
        said: str = ray.get(ref, timeout=0)
    except ray.exceptions.RayError:  # lost or late: the run itself reports it
        return UNCERTAIN
    return said
