"""The program of `gpudiag recommend`'s training processes, which time several strategies in turns."""
