"""The PyTorch strategies. `registry` lists strategies without importing PyTorch."""
