"""How far long work is, for people, always on standard error: a bar or a line in a terminal, lines in a pipe.

`status_line` is the line that most share; the others are each one kind of work.
"""
