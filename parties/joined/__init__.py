"""A party of another organisation: it connects to the coordinator and answers calls that its owner allows."""

from parties.joined.serving import NotAccepted, serve

__all__ = ["NotAccepted", "serve"]
