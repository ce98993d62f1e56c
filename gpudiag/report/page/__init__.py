"""Write reports as one HTML file that loads no other files.

`render` assembles the page from `run` (with its `steps`), `scaling` and `machine`. These modules return the variables
of their templates in `templates/`. `charts` draws with `svg`.
"""
