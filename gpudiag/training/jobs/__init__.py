"""Run workloads, user-defined functions, benchmarks and the selftest in training processes."""
