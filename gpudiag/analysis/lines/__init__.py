"""Measure host time by lines of the user's source. Other stages of the analysis import this one, never vice versa."""
