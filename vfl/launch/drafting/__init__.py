"""Drafts of job files for `vfl init`: recognition of text formats, and of columns by which files may be joined."""
