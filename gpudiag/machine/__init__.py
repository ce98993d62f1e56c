"""Describe the machine: its inventory, the ceilings of its links, and their measured bandwidths.

`inventory/` reads the hardware, and needs neither a framework nor CUDA. `measure` runs the probe programs by means of
`probes/`, and compares their results with the `ceilings`. `facts_file` reads and writes facts.json.
"""
