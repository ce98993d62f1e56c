"""Predict the step time of each strategy from facts, gradient sizes and compute time, without any framework."""
