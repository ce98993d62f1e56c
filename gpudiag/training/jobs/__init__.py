"""What is trained; one file each, in plain PyTorch. `registry` lists them without importing a framework."""
