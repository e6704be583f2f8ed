"""Releases that a run makes once, about columns, labels and the final model. Each takes a share of the run's budget."""
