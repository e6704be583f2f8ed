"""Scoring service: a process of the label party that answers HTTP requests and adds up all parties' parts of the scores."""
