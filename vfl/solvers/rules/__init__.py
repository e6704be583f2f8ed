"""Public rules for options left at None, and predictions from public facts. No rule or prediction reads data."""
