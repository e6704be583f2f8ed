"""Charging of releases before they are made: the budget of a run, and the passes, batches and samples that share a charge."""
