"""Data sources of a party: one interface over files, tables, arrays and sparse matrices, opened in the party's process."""
