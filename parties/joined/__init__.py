"""Party of a federation: it connects to the coordinator, and answers the calls that its owner allows."""

from parties.joined.serving import NotAccepted, serve

__all__ = ["NotAccepted", "serve"]
