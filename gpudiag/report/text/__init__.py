"""Reports as Markdown and CSV: of one `run`, and of the `results` of many."""
