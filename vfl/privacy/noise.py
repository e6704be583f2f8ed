"""Noise sources. A source gives one keystream per release.

Guarantees hold for `CryptographicNoise`. `SeededNoise` repeats its noise and gives no private result; a job has to request it
by name. The code that draws noise is loaded on first use, so that this module imports quickly.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol

from vfl.errors import PrivacyError, SpecificationError

if TYPE_CHECKING:
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.keystream import Keystream


class NoiseSource(Protocol):
    """Source of keystreams, from which noise is drawn."""

    @property
    def private(self) -> bool:
        """True if a guarantee may rely on the noise. False if others can compute it; results are then marked NOT PRIVATE."""
        ...

    def stream(self, key: ReleaseKey, who: str = "") -> Keystream:
        """Return the keystream for the one release that `key` identifies. Use the keystream for no other release.

        who : contributor, if several participants add noise to one release. Without `who`, sources with equal seeds would draw
            equal noise.
        """
        ...


class CryptographicNoise:
    """Noise that nobody can predict or repeat: every stream has a fresh 256-bit key from the operating system.

    The source keeps nothing between calls, not even a key per process. A forked process, a restored container image and a
    repeated attempt therefore draw different noise. A source cannot be pickled: make it in the process that draws the noise.
    """

    __slots__ = ()

    private: ClassVar[bool] = True

    def stream(self, key: ReleaseKey, who: str = "") -> Keystream:  # always fresh, so neither argument is used
        """Return a new keystream at every call, even if `key` repeats."""
        from vfl.privacy.keystream import Keystream

        return Keystream(os.urandom(32))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError(
            "a CryptographicNoise cannot be pickled or copied: noise is drawn in the process that releases. "
            "Make a new one there; it holds no state"
        )


@dataclass(frozen=True, slots=True)
class SeededNoise:
    """Noise that is NOT PRIVATE, because it repeats: equal seed and release key give the same stream in any process and order.

    For tests and simulations. Anyone who knows or guesses the seed can subtract the noise. Streams of different keys, or of
    different contributors, are independent: the ChaCha20 key is SHA-256 of (seed, round, part, attempt, contributor),
    prefixed by a tag of its own.

    seed : integer ≥ 0, of any size. Anything else raises SpecificationError.
    """

    seed: int

    private: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise SpecificationError(f"SeededNoise: seed must be an int, not {type(self.seed).__name__}; use int(...)")
        if self.seed < 0:
            raise SpecificationError(f"SeededNoise: seed must be 0 or more, not {self.seed}")

    def stream(self, key: ReleaseKey, who: str = "") -> Keystream:
        """Return the keystream for (seed, key, who), always from the beginning of the stream."""
        from vfl.privacy.keystream import Keystream

        # Decimal numbers with separators that no number contains, then any text: no two keys are encoded alike.
        name = f"vfl.SeededNoise.v1|{self.seed}|{key.round}|{key.part}|{key.attempt}" + (f"|{who}" if who else "")
        return Keystream(hashlib.sha256(name.encode()).digest())
