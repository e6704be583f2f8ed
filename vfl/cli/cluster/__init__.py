"""Commands on jobs that a Ray cluster runs."""
