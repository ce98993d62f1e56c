"""The report as one HTML file that loads nothing.

`render` puts it together from whatever there is: `run` (and the `steps` of its timeline), `scaling`, `machine`; each
makes the variables of its template in `templates/`. `bandwidth` is a page by itself. `charts` and `graph` draw with
`svg`; `templating` is the engine.
"""
