"""Define the workloads. `registry` lists them without importing a framework. `pytorch` and `tensorflow` build them."""
