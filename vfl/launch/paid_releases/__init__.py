"""Releases about columns in separate runs: bounds, quantiles and weight of evidence."""
