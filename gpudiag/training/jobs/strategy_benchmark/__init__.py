"""Run the training processes of `gpudiag recommend`, which time several strategies in turns."""
