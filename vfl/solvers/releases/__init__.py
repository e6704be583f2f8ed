"""One-time releases of facts about the data. Each is charged a share of the run's budget."""
