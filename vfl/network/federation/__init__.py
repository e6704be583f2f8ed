"""Identities of participants, and the public file that names them and the coordinator's address."""
