"""The selftest: faults of known kind and size put into a training job, and what the diagnosis made of each.

`faults` says which faults and jobs there are and what should be found, `catalogue` which go where; `selftest` trains
and records; `judge` compares, and `score` counts.
"""
