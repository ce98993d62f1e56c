"""Prototype: attribute host time to the lines of the user's source."""
