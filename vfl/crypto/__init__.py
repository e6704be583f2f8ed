"""Cryptography between participants: signatures, encrypted messages, identifiers of records and their private intersection.

Begin with `signatures`; `identifiers`, `psi` and `alignment` are the way from ids to common rows.
"""
