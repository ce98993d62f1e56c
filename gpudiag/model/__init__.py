"""Nouns: what the stages hand to each other. Nothing here computes or draws."""
