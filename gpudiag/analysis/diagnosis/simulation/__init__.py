"""Replay: what would the step time be if one cause went away? A graph of host and device, edited and run again."""
