"""Calls of a function at every request of a run on shares in a federation, before it is sent and after its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.federation.transport import FederationTransport
from vfl.crypto.encryption import EncryptionKey
from vfl.secure.requests import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from coordinator.transport import Call

BEFORE, AFTER = "before", "after"


def at_requests(
    act: Callable[[str, str, str], object],
    patch: pytest.MonkeyPatch | None = None,
    keys: list[tuple[str, bytes]] | None = None,
) -> None:
    """Call `act(name of the request, participant, BEFORE or AFTER)` at every request, in the thread that sends it.

    keys : receives (participant, public key) of every session that a participant began.
    """
    sent = FederationTransport._sent

    def acting(self: Any, call: Call, *rest: Any) -> Any:
        if not isinstance(call.message, Request):
            return sent(self, call, *rest)
        to, name = call.to, type(call.message).__name__
        act(name, to, BEFORE)
        answer = sent(self, call, *rest)
        if keys is not None and isinstance(answer[0], EncryptionKey):
            keys.append((to, answer[0].key))
        act(name, to, AFTER)
        return answer

    if patch is None:
        FederationTransport._sent = acting  # type: ignore[method-assign]  # in a process that ends with the run
    else:
        patch.setattr(FederationTransport, "_sent", acting)
