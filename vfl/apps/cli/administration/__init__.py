"""Commands for data owners, for organisations of a federation, and for an installation."""
