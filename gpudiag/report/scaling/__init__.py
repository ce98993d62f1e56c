"""Show scaling results in a `terminal` or as `text` (Markdown, CSV), with cells and sentences that `words` makes."""
