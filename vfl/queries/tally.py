"""Queries `Tally` and `ExactTally`: statistics of margins and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.holdout import Side
from vfl.errors import PrivacyError
from vfl.queries.query import NotSent, Sum

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.privacy.events import Gaussian, ReleaseKey
    from vfl.queries.parts import Records, Reply, Statistic, Sums
    from vfl.queries.query import OnShares, Query, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Tally(NotSent, Sum):
    """Release a statistic of margins and labels over one part of the records. The coordinator's `LinearPredictors` computes it.

    event : event with at least the sensitivity of the statistic; otherwise PrivacyError. None for no noise.
    """

    statistic: Statistic
    event: Gaussian | None
    side: Side = Side.TRAINING

    def __post_init__(self) -> None:
        if self.event is not None and not self.event.sensitivity >= self.statistic.sensitivity:
            raise PrivacyError("the noise of a tally is too small for the sensitivity of its statistic")

    def sizes(self) -> tuple[int, ...]:
        """Return the length of the single released vector."""
        return (self.statistic.dimension,)

    @property
    def tallied(self) -> Statistic:
        """Return the statistic."""
        return self.statistic

    def asked_of_parties(self, *, on_shares: bool) -> bool:
        """Return True on secret shares, for a statistic of the labels of the training records alone."""
        return on_shares and self.statistic.labels_only and self.side is Side.TRAINING

    def on_shares(self, parties: Sequence[str], label: str) -> Mapping[str, Query]:
        """Return the whole query for the label party, if the statistic needs the labels alone."""
        if not self.asked_of_parties(on_shares=True):
            raise self._needs_margins()
        return {label: self}

    @property
    def grid(self) -> float:
        """Return the grid of the statistic."""
        return self.statistic.grid

    def required(self) -> float:
        """Return Δ of the statistic."""
        return self.statistic.sensitivity

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return the statistic of the label party's labels of the training records."""
        labels, n = rows.labels(), rows.columns.n_records
        if labels.size != n:
            raise PrivacyError(f"party {rows.party!r} keeps labels of held-out records with those of training")
        return [self.statistic(np.zeros(n), labels)]


@dataclass(frozen=True, slots=True, eq=False)
class SharedTally(Tally):
    """Statistic of held-out records on secret shares. All holders open it together, with noise (vfl.secure.measures).

    Besides the statistic, the query returns the public bound V to which linear predictors were clamped.

    number : place of the release in the job's plan.
    """

    number: int = 0

    def sizes(self) -> tuple[int, ...]:
        """Return the lengths of the released vector and of V."""
        return (self.statistic.dimension, 1)

    def on_shares(self, parties: Sequence[str], label: str) -> Mapping[str, Query]:
        """Return the whole query for every party."""
        return dict.fromkeys(parties, self)

    def opened(self, at: OnShares, key: ReleaseKey) -> Mapping[str, Reply]:
        """Open the statistic with noise."""
        return at.measures(self, key)


@dataclass(frozen=True, slots=True, eq=False)
class ExactTally(Tally):
    """Tally without noise. The tally is allowed only if the job asks for it, and the job's certificate then says so."""
