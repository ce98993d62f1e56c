"""Programs of training processes: workloads, user-defined functions, benchmarks and the selftest."""
