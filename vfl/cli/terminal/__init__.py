"""Progress, signals and streams of a command."""
