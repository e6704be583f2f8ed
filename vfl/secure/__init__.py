"""Training on shares: `trust = "secure"`, in which nobody but its owner sees a column, and nobody at all a margin."""
