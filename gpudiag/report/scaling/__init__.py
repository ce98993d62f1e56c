"""Scaling results: `words` has their headings and cells, drawn in a `terminal` or as `text` (Markdown, CSV)."""
