"""Facts about columns that are released in runs of their own: bounds, quantiles, weight of evidence."""
