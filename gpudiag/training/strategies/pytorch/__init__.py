"""The PyTorch strategies. `registry` lists them without importing PyTorch."""
