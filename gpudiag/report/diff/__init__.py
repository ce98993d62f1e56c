"""Show the difference between two runs in a terminal. `terminal` has the report, made of `tables` and `words`."""
