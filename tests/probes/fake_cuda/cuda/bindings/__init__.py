"""Provide the parts of cuda.bindings that the probes need on machines without a GPU (see driver.py)."""

__version__ = "0.0.fake"
