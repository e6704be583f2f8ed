"""Training on shares, for `trust = "secure"`: only its owner sees a column, and nobody sees a margin."""
