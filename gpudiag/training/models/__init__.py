"""The workloads. `registry` lists them without importing a framework. `pytorch/` and `tensorflow/` build the models."""
