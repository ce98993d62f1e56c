"""Define options that commands share, and the parser of the whole command line."""
