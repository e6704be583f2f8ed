"""The version of the code, defined only here. Participants compare it before they work together."""

__version__ = "0.1.0"
