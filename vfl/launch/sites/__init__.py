"""Sites that run a job: in this process, on Ray, or across a federation."""
