"""One release about columns, as a run of its own: what `private_bounds` and `private_quantiles` have in common."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coordinator.coordinator import Outcome
from coordinator.rounds import Log
from vfl.errors import SpecificationError
from vfl.launch.engines import dispatch
from vfl.launch.engines.place import place_of
from vfl.launch.run.execution import new_budget
from vfl.launch.run.warnings import count_run, warn_of_plan
from vfl.launch.sources import ask_owners, paths_of, sources_of
from vfl.losses import loss_of
from vfl.penalties import NoPenalty

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vfl.job import Job
    from vfl.privacy.specification import Privacy
    from vfl.solvers.protocol import Solver


@dataclass(frozen=True, slots=True)
class Where:
    """Place of a purchase; arguments as for `train`."""

    engine: str
    address: str | None
    ledger: str | Path | None
    policies: Mapping[str, str | Path] | None
    allow_network_file_system: bool


def purchase(draft: Job, data: Any, solver: Solver, privacy: Privacy, where: Where, what: str) -> Outcome:
    """Run a solver that releases facts of columns once, charged with the whole of `privacy`; return its outcome.

    draft : the job whose columns are read, unscaled. what : name of the function, for errors.

    Raises the errors of `train`; SpecificationError for a job that aligns records.
    """
    if draft.ids:
        raise SpecificationError(
            f"{what} does not align records yet: give sources whose rows are in the same order, and a draft without id"
        )
    place = place_of(where.engine, where.address)
    spec = replace(
        draft,
        privacy=privacy,
        solver=solver,
        loss=loss_of(draft.loss),
        penalty=NoPenalty(),
        scaling="none",
        intercept=False,
        diagnostics=False,
    )
    budget = new_budget(spec, where.ledger, allow_network_file_system=where.allow_network_file_system)
    agreed = paths_of(spec.partition, where.policies, "policy")
    ask_owners(spec, data, agreed)
    events = dispatch.run(spec, sources_of(spec, data), budget, Log(), place=place, policies=agreed)
    with contextlib.closing(events) as watched:  # type: ignore[type-var]
        for event in watched:
            warn_of_plan(event)
            count_run(spec, event)
            if isinstance(event, Outcome):
                return event
    raise AssertionError("a run ended without its outcome")
