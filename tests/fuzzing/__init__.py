"""What files from elsewhere can do: mutants of real ones, run through gpudiag's commands within bounds.

`mutants` makes one from a number; `runs` runs many in processes of their own and says which went wrong, and how;
`python -m tests.fuzzing` (`make fuzz`) runs 10,000.
"""
