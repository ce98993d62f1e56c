"""The selftest: inject faults of known kind and size into training, and judge the diagnosis of each."""
