"""`gpudiag profile`, and what every other use case that trains needs: prepare a run, carry it out."""
