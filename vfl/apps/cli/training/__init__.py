"""Commands that draft, plan, run and continue jobs."""
