"""Options that verbs share, and the parser of the whole command line."""
