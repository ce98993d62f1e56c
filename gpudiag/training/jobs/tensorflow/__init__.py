"""The workloads under TensorFlow, in plain Keras; one file each. `registry` lists them without importing it."""
