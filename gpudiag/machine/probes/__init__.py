"""Plan and run the probe programs, add their results to facts, and cache these for a day."""
