"""Progress of long work on standard error: a bar or a line in a terminal, lines in a pipe."""
