"""Whole jobs of their own: well built ones, in which nothing may be alarmed, and others than data-parallel ones.

Switched on a job is as it is, switched off it exchanges nothing: so that what its exchange costs can be told.
"""
