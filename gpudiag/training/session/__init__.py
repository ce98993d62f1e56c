"""Measure steps inside a training process. Import a framework only when a session needs it."""
