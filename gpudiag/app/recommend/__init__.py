"""Measure the most promising strategies by turns, and recommend one. No framework is imported here."""
