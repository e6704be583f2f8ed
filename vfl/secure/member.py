"""The parts of party and dealer in training on secret shares. A party owns columns, holds residual shares, or both.

Guarantee. The messages that a method returns are uniform integers modulo 2^64 for everyone who lacks the seeds that `Roles`
keeps apart. Only their sum carries information: an integer sum with noise, which is *opened*, that is, revealed. Each message
is masked by a stream that is used once, and named by vfl.secure.requests. The table lists messages: what, from whom to whom,
the methods of sender and receiver, and the shape. A version is one version of the model; an opening is one revealed sum. s, S,
K and n count columns of a block, check rows, Fourier terms and records.

    columns     owner → holders      `masked_columns`       →  `take_columns`   (s, n) uint64, once per block and scaling
    angles      party → holders      `masked_angles`        →  `take_angles`    (n,) uint16 per version
    terms       dealer → `supplied`  `Dealer.fourier_terms` →  `take_terms`     (n + S, 2K) uint64 per version
    check       party → label        `opened_rows`          →  `take_rows`      (S,) uint16 and (S, 2K) uint64 per version
    residual    holder → owner       `masked_residual`      →  `take_residual`  (n,) uint64 per version and owner
    sum         dealer → owner       `Dealer.sum`           →  `take_sum`       (s,) uint64 per opening
    opening     party → coordinator  `contribution`         →  `opened`         (s,) uint64 per opening
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import FederationError, PrivacyError
from vfl.kernels import ring as kernels
from vfl.secure import noise as distributed
from vfl.secure import sigmoid
from vfl.secure.check_rows import CHECK_ROWS, RowCollector, RowsToCheck, chosen_rows
from vfl.secure.columns import OwnAngles
from vfl.secure.ring import RESIDUAL_BITS, encoded
from vfl.secure.roles import DEALER
from vfl.secure.streams import zero_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from vfl.base.types import Integers, Vector
    from vfl.kernels.ring import Angles, Elements
    from vfl.privacy.noise import NoiseSource
    from vfl.secure.columns import OwnColumns
    from vfl.secure.noise import Deviations
    from vfl.secure.requests import Opening, Version
    from vfl.secure.roles import Roles
    from vfl.secure.streams import Streams


CHUNK = 1 << 12
"""Number of records whose shares of Fourier terms are expanded at once; small enough for the second-level cache."""
KEPT = 2
"""Number of versions of the model for which a participant keeps intermediate values."""
EARLY = "columns were requested before their set-up"


@dataclass(slots=True)
class _State:
    """One party's intermediate values for one version of the model, at which residuals are shared."""

    chosen: RowsToCheck | None = None
    angles: Angles | None = None
    masks_opened: Angles | None = None
    rows_opened: Elements | None = None
    opened: dict[str, tuple[Angles, Elements | None]] = field(default_factory=dict)
    checked: bool = False
    arrived: set[str] = field(default_factory=set)
    fourier_terms: Iterator[Elements] | None = None
    share: Elements | None = None
    masks: dict[str, Elements] = field(default_factory=dict)
    received: dict[str, dict[str, Elements]] = field(default_factory=dict)
    total: dict[str, Elements] = field(default_factory=dict)


