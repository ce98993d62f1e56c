"""Show the difference between two runs in a terminal. `terminal` prints the report from `tables` and `words`."""
