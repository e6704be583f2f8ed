"""Training on secret shares, for `trust = "secure"`: only the owner sees a column; nobody sees a margin.

Begin with `roles` (who holds what) and `sharing` (what a run on shares states in public), then `requests` and `member`.
"""
