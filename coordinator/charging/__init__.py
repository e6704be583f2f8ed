"""Charging of releases before they are made: the budget of a run, its charges, and the party ledgers."""
