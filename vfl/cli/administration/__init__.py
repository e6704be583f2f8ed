"""Commands of data owners, of organisations of a federation, and of an installation."""
