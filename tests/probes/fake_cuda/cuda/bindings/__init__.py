"""Enough of cuda.bindings to run the probes' own logic where there is no GPU: see driver.py."""

__version__ = "0.0.fake"
