"""Reports as one HTML file that loads nothing.

`render` assembles the page from `run` (with its `steps`), `scaling` and `machine`, which return the variables
of their templates in `templates/`. `charts` draws with `svg`.
"""
