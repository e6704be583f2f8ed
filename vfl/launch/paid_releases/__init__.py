"""Releases about columns, each in a run of its own with its own cost: bounds, quantiles and weight of evidence."""
