"""Print facts of a machine in the terminal (`topology`, `bandwidth`). The HTML pages also use `tables` and `words`."""
