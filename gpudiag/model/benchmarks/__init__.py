"""Nouns of measurements over several runs: strategy benchmarks, sweeps, scaling, the selftest."""
