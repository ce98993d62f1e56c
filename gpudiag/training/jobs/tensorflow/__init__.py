"""Train the built-in workloads under TensorFlow."""
