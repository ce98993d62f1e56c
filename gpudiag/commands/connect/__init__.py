"""Define the commands that pass results to other programs."""
