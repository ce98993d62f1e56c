"""Nouns of what is measured over several runs: benchmarks of strategies, sweeps, scaling, the selftest."""
