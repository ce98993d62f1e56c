"""Measure host time by lines of the user's source. This package imports no other stage of the analysis."""
