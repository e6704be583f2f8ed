"""The dealer: it sends correlated random integers to the parties and adds noise of its own. It has no data, receives none.

Guarantee. The dealer receives only public facts, so it learns at most the opened (revealed) sums. For each single receiver, the
integers modulo 2^64 that the dealer sends are uniform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.kernels import ring as kernels
from vfl.secure import noise as distributed
from vfl.secure import sigmoid
from vfl.secure.check_rows import CHECK_ROWS
from vfl.secure.member import CHUNK, KEPT
from vfl.secure.ring import encoded
from vfl.secure.roles import DEALER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.kernels.ring import Angles, Words
    from vfl.privacy.noise import NoiseSource
    from vfl.secure.noise import Deviations
    from vfl.secure.roles import Roles
    from vfl.secure.streams import Streams
    from vfl.secure.version import Opening, Version

PANEL = 1 << 15
"""Number of 64-bit integers of a column's mask that are generated at a time."""


class Dealer:
    """Dealer of one session.

    roles : public roles. streams : streams shared with every party. noise : source of the dealer's noise. n_records : n.
    """

    def __init__(self, roles: Roles, streams: Streams, noise: NoiseSource, n_records: int) -> None:
        self._roles, self._streams, self._noise, self._n = roles, streams, noise, n_records
        self._rows = n_records + CHECK_ROWS
        self._masks: dict[Version, dict[str, Words]] = {}

    @property
    def n_rows(self) -> int:
        """Return n + S, the number of rows of Fourier terms."""
        return self._rows

    def fourier_terms(self, version: Version, records: int = CHUNK) -> Iterator[Words]:
        """Yield the last holder's shares of the Fourier terms at the masks, (n + S, 2K) uint64, in parts, for `Roles.supplied`.

        The parties open S of the n + S rows to check the dealer (vfl.secure.check_rows).

        records : number of rows per part. All parts use one buffer, so a part overwrites the part before it.
        """
        table = sigmoid.fourier_terms(sigmoid.SERIES[version.place].terms)
        rho = self._rho(version)
        others = [holder for holder in self._roles.holders if holder != self._roles.supplied]
        streams = [self._streams.once(other, "Fourier terms", *version.name) for other in others]
        buffer, first = (np.empty((min(records, self._rows), table.shape[1]), dtype=np.uint64) for _ in range(2))
        for start in range(0, self._rows, records):
            stop = min(start + records, self._rows)
            part = streams[0].fill(first[: stop - start])
            for stream in streams[1:]:
                part += stream.fill(buffer[: stop - start])
            yield kernels.last_shares(table, rho[start:stop], part)

    def sum(self, opening: Opening, deviations: Deviations) -> Words:
        """Return the dealer's share of a noised sum, for the owner of the summed block of columns, (s,) uint64.

        This share and those of the other parties in `Roles.summed` add up to Uᵀ Σ_h b_h plus the dealer's noise. By itself the
        share is uniform.
        """
        size, name = opening.size, opening.name
        noise = distributed.drawn(self._noise, opening.key, DEALER, deviations.dealer, size)
        total = encoded(noise)
        total = total + self._product(opening)
        for holder in self._roles.receivers(opening.owner):
            total = total - self._streams.once(holder, "sum", *name).words(size)
        return total

    def _rho(self, version: Version) -> Angles:
        total = np.zeros(self._rows, dtype=np.uint16)
        for party in self._roles.parties:
            total += self._streams.once(party, "angles", *version.name).short(self._rows)
        return total

    def _product(self, opening: Opening) -> Words:
        """Return Uᵀ Σ_h b_h. U is generated again from its seed, one panel of records at a time."""
        masks = self._of_version(opening.version)
        owner = opening.owner
        if owner not in masks:
            masks[owner] = np.zeros(self._n, dtype=np.uint64)
            for holder in self._roles.receivers(owner):
                masks[owner] += self._streams.once(holder, "residual", owner, *opening.version.name).words(self._n)
        stream, mask = self._streams.again(owner, *opening.block), masks[owner]
        sums = np.zeros(opening.size, dtype=np.uint64)
        panel = np.empty((1, min(PANEL, self._n)), dtype=np.uint64)
        for j in range(opening.size):
            for start in range(0, self._n, PANEL):
                part = mask[start : start + PANEL]
                sums[j : j + 1] += kernels.products(stream.fill(panel[:, : len(part)]), part)
        return sums

    def _of_version(self, version: Version) -> dict[str, Words]:
        if version not in self._masks:
            while len(self._masks) >= KEPT:
                self._masks.pop(next(iter(self._masks)))
            self._masks[version] = {}
        return self._masks[version]
