"""Diagnose a job: rules propose scenarios, a simulation scores them, and the engine reports findings.

The package `hardware` diagnoses machines without NumPy. Import the diagnosis of traces from `engine`, not from here, so
that `gpudiag topology` does not load the simulation.
"""
