"""Public rules for options left open, and predictions from public facts. None of them reads data."""
