"""Terminal reports of a machine: `topology` (with `links`), and measured `bandwidth`.

`tables` and `words` serve the HTML pages too.
"""
