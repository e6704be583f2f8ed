"""The one place that names the version of the code; participants shake hands on it."""

__version__ = "0.1.0"
