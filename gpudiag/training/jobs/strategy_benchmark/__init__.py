"""Several strategies in one set of processes, in turns: the program of `gpudiag recommend`'s training processes."""
