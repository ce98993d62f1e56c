"""Watching the command from outside: its messages, its signals, and the ends of its processes."""
