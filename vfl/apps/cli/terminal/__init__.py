"""Progress display, signals and standard streams of a command."""
