"""Conclude from scored findings: their location, their confidence, what they explain, and what remains."""
