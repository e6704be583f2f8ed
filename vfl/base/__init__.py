"""Declarations of a job, its problem, and plain files: the lowest package, which all others use.

Columns, features, partition, losses and penalties say what a job may ask for; `problem` puts them together as the objective of
a run. The rest is plain: arguments, documents, texts, durable files. Begin with `types` (notation), then `problem`.
"""
