"""Engines that run a job: in this process, or on Ray."""
