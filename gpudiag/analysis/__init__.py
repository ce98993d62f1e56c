"""Analyse traces: timeline → attribution → diagnosis; compare analyses, and measure scaling."""
