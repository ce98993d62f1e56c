"""The models in plain Keras under TensorFlow, a file each; `workload` says what one is."""
