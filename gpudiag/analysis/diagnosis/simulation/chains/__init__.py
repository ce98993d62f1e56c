"""What the host threads of each process do, in order: launch, wait, work."""
