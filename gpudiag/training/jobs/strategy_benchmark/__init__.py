"""Several strategies in one set of processes, by turns: what `gpudiag recommend` starts in each process."""
