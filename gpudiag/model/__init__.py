"""Nouns: what the stages hand to each other. Nothing here computes or draws.

In the order in which they are made: `job`, `run` and `facts` → `event` → `timeline` → `attribution` → `analysis`
(with what is measured without the profiler, in `unprofiled/`), then `diff` and what is measured over several runs, in
`benchmarks/`. `run_directory` keeps them; `sanitize` makes text of others safe, `probed` looks figures up, `protobuf/`
holds formats that are both read and written.
"""
