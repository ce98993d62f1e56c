"""What became of the command: what its processes report, and the sentence that is made of it."""
