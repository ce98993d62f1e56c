"""The machine: what it has, what the hardware allows, and what its links really carry.

Read first `inventory/`, which needs neither a framework nor CUDA; then `measure`, which runs the programs of `probes/`
and puts their figures beside the `ceilings`; `facts_file` keeps it all as facts.json.
"""
