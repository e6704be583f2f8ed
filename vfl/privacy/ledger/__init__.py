"""The steward's book: reserve a plan, charge each release before it is made, settle; durable, chained, shared."""

from __future__ import annotations

from vfl.privacy.ledger.ahead import ChargeAhead
from vfl.privacy.ledger.book import Book, FitBook, Preview, Reservation, Statement
from vfl.privacy.ledger.chain import Head
from vfl.privacy.ledger.composition import Accounting
from vfl.privacy.ledger.durable import Balance, Ledger, RunBalance, SqliteLedger
from vfl.privacy.ledger.scoped import DatasetBook, DatasetReservation

__all__ = [
    "Accounting",
    "Balance",
    "Book",
    "ChargeAhead",
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
