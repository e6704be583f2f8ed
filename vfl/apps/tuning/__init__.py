"""Tuning: a private choice among candidate jobs under one ε. `tune`, the candidates, their trials and the secret draw."""
