"""Check for obstacles to profiling a job (CUPTI, permissions, peer copies), without privileges and without hanging."""
