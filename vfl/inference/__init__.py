"""Standard errors of private coefficients: post-processing of a run's releases."""

from vfl.inference.inference import Inference as Inference
