"""Implement `gpudiag profile`: prepare a run, carry it out, and analyse it."""
