"""Columns as a party computes on them: cells converted as declared, then stored dense or sparse."""
