"""Render results: in the terminal, as HTML, Markdown and CSV, and in the formats of other tools.

- `terminal/` renders the output of `gpudiag analyze`. Read this first.
- `page/` renders the HTML page of a run or a scaling benchmark, and `text/` renders Markdown and CSV.
- `diff/` renders the difference of two runs, `facts/` a machine, and `scaling/` a benchmark.
- `export/` converts events for other tools.

Text from traces, facts or run directories passes through `model.sanitize`.
"""
