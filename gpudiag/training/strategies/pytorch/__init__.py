"""How gradients are exchanged under PyTorch; one file each."""
