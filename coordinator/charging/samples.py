"""Secret Poisson samples. Each release that is charged at the lower cost of a sampled release needs its own sample."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfl.errors import PrivacyError
from vfl.privacy.events import PoissonSubsampledGaussian

if TYPE_CHECKING:
    from vfl.messages import Query, Sample
    from vfl.privacy.events import ReleaseKey


class Samples:
    """Check that no secret sample is used for two releases.

    Guarantee. A `PoissonSubsampledGaussian` is accounted as if its sample were independent of all other samples. A release
    under such an event therefore needs a sample of the event's rate that no earlier release has used. A lost attempt counts as
    a release, because its answer may have been seen.

    private : False for seeded noise, which repeats a lost release to the bit and on the same sample.
    """

    def __init__(self, private: bool) -> None:
        self._private = private
        self._sample: tuple[Sample, ReleaseKey] | None = None
        self._used = False
        self._lost = False

    def drawn(self, sample: Sample, key: ReleaseKey) -> None:
        """Record the sample that the coordinator now holds, and the key of the stream from which the sample was drawn."""
        self._sample, self._used, self._lost = (sample, key), False, False

    def lost(self) -> None:
        """Record that the last attempt at a query was lost. Its sample may have been used."""
        if self._private:
            self._lost = self._used
        else:
            self._used = False

    def next_for(self, query: Query) -> tuple[Sample, ReleaseKey] | None:
        """Return the sample to draw before this attempt at a query, and the key of its stream; None if no new sample is needed.

        Raises PrivacyError for a sampled release if no sample of the right rate was drawn, or if another release has used it.
        """
        rates = {event.rate for event in query.events() if isinstance(event, PoissonSubsampledGaussian)}
        if not rates:
            return None
        if self._sample is None or rates != {self._sample[0].rate}:
            raise PrivacyError(f"{type(query).__name__} is charged as sampled, and no sample of its rate was drawn")
        if self._used and not self._lost:
            raise PrivacyError(f"{type(query).__name__} would use a secret sample that another release has used")
        if self._lost:
            sample, key = self._sample
            self.drawn(sample, replace(key, attempt=key.attempt + 1))
            self._used = True
            return self._sample
        self._used = True
        return None
