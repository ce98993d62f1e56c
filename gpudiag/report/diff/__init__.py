"""A difference of two runs in a terminal: `terminal` lays it out, `words` has the verdict, the others sections."""
