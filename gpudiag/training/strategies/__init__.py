"""How gradients are exchanged; one file each. `registry` lists them without importing a framework."""
