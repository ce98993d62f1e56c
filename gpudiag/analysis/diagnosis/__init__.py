"""Timeline and Attribution → Findings: rules, each one file, run by a small engine.

`hardware` judges facts alone and needs no arrays; what judges traces is in `engine` and imported from there, so that
`gpudiag topology` does not pay for it.
"""
