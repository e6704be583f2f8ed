"""Privacy: accounting of releases (events, accountants, calibration, ledger), and the noise that they get.

An event (`events`) describes a release. Accountants compose events, `calibration` inverts them, and the `ledger` keeps what was
spent; `noise` draws. Accounting and drawing import events alone, never each other. Begin with `events`, then `accountants`.
"""
