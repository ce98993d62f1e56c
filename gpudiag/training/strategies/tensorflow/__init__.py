"""How gradients are exchanged under TensorFlow; one file each. `registry` lists them without importing it."""
