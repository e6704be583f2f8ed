"""Public rules for options left at None, and predictions from public facts. None of them reads data."""
