"""Print a machine in the terminal: `topology` and `bandwidth`. The HTML pages also use `tables` and `words`."""
