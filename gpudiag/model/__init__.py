"""Define the data types that the parts of gpudiag pass to each other. This package computes and draws nothing.

Modules in the order in which a run creates their types: `job`, `run` and `facts` → `event` → `timeline` → `analysis`,
then `diff` and `benchmarks/`, which compare several runs. `run_directory` writes and reads records, `sanitize` makes
text from files safe, `probed` looks up measured links, and `protobuf/` has formats that are both read and written.
"""
