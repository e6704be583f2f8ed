"""Resident scoring service of the party that adds up: it answers HTTP requests and asks the other parties for their parts."""
