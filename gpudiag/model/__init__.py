"""Nouns that the stages pass to each other. Nothing here computes or draws.

In order of creation: `job`, `run` and `facts` → `event` → `timeline` → `attribution` → `analysis`, then `diff` and
`benchmarks/`, over several runs. `run_directory` stores them; `sanitize` makes foreign text safe, `probed` looks up
measured links, `protobuf/` has formats that are both read and written.
"""
