"""Show the progress of long commands on standard error: as a bar or a line in a terminal, as lines in a pipe."""
