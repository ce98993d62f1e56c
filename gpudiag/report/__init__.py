"""Rendering of results: terminal, HTML, Markdown, CSV, and the formats of other tools.

- `terminal/`: the output of `gpudiag analyze`; read this first.
- `page/`: the HTML page of a run or a scaling benchmark. `text/`: Markdown and CSV.
- `diff/`: two runs. `facts/`: a machine. `scaling/`: a benchmark. `export/`: events for other tools.

Text from traces, facts or run directories passes through `model.sanitize`.
"""
