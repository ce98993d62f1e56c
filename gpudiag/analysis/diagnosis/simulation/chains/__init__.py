"""Build host chains: what the host threads of each process do, in order."""
