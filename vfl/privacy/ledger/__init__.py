"""Privacy budget of data sets: reserve a plan, charge each release before it is made, settle.

A ledger is durable, chained by hashes and shared by all processes of a machine.
"""

from __future__ import annotations

from vfl.privacy.ledger.chain import Head
from vfl.privacy.ledger.composition import Accounting
from vfl.privacy.ledger.dataset import DatasetBook, DatasetReservation
from vfl.privacy.ledger.durable import Balance, Ledger, RunBalance, SqliteLedger
from vfl.privacy.ledger.fit import FitBook
from vfl.privacy.ledger.reservation import Book, Preview, Reservation, Statement

__all__ = [
    "Accounting",
    "Balance",
    "Book",
    "DatasetBook",
    "DatasetReservation",
    "FitBook",
    "Head",
    "Ledger",
    "Preview",
    "Reservation",
    "RunBalance",
    "SqliteLedger",
    "Statement",
]
