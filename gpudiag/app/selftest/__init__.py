"""The selftest: faults of known kind and size put into a training job, and what the diagnosis made of each.

`catalogue` says which faults there are and what should be found; `selftest` trains and records; `judge` compares.
"""
