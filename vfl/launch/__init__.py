"""Launching of runs: the first package that imports both the coordinator and the parties.

`sites` start the participants in this process, on Ray or across organisations; `run` executes a plan and makes the result.
Begin with `train`.
"""

from __future__ import annotations

from vfl.launch.train import stream, train

__all__ = ["stream", "train"]
