"""Charges before releases: the budget of a run, and the passes, batches and samples that one charge pays for."""