class Member:
    """One party of a run on secret shares.

    roles : public roles. name : name of this party. streams : streams of this session. noise : source of this party's noise.
    n_records : n. labels : (n,) True or 1 for y = 1; None at parties without the label.
    coin : the session's coin, unknown to the dealer. The coin chooses the rows that are opened to check the dealer. None: the
        dealer can guess the opened rows, and no check is required.
    """

    def __init__(
        self,
        roles: Roles,
        name: str,
        streams: Streams,
        noise: NoiseSource,
        n_records: int,
        labels: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        if (labels is None) == (name == roles.label):
            raise FederationError("only the label party may hold labels")
        self._roles, self.name, self._streams, self._noise = roles, name, streams, noise
        self._n = n_records
        half = np.int64(1 << (RESIDUAL_BITS - 1))
        self._halves = None if labels is None else np.where(labels, -half, half).view(np.uint64)
        self.coin: bytes | None = None
        self._setup = -1
        self._columns: OwnColumns | None = None
        self._angles: OwnAngles | None = None
        self._masked: dict[tuple[str | int, ...], Elements] = {}
        self._states: dict[Version, _State] = {}
        self._sums: dict[Opening, Elements] = {}

    @property
    def holds(self) -> bool:
        """Return True if this party holds shares of the residuals."""
        return self.name in self._roles.holders

    @property
    def n_records(self) -> int:
        """Return n, the number of records of the session."""
        return self._n

    @property
    def next_setup(self) -> int:
        """Return a number for the next set-up."""
        return self._setup + 1

    # Set-up

    def set_up(self, number: int, columns: OwnColumns) -> None:
        """Take this party's columns, for one choice of cap, centres and scales (a set-up).

        Call this before the first `masked_columns`. number : number of this set-up, above the numbers of all earlier set-ups.
        """
        if number <= self._setup:
            raise PrivacyError(
                "columns need a new set-up number: reused masks would reveal the difference of the columns"
            )
        if columns.rows.shape[1] != self._n:
            raise FederationError("the columns have a different number of records from the run")
        self._setup, self._columns, self._angles = number, columns, OwnAngles(columns)

    def masked_columns(self, start: int, stop: int) -> Elements:
        """Return masked columns start to stop, Q_S − U, (s, n) uint64, for the other holders. The dealer knows the mask U."""
        rows = self._own().rows[start:stop]
        block = ("block", self._setup, self.name, start, stop)
        self._streams.reserve(DEALER, *block)
        masked = self._streams.again(DEALER, *block).words(*rows.shape)
        np.subtract(rows.astype(np.int64).view(np.uint64), masked, out=masked)
        return masked

    def take_columns(self, owner: str, setup: int, start: int, stop: int, elements: Elements) -> None:
        """Take a block of another party's masked columns, as a party that holds shares of the residuals.

        Blocks with earlier caps, centres and scales (set-ups) of this owner are dropped.
        """
        self._fits(elements, stop - start, self._n)
        for block in [block for block in self._masked if block[2] == owner and block[1] != setup]:
            del self._masked[block]
        self._masked["block", setup, owner, start, stop] = elements

    # One version of the model

    def masked_angles(self, version: Version, w: Vector, clamp: float | None) -> Angles:
        """Return this party's part of the margins, masked, as angles (2^−16 of a period), (n,) uint16, for other holders.

        The mask is ρ_p. w : (p,), coefficients of this party's columns. clamp : from vfl.secure.sigmoid.clamps.
        """
        state = self._state(version)
        rows = self._streams.once(DEALER, "angles", *version.name).short(self._n + CHECK_ROWS)
        chosen = state.chosen = chosen_rows(self.coin, version, self._n)
        state.masks_opened = rows[chosen.opened]
        masked: Angles = self._own_angles(version, w, clamp) + chosen.masking(rows)
        if self.holds:
            self._add_angles(state, self.name, masked)
        return masked

    def take_angles(self, version: Version, sender: str, angles: Angles) -> None:
        """Take another party's masked part of the margins (angles), as a party that holds shares of the residuals."""
        if angles.dtype != np.uint16 or angles.shape != (self._n,):
            raise FederationError(f"the angles of {sender!r} do not have one entry per record")
        self._add_angles(self._state(version), sender, angles)

    def take_terms(self, version: Version, elements: Iterator[Elements]) -> None:
        """Take the dealer's shares of the Fourier terms, (n + S, 2K), in parts, for `share`. Only for `Roles.supplied`."""
        self._state(version).fourier_terms = elements

    def share(self, version: Version) -> Elements:
        """Return this holder's share of the residuals, (n,) uint64. The share is never sent without a mask."""
        state = self._state(version)
        if state.share is None:
            state.share = self._residuals(version, state)
            state.fourier_terms = state.angles = None
        return state.share

    def masked_residual(self, version: Version, owner: str) -> Elements:
        """Return [r]_h − b_h, (n,) uint64, for another party that owns columns. This holder and the dealer know b_h."""
        share = self.share(version)
        state = self._state(version)
        if owner not in state.masks:
            state.masks[owner] = self._streams.once(DEALER, "residual", owner, *version.name).words(self._n)
        return share - state.masks[owner]

    def take_residual(self, version: Version, sender: str, elements: Elements) -> None:
        """Take another party's masked share of the residuals, as an owner of columns."""
        self._fits(elements, self._n)
        self._state(version).received.setdefault(self.name, {})[sender] = elements

    def take_sum(self, opening: Opening, elements: Elements) -> None:
        """Take the dealer's share of one noised sum, as the owner of the summed block of columns."""
        self._fits(elements, opening.size)
        self._sums[opening] = elements

    # A check of the dealer

    def opened_rows(self, version: Version) -> tuple[Angles, Elements | None]:
        """Return the check rows for the label party: masks of angles (S,), and a holder's shares of Fourier terms (S, 2K).

        The check rows mask no record. A holder of residual shares calls `share` first.
        """
        state = self._state(version)
        if state.masks_opened is None or (self.holds and state.rows_opened is None):
            raise FederationError("rows were to be opened before the dealer's shares arrived")
        return state.masks_opened, state.rows_opened

    def take_rows(self, version: Version, sender: str, masks: Angles, rows: Elements | None) -> None:
        """Take another party's check rows, as the label party."""
        self._state(version).opened[sender] = masks, rows

    def check_dealt(self, version: Version) -> None:
        """Compare all check rows with the right values, as the label party; raise PrivacyError if the dealer dealt a wrong row.

        Before this check, the label party contributes to no sum at this version of the model.
        """
        state = self._state(version)
        found = state.opened | {self.name: self.opened_rows(version)}
        if set(found) != set(self._roles.parties):
            raise FederationError("the opened rows of a party are missing")
        masks = sum((found[party][0] for party in self._roles.parties), start=np.zeros(CHECK_ROWS, dtype=np.uint16))
        table = sigmoid.fourier_terms(version.terms)
        total = np.zeros((CHECK_ROWS, table.shape[1]), dtype=np.uint64)
        for holder in self._roles.holders:
            rows = found[holder][1]
            if rows is None or rows.shape != total.shape:
                raise FederationError(f"the opened rows of {holder!r} have the wrong shape")
            total += rows
        if (total != table[masks].astype(np.int64).view(np.uint64)).any():
            raise PrivacyError(
                "the dealer sent wrong sine and cosine shares: the rows opened for the check do not match their masks; nothing "
                "is opened at this model"
            )
        state.checked = True
        state.opened.clear()

    def require_checked(self, version: Version) -> None:
        """Raise PrivacyError at the label party if there is a coin and the dealer's rows at this version are not checked."""
        if self.coin is not None and self.name == self._roles.label and not self._state(version).checked:
            raise PrivacyError("a sum was to be opened before the dealer's shares were checked")

    # One revealed sum

    def contribution(self, opening: Opening, deviations: Deviations) -> Elements:
        """Return this party's share of a noised sum, (s,) uint64: its part of the sum plus its noise and its share of zero.

        The caller charges the release first. A second contribution to one sum is refused.
        """
        self.require_checked(opening.version)
        size, name = opening.size, opening.name
        total = zero_share(self._streams, self.name, self._roles.parties, name, size)
        total += encoded(distributed.drawn(self._noise, opening.key, self.name, deviations.party, size))
        if self.name not in self._roles.summed(opening.owner):
            return total
        total += self._part(opening)
        if self.name == opening.owner:
            if opening not in self._sums:
                raise FederationError("the dealer's message for this sum is missing")
            total += self._sums.pop(opening)
        else:
            total += self._streams.once(DEALER, "sum", *name).words(size)
        return total

    def _part(self, opening: Opening) -> Elements:
        """Return this party's part of Qᵀr, masked by the dealer's part."""
        version, owner = opening.version, opening.owner
        state = self._state(version)
        if self.name != owner:
            masked = self._masked.get(opening.block)
            if masked is None or owner not in state.masks:
                raise FederationError(
                    f"party {self.name!r} has not received the masked columns or residuals for a block of {owner!r}"
                )
            return kernels.products(masked, state.masks[owner])
        if opening.setup != self._setup:
            raise FederationError("a sum was requested for a set-up of columns that is not the latest")
        if owner not in state.total:
            parts = state.received.get(owner, {})
            if set(parts) != set(self._roles.receivers(owner)):
                raise FederationError("the masked residuals of at least one party are missing")
            own = self.share(version) if self.holds else np.zeros(self._n, dtype=np.uint64)
            state.total[owner] = sum(parts.values(), start=own)
            parts.clear()
        return kernels.products(self._own().rows[opening.start : opening.stop], state.total[owner])

    def _residuals(self, version: Version, state: _State) -> Elements:
        chosen = state.chosen
        if not self.holds or chosen is None or state.angles is None or state.arrived != set(self._roles.parties):
            missing = ", ".join(sorted(set(self._roles.parties) - state.arrived))
            raise FederationError(f"party {self.name!r} has not received the angles of {missing or 'other parties'}")
        width, done, total = 2 * version.terms, 0, self._n + CHECK_ROWS
        out, kept, angles = self._empty(version), RowCollector(chosen, width), state.angles
        for elements in self._fourier_terms(version, state, width):
            self._fits(elements, min(len(elements), total - done), width)
            at = slice(done, min(done + len(elements), self._n))
            if done < self._n:
                self._put(out, version, at, angles[at], elements[: at.stop - at.start])
            kept.take(done, elements)
            done += len(elements)
        if done != total:
            raise FederationError(f"the dealer's sine and cosine shares cover {done} rows instead of {total}")
        moved = chosen.moved
        self._put(out, version, moved, angles[moved], kept.at(chosen.to), instead_of=kept.at(moved))
        state.rows_opened = kept.at(chosen.opened)
        return out

    def _own_angles(self, version: Version, w: Vector, clamp: float | None) -> Angles:
        """Return this party's part of the margins as angles, (n,)."""
        if self._angles is None:
            raise FederationError(EARLY)
        return self._angles.at(w, version.period, clamp)

    def _empty(self, version: Version) -> Elements:
        """Return the array for this holder's share, before the dealer's rows are put into it."""
        return np.zeros(self._n, dtype=np.uint64)

    def _put(
        self,
        out: Elements,
        version: Version,
        at: slice | Integers,
        angles: Angles,
        elements: Elements,
        instead_of: Elements | None = None,
    ) -> None:
        """Compute shares of some records. at : their positions. instead_of : rows with which they were computed before."""
        out[at] = kernels.residual_shares(sigmoid.responses(version.place), angles, elements)
        if self._halves is not None:
            out[at] += self._halves[at]

    def _fourier_terms(self, version: Version, state: _State, width: int) -> Iterator[Elements]:
        """Yield this holder's shares of the Fourier terms, some rows at a time."""
        if self.name == self._roles.supplied:
            if state.fourier_terms is None:
                raise FederationError("the dealer's sine and cosine shares are missing")
            yield from state.fourier_terms
            return
        stream, total = self._streams.once(DEALER, "Fourier terms", *version.name), self._n + CHECK_ROWS
        buffer = np.empty((min(CHUNK, total), width), dtype=np.uint64)
        for start in range(0, total, CHUNK):
            yield stream.fill(buffer[: min(CHUNK, total - start)])

    def _add_angles(self, state: _State, sender: str, angles: Angles) -> None:
        if sender in state.arrived:
            raise FederationError(f"the angles of {sender!r} arrived twice for the same model")
        state.arrived.add(sender)
        state.angles = angles.copy() if state.angles is None else state.angles + angles

    def _state(self, version: Version) -> _State:
        if version not in self._states:
            while len(self._states) >= KEPT:
                self._states.pop(next(iter(self._states)))
            self._states[version] = _State()
        return self._states[version]

    def _own(self) -> OwnColumns:
        if self._columns is None:
            raise FederationError(EARLY)
        return self._columns

    def _fits(self, elements: Elements, *shape: int) -> None:
        if elements.dtype != np.uint64 or elements.shape != shape:
            raise FederationError(f"a message has shape {elements.shape} instead of {shape}")


PANEL = 1 << 15
"""Number of 64-bit integers of a column's mask that are generated at a time."""


class Dealer:
    """Sends correlated random integers to the parties, and adds noise of its own, in one session.

    Guarantee. The dealer receives only public facts, so it learns at most the opened sums. For each single receiver, the
    integers modulo 2^64 that the dealer sends are uniform.

    roles : public roles. streams : streams shared with every party. noise : source of the dealer's noise. n_records : n.
    """

    def __init__(self, roles: Roles, streams: Streams, noise: NoiseSource, n_records: int) -> None:
        self._roles, self._streams, self._noise, self._n = roles, streams, noise, n_records
        self._rows = n_records + CHECK_ROWS
        self._masks: dict[Version, dict[str, Elements]] = {}

    @property
    def n_rows(self) -> int:
        """Return n + S, the number of rows of Fourier terms."""
        return self._rows

    def fourier_terms(self, version: Version, records: int = CHUNK) -> Iterator[Elements]:
        """Yield the last holder's shares of the Fourier terms at the masks, (n + S, 2K) uint64, in parts, for `Roles.supplied`.

        The parties open S of the n + S rows to check the dealer (vfl.secure.check_rows).

        records : number of rows per part. All parts use one buffer, so a part overwrites the part before it.
        """
        table = sigmoid.fourier_terms(version.terms)
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

    def sum(self, opening: Opening, deviations: Deviations) -> Elements:
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

    def _product(self, opening: Opening) -> Elements:
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

    def _of_version(self, version: Version) -> dict[str, Elements]:
        if version not in self._masks:
            while len(self._masks) >= KEPT:
                self._masks.pop(next(iter(self._masks)))
            self._masks[version] = {}
        return self._masks[version]
