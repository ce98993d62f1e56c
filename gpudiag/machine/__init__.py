"""Describe the machine: its inventory, the ceilings of its links, and their measured bandwidths.

`inventory/` needs neither a framework nor CUDA; `measure` runs the programs of `probes/` and compares their results
with the `ceilings`; `facts_file` writes facts.json.
"""
