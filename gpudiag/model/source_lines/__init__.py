"""Source lines of the user's program: the log of a process (`log`) and what an analysis says of them (`records`)."""
