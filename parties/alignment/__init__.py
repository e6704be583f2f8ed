"""Record alignment at a party: read ids, blind them, keep the index of common records, read data in its order."""
