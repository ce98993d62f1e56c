"""Drawing: each noun in a terminal, on a page, as text, in the formats of other tools.

Read first `terminal/`, what `gpudiag analyze` prints; then `page/`, the same and a whole scaling benchmark as one HTML
file; `text/`, Markdown and CSV. Of other nouns: `diff/` two runs, `facts/` a machine, `scaling/` a benchmark. `export/`
writes events for other tools. Beside them is what they share: `layout` and `console`, `figures` and `kernel_names`,
`palette`, `rank_rows`, `evidence`. Text of others passes through `model.sanitize`.
"""
