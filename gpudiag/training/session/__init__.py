"""Measure steps inside a training process. No framework is imported before a session needs it."""
