"""Define how devices communicate gradients (strategies). `registry` lists them without importing a framework."""
