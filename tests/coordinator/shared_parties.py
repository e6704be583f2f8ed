"""Party processes on Ray that all tests of a session share: a run over them takes a fraction of a second.

A run on Ray starts and ends its actors, which takes seconds. Tests of solvers, sources and measures need Ray's
transport alone; tests/coordinator/test_transports.py tests the engine from end to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.cluster.ray_transport import RayTransport
from coordinator.coordinator import Coordinator
from parties.actor import PartyActor
from vfl.launch.sources import sources_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import vfl
    from coordinator.coordinator import Outcome

ANSWER_SECONDS = 240.0


class Renewed(PartyActor):
    """A party's actor that takes the place of another party, of another job, when a test asks for it."""

    def __init__(self) -> None:
        """Start the process; it is no party yet."""

    def renew(self, job: vfl.Job, name: str, policy: str | None) -> None:
        """Begin as the actor of this party does."""
        super().__init__(job, name, policy)


class SharedParties:
    """The processes, one per party of the largest job so far."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._actors: list[Any] = []

    def transport(self, job: vfl.Job, data: Any, policies: Mapping[str, Any] | None = None) -> RayTransport:
        """Let the processes load the parties' columns; return Ray's transport to them, which lasts until the next call."""
        sources = sources_of(job, data)
        made = self._ray.remote(Renewed)
        self._actors += [made.remote() for _ in range(len(sources) - len(self._actors))]
        actors = dict(zip(sources, self._actors, strict=False))
        policies = {party: str(path) for party, path in (policies or {}).items()}
        renewed = [actor.renew.remote(job, name, policies.get(name)) for name, actor in actors.items()]
        self._ray.get([*renewed, *(actors[name].load.remote(source) for name, source in sources.items())])
        return RayTransport(actors, ANSWER_SECONDS)

    def train(self, job: vfl.Job, data: Any, policies: Mapping[str, Any] | None = None) -> Outcome:
        """Run a job with the coordinator in this process; return the outcome."""
        *_, outcome = Coordinator(self.transport(job, data, policies)).stream(job)
        return outcome  # type: ignore[return-value]  # the last event
