"""Standard errors of coefficients, computed from a run's releases by post-processing."""

from vfl.inference.inference import Inference as Inference
