"""Conclude from scored findings: their place, their certainty, what they explain and what is left."""
