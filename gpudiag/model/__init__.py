"""Define the data types that the stages pass to each other. This package computes and draws nothing.

In order of creation: `job`, `run` and `facts` → `event` → `timeline` → `attribution` → `analysis`, then `diff` and
`benchmarks/`, over several runs. `run_directory` stores them, `sanitize` makes text from files safe, `probed` looks up
measured links, and `protobuf/` has formats that are both read and written.
"""
