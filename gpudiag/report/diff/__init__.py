"""Show the difference between two runs in a terminal: `terminal` (the report), `tables`, `words`."""
