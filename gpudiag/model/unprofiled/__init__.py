"""Parts of an analysis that are measured without the profiler: `steps`, then `compute_rate` over them."""
