"""Diagnose a job: rules propose scenarios, a simulation scores them, and the engine reports findings.

`hardware` judges facts alone and needs no arrays. Code that judges traces is in `engine` and imported from there, so
that `gpudiag topology` need not import it.
"""
