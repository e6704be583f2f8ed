"""Resident scoring service of the party that adds up: HTTP in front, the other parties' streams behind."""
