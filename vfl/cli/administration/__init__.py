"""Commands of stewards, of organisations of a federation, and of an installation."""
