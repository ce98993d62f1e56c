"""Measure the most promising strategies side by side, and say which to take. No framework is imported here."""
