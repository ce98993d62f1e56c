"""Scaling of training with devices: conclusions from measured points."""
