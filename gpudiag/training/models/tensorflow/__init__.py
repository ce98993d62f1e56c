"""The models in plain Keras under TensorFlow. `workload` is their interface."""
