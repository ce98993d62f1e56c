"""Plan the probe programs, run them, decode their results, assemble these into facts, and cache them for a day."""
