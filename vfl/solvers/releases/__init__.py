"""One-time releases about columns, labels and the final model. Each release is charged a share of the run's budget."""
