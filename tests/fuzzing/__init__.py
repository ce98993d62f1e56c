"""Run mutants of real files through gpudiag's commands, and check limits on time, memory and errors.

`mutants` makes a mutant from a number. `runs` runs many mutants in separate processes and reports failures. `python -m
tests.fuzzing` (`make fuzz`) runs 10,000 mutants.
"""
