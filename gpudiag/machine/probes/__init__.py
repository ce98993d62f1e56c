"""Plan and run the probe programs, add their results to facts, and cache the facts for a day."""
