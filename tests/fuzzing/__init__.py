"""Run mutants of real files through gpudiag's commands, and check limits on their effects.

`mutants` makes a mutant from a number. `runs` runs many mutants in separate processes and reports failures. `python -m
tests.fuzzing` (`make fuzz`) runs 10,000.
"""
