"""Write Markdown and CSV of a run (`run`), and of many results (`results`, `forms`)."""
