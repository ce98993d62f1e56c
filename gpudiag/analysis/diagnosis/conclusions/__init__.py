"""What is concluded from scored findings: their place, their certainty, what they explain, what is left."""
