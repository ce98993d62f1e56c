"""Combine the stages into use cases, one per command. This package draws nothing."""
