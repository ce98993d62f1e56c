"""Start, measure and describe training processes."""
