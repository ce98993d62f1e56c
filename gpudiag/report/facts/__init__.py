"""Print a machine in the terminal: `topology` (with `links`), and measured `bandwidth`.

The HTML pages use `tables` and `words` too.
"""
