"""Diagnose a job: rules propose scenarios, a simulation scores them, and the engine reports findings.

`hardware` judges the facts of a machine without arrays. Import code that judges traces from `engine`, so that
`gpudiag topology` does not load it.
"""
