"""User interfaces and tools that start from jobs and runs. No other package imports them.

Command line (`cli`), scikit-learn estimators, report, local page (`ui`), serving, monitor, tuning, auditing, and drafts of
jobs. Begin with `cli`, whose table lists every command.
"""
