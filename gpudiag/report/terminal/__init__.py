"""Reports in a terminal.

`report` is what `analyze` prints, from `bars`, `ranks`, `findings` and `traffic`; the others are each one command's.
"""
