"""Classify kernels by what they compute, and sum their times per class."""
