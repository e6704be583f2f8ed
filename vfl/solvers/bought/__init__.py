"""Facts about the data that a run buys for a share of its budget, each by one charged release."""
