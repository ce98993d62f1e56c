"""Define how devices communicate gradients. `registry` lists these strategies without importing a framework."""
