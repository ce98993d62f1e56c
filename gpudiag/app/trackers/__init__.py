"""Log runs to experiment trackers."""
