"""Scaling results: `words` has cells and sentences, shown in a `terminal` or as `text` (Markdown, CSV)."""
