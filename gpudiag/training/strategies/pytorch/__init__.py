"""Implement the strategies under PyTorch. `strategies.registry` lists strategies without importing PyTorch."""
