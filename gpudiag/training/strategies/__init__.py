"""Strategies: how the devices of a job communicate gradients. `registry` lists them without importing a framework."""
