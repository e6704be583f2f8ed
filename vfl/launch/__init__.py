"""The composition root: the only place that sees coordinator and parties together."""

from __future__ import annotations

from vfl.launch.train import stream, train

__all__ = ["stream", "train"]
