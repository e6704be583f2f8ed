"""Privacy budgets of data sets. A run reserves its plan, charges each release before the release is made, and is settled.

A ledger is durable, protected by a hash chain, and shared by all processes of a machine.
"""

from __future__ import annotations

from vfl.privacy.ledger.codec import Head as Head
from vfl.privacy.ledger.composition import Accounting as Accounting
from vfl.privacy.ledger.dataset import DatasetBudget as DatasetBudget
from vfl.privacy.ledger.dataset import DatasetReservation as DatasetReservation
from vfl.privacy.ledger.durable import Balance as Balance
from vfl.privacy.ledger.durable import RunBalance as RunBalance
from vfl.privacy.ledger.durable import SqliteLedger as SqliteLedger
from vfl.privacy.ledger.fit import FitBudget as FitBudget
from vfl.privacy.ledger.reservation import Preview as Preview
from vfl.privacy.ledger.reservation import PrivacyBudget as PrivacyBudget
from vfl.privacy.ledger.reservation import Reservation as Reservation
from vfl.privacy.ledger.reservation import Statement as Statement
