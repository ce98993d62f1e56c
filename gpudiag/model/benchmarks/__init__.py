"""Define the data types of measurements over several runs: strategy benchmarks, sweeps, scaling, the selftest."""
