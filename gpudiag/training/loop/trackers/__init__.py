"""Log an analysed run to experiment trackers. A tracker's library is imported when something is logged to it."""
