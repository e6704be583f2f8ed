"""The steward's book: reserve a plan, charge each release before it is made, settle; durable, chained, shared."""

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
