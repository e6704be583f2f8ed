"""Charges before releases: the budget of a run, and the passes, folds and samples that one charge pays for."""
