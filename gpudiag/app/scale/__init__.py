"""`gpudiag scale`: which points to measure, how they are kept, and their recorded steps."""
