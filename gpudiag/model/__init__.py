"""Define the data types that the stages pass to each other. This package computes and draws nothing.

The types in order of creation: `job`, `run` and `facts` → `event` → `timeline` → `analysis`, then `diff` and
`benchmarks/`, which compare several runs. `run_directory` stores records, `sanitize` makes text from files safe,
`probed` looks up measured links, and `protobuf/` has formats that are both read and written.
"""
