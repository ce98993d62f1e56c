"""Conclude from measured points, each a job on some devices, how training scales with the number of devices."""
