"""Version of the code, defined only here. Participants compare versions before they work together."""

__version__ = "0.1.0"
