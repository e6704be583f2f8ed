"""Drafts of job files for `vfl init`: recognition of text formats and of join columns."""
