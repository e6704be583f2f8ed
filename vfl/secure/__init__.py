"""Training on secret shares, for `trust = "secure"`: only the owner sees a column; nobody sees a margin."""
