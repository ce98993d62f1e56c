"""From facts, gradient sizes and compute time to the step time of each strategy. Imports no framework."""
