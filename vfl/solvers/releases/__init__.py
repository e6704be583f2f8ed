"""Facts about the data that a run releases for a share of its budget, each by one charged release."""
