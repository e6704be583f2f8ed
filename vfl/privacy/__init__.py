"""Events → accountants → calibration → ledger; mechanisms and noise apart from them."""
