"""Launching of runs: the only package that imports both the coordinator and the parties."""

from __future__ import annotations

from vfl.launch.train import stream, train

__all__ = ["stream", "train"]
