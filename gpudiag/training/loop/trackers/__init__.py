"""Log an analysed run to experiment trackers. A tracker's library is imported only when a run is logged to it."""
