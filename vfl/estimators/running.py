"""The running total of a process's private fits that no ledger counts, and the warning that states it."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

from vfl.privacy.ledger import Accounting
from vfl.privacy.ledger.composition import epsilon_of, plan_cost

if TYPE_CHECKING:
    from vfl.privacy.ledger.composition import Plan


class PrivacyWarning(UserWarning):
    """A guarantee that says less than one might think, or a declaration that is missing.

    Raised before anything is released: `warnings.simplefilter("error", vfl.PrivacyWarning)` refuses such fits.
    """


class RunningTotal:
    """ε of all private fits so far, as if each had seen the same records. Threads may share it.

    Which fits share records cannot be known, so every fit counts: the total is what holds in the worst case. μ² of all
    planned releases adds up exactly (Smith & Thakurta 2022, arXiv 2210.17520), whether or not a fit came to its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fits = 0
        self._units = 0

    def add(self, releases: Plan, delta: float) -> None:
        """Count a fit that is about to start, and warn from the second on, with ε at this fit's δ.

        Where the filter makes the warning an error, the fit is not counted: it does not start.
        """
        with self._lock:
            units = self._units + plan_cost(releases, Accounting.GDP)
            if self._fits:
                warnings.warn(
                    f"private fit {self._fits + 1} of this process without a ledger. Its certificate covers this one fit "
                    f"only; all of them together are (ε = {epsilon_of(Accounting.GDP, units, delta):.4g}, "
                    f"δ = {delta:.3g})-differentially private for records that they share. Other processes are not "
                    "counted. A ledger bounds the sum: ledger='book.sqlite', dataset='NAME'",
                    PrivacyWarning,
                    stacklevel=5,  # who called fit, over _train and _run
                )
            self._fits += 1
            self._units = units


of_this_process = RunningTotal()
