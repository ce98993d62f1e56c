"""Build host chains: the work of each process's host threads, in order."""
