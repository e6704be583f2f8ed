"""Privacy: accounting (events, accountants, calibration, ledger), and the mechanisms and noise sources of releases."""
