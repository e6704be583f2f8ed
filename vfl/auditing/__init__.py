"""Audit: a lower bound on a job's ε from many runs on simulated records, and checks of its noise."""
