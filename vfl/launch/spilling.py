"""Whether a cluster may write vectors to disk in clear, which is its operator's to switch off."""

from __future__ import annotations

SPILLS = (
    "the Ray cluster may spill its object store to disk: per-record vectors may have been written in clear on its nodes; "
    """start its head with --system-config='{"automatic_object_spilling_enabled": false}'"""
)
UNKNOWN = "whether the Ray cluster spills its object store to disk in clear could not be found out"


def flags_of_cluster() -> tuple[str, ...]:
    """Return what a certificate has to say of the cluster that Ray is connected to; nothing where spilling is off.

    Its head decides for all nodes, whatever their own environment says. Ray has no public way to ask: where the private
    one is gone, that is said.
    """
    try:
        from ray._private.state import state

        config = state.get_system_config()
    except Exception:  # noqa: BLE001  # private to Ray, so anything may change
        return (UNKNOWN,)
    return () if config.get("automatic_object_spilling_enabled") is False else (SPILLS,)
