"""The coordinator of a run: it holds the shared margins Xw, sends queries to the parties, and charges each release first."""
