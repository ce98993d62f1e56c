"""The ways in which devices communicate gradients. `registry` lists the strategies without importing a framework."""
