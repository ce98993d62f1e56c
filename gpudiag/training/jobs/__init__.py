"""Define the programs that training processes run: workloads, user-defined functions, benchmarks and the selftest."""
