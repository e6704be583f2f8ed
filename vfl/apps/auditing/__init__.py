"""Audit of a job: a lower bound on ε from many runs on simulated records, and checks of the noise."""
